# SPDX-License-Identifier: Apache-2.0
"""Settings that change while the cluster runs, among real processes, by the command as a shell runs it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.entries import ConfigChange, ConfigSource

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

BROKER_1 = ConfigResource(ConfigKind.BROKER, "1")
EVERY_BROKER = ConfigResource(ConfigKind.BROKER, CLUSTER_DEFAULT)


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ConfigKind.TOPIC, name)


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = f"topic-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=2, replication_factor=3)
    return name


@pytest.fixture
def brokers_as_they_were(admin: AdminClient) -> Iterator[None]:
    yield
    for resource in (BROKER_1, EVERY_BROKER):
        entries = admin.describe_configs([resource])[resource]
        own = (ConfigSource.CLUSTER,) if resource == EVERY_BROKER else (ConfigSource.BROKER,)
        mine = [entry.key for entry in entries if entry.source in own]
        if mine:
            admin.alter_configs(resource, delete=mine)


def accepts(cluster: LocalCluster, topic: str, size: int) -> bool:
    with Producer(cluster.bootstrap) as producer:
        try:
            producer.send(topic, b"x" * size, partition=0).result(15)
        except TidemarkError as error:
            if error.code is not ErrorCode.BATCH_TOO_LARGE:
                raise
            return False
    return True


def test_a_topics_limit_moves_under_running_brokers(cluster: LocalCluster, admin: AdminClient, topic: str) -> None:
    assert accepts(cluster, topic, 50_000)
    set_ = ("config", "set", "topic", topic)
    assert succeeds(cluster, *set_, "max.message.bytes=10000") == "+ max.message.bytes: 10000\n"
    wait_for(lambda: not accepts(cluster, topic, 50_000), "the smaller limit holds")
    assert succeeds(cluster, *set_, "max.message.bytes=100000") == "~ max.message.bytes: 10000 -> 100000\n"
    wait_for(lambda: accepts(cluster, topic, 50_000), "the larger limit holds")
    assert succeeds(cluster, *set_, "--delete", "max.message.bytes") == "- max.message.bytes: 100000\n"
    nothing = "nothing to change: the settings have these values already\n"
    assert succeeds(cluster, *set_, "--delete", "max.message.bytes") == nothing
    assert admin.describe_topics([topic])[0].configs == {}


def test_a_broker_setting_takes_effect_without_a_restart_and_shows_its_source(
    cluster: LocalCluster, admin: AdminClient, brokers_as_they_were: None
) -> None:
    def found(key: str) -> tuple[str | None, ConfigSource]:
        (entry,) = admin.describe_configs([BROKER_1], [key])[BROKER_1]
        return entry.value, entry.source

    assert found("replica.lag.time.max.ms") == ("10000", ConfigSource.DEFAULT)
    assert found("broker.id") == ("1", ConfigSource.STATIC)
    succeeds(cluster, "config", "set", "broker", "default", "replica.lag.time.max.ms=20000", "log.level=warning")
    wait_for(lambda: found("replica.lag.time.max.ms") == ("20000", ConfigSource.CLUSTER), "every broker has it")
    succeeds(cluster, "config", "set", "broker", "1", "log.level=debug")
    wait_for(lambda: found("log.level") == ("debug", ConfigSource.BROKER), "its own comes first")
    log = cluster.directory / "logs" / f"{broker_name(1)}.log"
    wait_for(
        lambda: '"config": "log.level", "before": "warning", "after": "debug"' in log.read_text(),
        "the broker logs the change",
    )
    succeeds(cluster, "config", "set", "broker", "1", "--delete", "log.level")
    wait_for(
        lambda: found("log.level") == ("warning", ConfigSource.CLUSTER), "the default of all brokers is in effect again"
    )


def test_the_same_request_id_is_the_same_change_once(admin: AdminClient, topic: str) -> None:
    resource, request_id = topic_resource(topic), uuid.uuid4().hex
    changed = [ConfigChange("retention.ms", None, "1000")]
    assert admin.alter_configs(resource, {"retention.ms": "1000"}, request_id=request_id) == changed
    admin.alter_configs(resource, {"retention.ms": "2000"})
    assert admin.alter_configs(resource, {"retention.ms": "1000"}, request_id=request_id) == changed
    assert admin.describe_topics([topic])[0].configs == {"retention.ms": "2000"}, "the change was not made again"
    for attempt in (
        lambda: admin.alter_configs(resource, {"retention.ms": "3000"}, request_id=request_id),
        lambda: admin.create_topic(f"{topic}-2", request_id=request_id),
        lambda: admin.delete_topic(topic, request_id=request_id),
    ):
        with raises_code(ErrorCode.REQUEST_ID_REUSED):
            attempt()
    assert admin.describe_topics([topic])[0].configs == {"retention.ms": "2000"}


def test_a_deletion_repeated_spares_the_next_topic_of_that_name(admin: AdminClient, topic: str) -> None:
    request_id = uuid.uuid4().hex
    admin.delete_topic(topic, request_id=request_id)
    made = admin.create_topic(topic, partitions=1, replication_factor=1)
    admin.delete_topic(topic, request_id=request_id)
    assert admin.describe_topics([topic])[0].topic_id == made.topic_id


TOPIC, BROKER = ConfigKind.TOPIC, ConfigKind.BROKER
DELETED = {TOPIC: "segment.ms", BROKER: "replica.alter.log.dirs.io.max.bytes.per.second"}
BAD_INPUT: list[tuple[ConfigKind, str, dict[str, str], ErrorCode, str]] = [
    (TOPIC, "TOPIC", {"no.such.setting": "1"}, ErrorCode.UNKNOWN_CONFIG, "no.such.setting"),
    (TOPIC, "TOPIC", {"broker.id": "1"}, ErrorCode.UNKNOWN_CONFIG, "broker"),
    (TOPIC, "TOPIC", {"max.message.bytes": "ten"}, ErrorCode.INVALID_CONFIG, "whole number"),
    (TOPIC, "TOPIC", {"retention.ms": "5", "max.message.bytes": "1"}, ErrorCode.INVALID_CONFIG, "1024"),
    (TOPIC, "TOPIC", {"min.insync.replicas": "4"}, ErrorCode.INVALID_CONFIG, "replication factor"),
    (TOPIC, "TOPIC", {"segment.ms": "5"}, ErrorCode.INVALID_CONFIG, "both"),
    (TOPIC, "a/b", {"retention.ms": "5"}, ErrorCode.INVALID_TOPIC_NAME, "a/b"),
    (TOPIC, "not-there", {"retention.ms": "5"}, ErrorCode.UNKNOWN_TOPIC, "not-there"),
    (BROKER, "1", {"num.read.threads": "3"}, ErrorCode.INVALID_CONFIG, "restart"),
    (BROKER, "1", {"retention.ms": "3"}, ErrorCode.UNKNOWN_CONFIG, "topic"),
    (BROKER, "default", {"replica.lag.time.max.ms": "900"}, ErrorCode.INVALID_CONFIG, "replica.heartbeat.interval.ms"),
    (BROKER, "one", {"log.level": "info"}, ErrorCode.INVALID_REQUEST, "default"),
    (BROKER, "1", {"log.level": "loud"}, ErrorCode.INVALID_CONFIG, "debug or info"),
]


def test_bad_input_has_a_code_and_a_sentence_each_and_changes_nothing(admin: AdminClient, topic: str) -> None:
    before = admin.describe_configs([BROKER_1, EVERY_BROKER])
    for kind, name, set_, code, what in BAD_INPUT:
        resource = ConfigResource(kind, topic if name == "TOPIC" else name)
        for validate_only in (False, True):
            with raises_code(code) as wrong:
                admin.alter_configs(resource, set_, delete=[DELETED[kind]], validate_only=validate_only)
            assert what in wrong.value.message
    with raises_code(ErrorCode.UNKNOWN_CONFIG, r"did you mean retention\.ms"):
        admin.alter_configs(ConfigResource(TOPIC, topic), {"segment.ms": "5"}, delete=["retention.msec"])
    assert admin.describe_topics([topic])[0].configs == {}
    assert admin.describe_configs([BROKER_1, EVERY_BROKER]) == before


def test_the_command_refuses_in_one_line_with_the_code(cluster: LocalCluster, topic: str) -> None:
    refused(tidemark(cluster, "config", "set", "topic", topic, "min.insync.replicas=4"), "INVALID_CONFIG")
    refused(tidemark(cluster, "config", "get", "broker", "77"), "BROKER_NOT_AVAILABLE")
    refused(tidemark(cluster, "config", "get", "topic", topic, "nonsense"), "UNKNOWN_CONFIG")
    for words in (("topic", topic), ("topic", topic, "retention.ms"), ("queue", topic, "a=b")):
        assert tidemark(cluster, "config", "set", *words).status == 2


def test_a_min_isr_without_a_spare_replica_is_warned_about_in_a_dry_run(cluster: LocalCluster, topic: str) -> None:
    words = ("config", "set", "topic", topic)
    for more in (("--dry-run",), ()):
        ended = tidemark(cluster, *words, "min.insync.replicas=3", *more)
        assert ended.status == 0, ended
        assert ended.error.startswith(f"warning: {topic} has no replica to spare")
    for less in (("min.insync.replicas=2",), ("retention.ms=7",), ("--delete", "min.insync.replicas")):
        assert tidemark(cluster, *words, *less).error == ""


def test_json_output_of_a_dry_run_lists_the_changes(cluster: LocalCluster, admin: AdminClient, topic: str) -> None:
    set_ = ("config", "set", "topic", topic, "retention.ms=7", "-o", "json")
    change = {"key": "retention.ms", "before": None, "after": "7"}
    told = {"changes": [change], "warnings": []}
    assert json.loads(succeeds(cluster, *set_, "--dry-run")) == {"changed": False, **told}
    assert admin.describe_topics([topic])[0].configs == {}
    assert json.loads(succeeds(cluster, *set_)) == {"changed": True, **told}
    got = json.loads(succeeds(cluster, "config", "get", "topic", topic, "-o", "json"))
    assert got["retention.ms"] == {"value": "7", "source": "topic"}
    assert got["flush.policy"] == {"value": "os", "source": "default"}
    assert succeeds(cluster, "config", "get", "topic", topic, "retention.ms") == "7\n"
    described = json.loads(succeeds(cluster, "config", "describe", "broker", "default", "-o", "json"))
    scopes = {entry["key"]: (entry["scope"], entry["source"]) for entry in described}
    assert scopes["replica.lag.time.max.ms"] == ("broker-dynamic", "default")
    assert scopes["num.read.threads"] == ("static", "unknown")
    assert "replica.lag.time.max.ms" in succeeds(cluster, "config", "describe", "broker", "0")


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose processes may be stopped; each test leaves all of them running."""
    with LocalCluster(tmp_path_factory.mktemp("hurt"), controllers=1) as started:
        yield started


