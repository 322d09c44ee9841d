# SPDX-License-Identifier: Apache-2.0
"""Validation and placement of new topics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.admin.planning import TopicRequest, plan_partitions, plan_topic
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    FEATURES,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    SchemaText,
    TidemarkError,
    TopicDescription,
)
from tidemark.zookeeper.codecs import encode_topic
from tidemark.zookeeper.topics import NODE_BYTES_MAX

from tests.refusals import raises_code

BROKERS = {BrokerId(index): BrokerRegistration(BrokerId(index), "localhost", 9192 + index) for index in range(3)}


def plan(request: TopicRequest, existing: tuple[TopicDescription, ...] = ()) -> TopicDescription:
    return plan_topic(request, BROKERS, existing, topic_id="id", default_replication_factor=3)


def code_of(request: TopicRequest) -> ErrorCode:
    with pytest.raises(TidemarkError) as refused:
        plan(request)
    return refused.value.code


@pytest.mark.parametrize("name", ["a", "flights", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_topic_name_may_have_letters_digits_dots_underscores_and_dashes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "a b", "café", "a\n", "../x", "a\x00"])
def test_invalid_topic_name_is_refused(name: str) -> None:
    with raises_code(ErrorCode.INVALID_TOPIC_NAME) as refused:
        check_topic_name(name)
    assert len(refused.value.message) < 200


def test_replicas_are_rotated_and_each_partition_has_its_own_incarnation() -> None:
    topic = plan(TopicRequest("flights", 6, 3, {"min.insync.replicas": "2"}))
    assert topic.partitions == {
        0: (0, 1, 2),
        1: (1, 2, 0),
        2: (2, 0, 1),
        3: (0, 2, 1),
        4: (1, 0, 2),
        5: (2, 1, 0),
    }
    assert len(set(topic.incarnations.values())) == 6
    assert topic.configs == {"min.insync.replicas": "2"}


def test_a_typed_topic_waits_for_the_upgrade_of_every_live_broker() -> None:
    """A broker of an older version would treat typed batches as damaged."""
    request = TopicRequest("flights", 1, schema=SchemaText("{}"))
    assert code_of(request) is ErrorCode.INVALID_REQUEST
    brokers = {one: replace(broker, features=FEATURES) for one, broker in BROKERS.items()}
    brokers[BrokerId(1)] = replace(brokers[BrokerId(1)], features={"protocol": 1})
    with pytest.raises(TidemarkError, match="on every live broker: upgrade broker 1 first"):
        plan_topic(request, brokers, (), topic_id="id", default_replication_factor=1)
    brokers[BrokerId(1)] = replace(brokers[BrokerId(1)], features=FEATURES)
    assert plan_topic(request, brokers, (), topic_id="id", default_replication_factor=1).schema_version == 1


def test_a_topic_without_a_schema_has_no_schema_compatibility() -> None:
    """A broker of 0.1.0 does not know the setting, and would use the defaults for all settings of the topic."""
    configs = {"retention.ms": "-1", "schema.compatibility": "none"}
    with raises_code(ErrorCode.INVALID_CONFIG, "only a typed topic has schema.compatibility"):
        plan(TopicRequest("flights", 1, 3, configs))


def test_new_partitions_of_a_typed_topic_go_to_no_broker_of_an_older_version() -> None:
    brokers = {one: replace(broker, features=FEATURES) for one, broker in BROKERS.items()}
    brokers[BrokerId(1)] = replace(brokers[BrokerId(1)], features={"protocol": 1})
    replicas = {0: (BrokerId(0), BrokerId(2))}
    typed = TopicDescription("flights", "id", replicas, {0: "i"}, schemas={1: SchemaText("{}")})
    planned = plan_partitions(typed, 8, (), brokers, [typed])
    assert {broker for assigned in planned.partitions.values() for broker in assigned} == {0, 2}
    with raises_code(ErrorCode.INVALID_REQUEST, "upgrade broker 1 first"):
        plan_partitions(typed, 2, [(BrokerId(1), BrokerId(0))], brokers, [typed])
    plain = replace(typed, schemas={})
    assert plan_partitions(plain, 2, [(BrokerId(1), BrokerId(0))], brokers, [plain]).partitions[1] == (1, 0)


def test_creating_the_offsets_topic_is_refused() -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "brokers create it, compacted, for the first consumer group"):
        plan(TopicRequest("__consumer_offsets", 1))


@pytest.mark.parametrize(
    ("default", "factor", "given", "stored"),
    [
        (2, 3, {}, {}),
        (3, 3, {}, {"min.insync.replicas": "3"}),
        (1, 3, {}, {"min.insync.replicas": "1"}),
        (3, 2, {}, {"min.insync.replicas": "2"}),
        (3, 0, {}, {"min.insync.replicas": "3"}),
        (3, 3, {"min.insync.replicas": "2"}, {"min.insync.replicas": "2"}),
    ],
)
def test_a_topic_gets_the_default_min_isr_unless_given(
    default: int, factor: int, given: dict[str, str], stored: dict[str, str]
) -> None:
    topic = plan_topic(
        TopicRequest("t", 1, factor, given),
        BROKERS,
        (),
        topic_id="id",
        default_replication_factor=3,
        default_min_insync_replicas=default,
    )
    assert topic.configs == stored


def test_replication_factor_zero_is_the_default() -> None:
    assert [len(replicas) for replicas in plan(TopicRequest("t", 2)).partitions.values()] == [3, 3]


def test_placement_continues_after_existing_topics() -> None:
    first = plan(TopicRequest("first", 1, 1))
    assert plan(TopicRequest("second", 1, 1), (first,)).partitions == {0: (1,)}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TopicRequest("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", -1, 1), ErrorCode.INVALID_PARTITIONS),
        (TopicRequest("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, -1), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicRequest("t", 1, 1, {"no.such.setting": "1"}), ErrorCode.UNKNOWN_CONFIG),
        (TopicRequest("t", 1, 1, {"segment.bytes": "1"}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 1, {"segment.bytes": "many"}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 1, {"retention.ms": "1_000"}), ErrorCode.INVALID_CONFIG),
        (TopicRequest("t", 1, 2, {"min.insync.replicas": "3"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_topic_is_refused(request_: TopicRequest, code: ErrorCode) -> None:
    assert code_of(request_) is code


def test_default_min_insync_replicas_allows_replication_factor_one() -> None:
    assert plan(TopicRequest("t", 1, 1)).configs == {}


@pytest.mark.parametrize("partitions", [15_000, 2**31 - 1])
def test_partitions_beyond_the_znode_limit_are_refused_with_the_number_that_fits(partitions: int) -> None:
    with raises_code(ErrorCode.INVALID_PARTITIONS) as refused:
        plan(TopicRequest("big", partitions, 3))
    fitting = int(refused.value.metadata["partitions_max"])
    assert str(fitting) in refused.value.message
    assert len(encode_topic(plan(TopicRequest("big", fitting, 3)))) <= NODE_BYTES_MAX