def test_how_many_must_be_in_sync_changes_under_running_brokers(hurt: LocalCluster) -> None:
    def acknowledged() -> bool:
        with Producer(hurt.bootstrap, delivery_timeout_ms=1000) as producer:
            try:
                producer.send("flights", b"x", partition=0).result(15)
            except TidemarkError as error:
                if error.code not in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT):
                    raise
                return False
        return True

    with AdminClient(hurt.admin_address) as admin:
        admin.create_topic("flights", partitions=1, replication_factor=3)
        hurt.terminate(broker_name(2))
        wait_for(
            lambda: len(admin.describe_topics(["flights"])[0].partitions[0].in_sync_replicas) == 2,
            "broker 2 has left the ISR",
        )
        for needed, is_enough in (("3", False), ("2", True), ("3", False), ("1", True)):
            admin.alter_configs(topic_resource("flights"), {"min.insync.replicas": needed})
            wait_for(lambda is_enough=is_enough: acknowledged() is is_enough, f"{needed} replicas are wanted")  # type: ignore[misc]
    hurt.restart(broker_name(2))


def test_changes_made_without_a_controller_or_during_a_brokers_absence_apply_later(hurt: LocalCluster) -> None:
    with AdminClient(hurt.admin_address) as admin:
        admin.create_topic("orders", partitions=1, replication_factor=1)
        leader = broker_name(admin.describe_topics(["orders"])[0].partitions[0].leader)
        assert accepts(hurt, "orders", 50_000)
        hurt.kill(controller_name(0))
        admin.alter_configs(topic_resource("orders"), {"max.message.bytes": "10000"})
        hurt.restart(controller_name(0))
        wait_for(lambda: not accepts(hurt, "orders", 50_000), "the next controller sends the change")
        hurt.terminate(leader)
        admin.alter_configs(topic_resource("orders"), {"max.message.bytes": "100000"})
        hurt.restart(leader)
        wait_for(lambda: accepts(hurt, "orders", 50_000), "the broker receives the change after its return")
