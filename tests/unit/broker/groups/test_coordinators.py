# SPDX-License-Identifier: Apache-2.0
"""Finding the coordinator of a group through another broker (docs/groups.md, G1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.state_log import StateLogs
from tidemark.broker.groups.coordinators import GroupCoordinators, KnownTopics
from tidemark.broker.groups.group_shard import GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.broker.groups.partition_ends import PartitionEnds
from tidemark.broker.groups.service import GroupService, Verify
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.groups.group import Group
from tidemark.core.groups.state import Committed, MemberMetadata, MemberMetadataKey, TopicFacts
from tidemark.core.internal_topics import OFFSETS_TOPIC
from tidemark.core.pending_writes import Writer
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
)
from tidemark.runtime.configuration.settings import BrokerSettings, read_settings
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code

HERE, THERE = BrokerId(0), BrokerId(1)


class TopicByHand:
    """Creates the topic on request, led by the broker that the test names."""

    def __init__(self, metadata: MetadataCache, leader: BrokerId) -> None:
        self.metadata = metadata
        self.leader = leader
        self.name = OFFSETS_TOPIC
        self.asked = 0

    async def ensure(self) -> None:
        self.asked += 1
        asyncio.get_running_loop().call_soon(self.metadata.update, view(self.leader))


def view(leader: BrokerId | None, *, complete: bool = True) -> ClusterView:
    topics = {}
    if leader is not None:
        partition = PartitionView(0, leader, LeaderEpoch(4), (THERE,), (THERE,))
        topics[OFFSETS_TOPIC] = TopicView(OFFSETS_TOPIC, "id", 1, 1, {0: partition}, partition_count=1)
    brokers = {one: BrokerRegistration(one, f"host-{one}", 9192) for one in (HERE, THERE)}
    return ClusterView(controller_epoch=ControllerEpoch(1), brokers=brokers, topics=topics, complete=complete)


def settings(**more: str) -> BrokerSettings:
    flags = {"broker.id": "0", "log.dirs": "/nowhere", "zookeeper.connect": "here:1", **more}
    return read_settings(BrokerSettings, [part for key, text in flags.items() for part in (f"--{key}", text)], {})


def groups_of(leader: BrokerId | None, made_for: BrokerId = THERE) -> tuple[GroupCoordinators, TopicByHand]:
    metadata = MetadataCache("")
    metadata.update(view(leader))
    topic = TopicByHand(metadata, made_for)
    nothing: Any = None
    groups = GroupCoordinators(
        HERE,
        settings(),
        cast(StateLogs, nothing),
        metadata,
        cast(InternalTopic, topic),
        GroupMetrics(Metrics()),
        lambda error: None,
    )
    return groups, topic


async def test_any_broker_names_the_coordinator_of_a_group() -> None:
    groups, topic = groups_of(THERE)
    found = await groups.find("g")
    assert (found.broker.broker_id, found.partition, found.leader_epoch) == (THERE, 0, 4)
    assert topic.asked == 0
    with raises_code(ErrorCode.NOT_COORDINATOR) as elsewhere:
        groups.shard_of("g")
    assert elsewhere.value.metadata == {"coordinator": "1", "host": "host-1", "port": "9192", "partition": "0"}


async def test_the_first_request_creates_the_topic_and_waits_for_its_leader() -> None:
    groups, topic = groups_of(None)
    with raises_code(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        groups.shard_of("g")
    assert (await groups.find("g")).broker.broker_id == THERE
    assert topic.asked == 1


@pytest.mark.parametrize("leader", [NO_LEADER, BrokerId(9)])
async def test_a_leader_that_is_not_registered_is_no_coordinator(leader: BrokerId) -> None:
    groups, _ = groups_of(leader)
    with raises_code(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        await groups.find("g")


async def test_a_broker_that_is_becoming_leader_asks_for_a_retry() -> None:
    groups, _ = groups_of(HERE)
    with raises_code(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        groups.shard_of("g")


@pytest.mark.parametrize(("leader", "missing"), [(NO_LEADER, [0]), (BrokerId(9), [0]), (HERE, [0]), (THERE, [])])
async def test_a_list_of_groups_names_the_partitions_that_no_broker_coordinates(
    leader: BrokerId, missing: list[int]
) -> None:
    groups, _ = groups_of(leader)
    service = GroupService(groups, cast(GroupOffsets, None), cast(Verify, None))
    answer = await service.ListGroups(pb.ListGroupsRequest(), None)
    assert (list(answer.groups), list(answer.loading_partitions)) == ([], missing)


async def test_a_broker_without_metadata_of_the_topic_misses_no_partition() -> None:
    groups, _ = groups_of(None)
    assert groups.missing() == []


class Shard:
    """Answers whether this broker leads its partition under the lease."""

    def __init__(self) -> None:
        self.log = self
        self.over: TidemarkError | None = None

    def check(self) -> None:
        if self.over is not None:
            raise self.over


async def test_a_broker_with_outdated_metadata_does_not_name_itself() -> None:
    groups, _ = groups_of(HERE)
    shard = Shard()
    groups._shards[0] = cast(GroupShard, shard)
    assert (await groups.find("g")).broker.broker_id == HERE
    assert groups.missing() == []
    shard.over = TidemarkError(ErrorCode.NOT_COORDINATOR, "its lease has expired")
    assert groups.missing() == [0]
    with pytest.raises(TidemarkError) as lapsed:
        await groups.find("g")
    del groups._shards[0]
    with pytest.raises(TidemarkError) as deposed:
        await groups.find("g")
    assert {lapsed.value.code, deposed.value.code} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_an_invalid_group_id_is_refused_by_every_broker() -> None:
    groups, topic = groups_of(None)
    for group_id in ("", "x" * 250, "a\tb"):
        with raises_code(ErrorCode.INVALID_GROUP_ID):
            await groups.find(group_id)
    assert topic.asked == 0


def test_topics_are_those_of_the_cluster_view() -> None:
    broken = TopicView("broken", "", error=TidemarkError(ErrorCode.UNKNOWN_TOPIC, "no"))
    counted = TopicView("a", "a-id", partition_count=7)
    known = KnownTopics(ClusterView(topics={"a": counted, "broken": broken}))
    assert dict(known) == {"a": TopicFacts("a-id", 7)}
    assert "broken" not in known
    assert len(known) == 1


def offset_of(offsets: GroupOffsets, topic: str, topic_id: str, incarnation: str = "") -> int:
    """The offset of partition 0 in the answer when 7 is committed."""
    committed = Committed(7, LeaderEpoch(4), "", topic_id, incarnation, 0)
    return offsets.to_proto(TopicPartition(topic, 0), committed).offset


def test_an_offset_counts_unless_its_partition_is_known_to_be_another_one() -> None:
    groups, _ = groups_of(THERE)
    offsets = GroupOffsets(groups, cast(PartitionEnds, None))
    assert offset_of(offsets, OFFSETS_TOPIC, "id") == 7
    assert offset_of(offsets, OFFSETS_TOPIC, "another id") == -1
    assert offset_of(offsets, OFFSETS_TOPIC, "id", "another incarnation") == -1
    assert offset_of(offsets, "gone", "gone-id") == -1
    groups.metadata.update(replace(view(THERE), hidden_topics=("bad", OFFSETS_TOPIC)))
    assert offset_of(offsets, "bad", "bad-id") == 7, "it exists, but its node does not parse"
    assert offset_of(offsets, OFFSETS_TOPIC, "another id") == -1, "the part that parses counts"
    assert offset_of(offsets, "gone", "gone-id") == -1
    groups.metadata.update(view(THERE))
    assert offset_of(offsets, "bad", "bad-id") == -1


def test_a_coordinator_without_the_newest_metadata_returns_young_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a consumer would begin at `offset_reset`: skip records, or read them again."""
    groups, _ = groups_of(THERE)
    offsets, now_ms = GroupOffsets(groups, cast(PartitionEnds, None)), 1_000_000_000_000
    monkeypatch.setattr(groups, "situation", lambda: SimpleNamespace(wall_ms=now_ms))

    def fetched(topic: str, partition: int, topic_id: str, *, age_ms: int) -> int:
        committed = Committed(7, LeaderEpoch(4), "", topic_id, "", now_ms - age_ms)
        return offsets.fetched(TopicPartition(topic, partition), committed).offset

    assert fetched("new", 0, "new-id", age_ms=1000) == 7
    assert fetched(OFFSETS_TOPIC, 900, "id", age_ms=1000) == 7, "the partition was just added"
    assert fetched("deleted", 0, "deleted-id", age_ms=61_000) == -1
    assert fetched(OFFSETS_TOPIC, 0, "another id", age_ms=1000) == -1, "this broker knows another topic"
    assert offsets.fetched(TopicPartition("new", 0), None).offset == -1


def test_an_offset_counts_while_the_metadata_is_not_complete() -> None:
    groups, _ = groups_of(None)
    groups.metadata = MetadataCache("")
    assert offset_of(GroupOffsets(groups, cast(PartitionEnds, None)), "a", "a-id") == 7


def test_the_offset_of_a_hidden_topic_is_in_the_list_of_its_group() -> None:
    groups, _ = groups_of(THERE)
    groups.metadata.update(replace(view(THERE), hidden_topics=("bad",)))
    group = Group("g")
    for name in ("bad", "gone"):
        group.offsets[TopicPartition(name, 0)] = Committed(7, LeaderEpoch(4), "", f"{name}-id", "", 0)
    (row,) = GroupOffsets(groups, cast(PartitionEnds, None)).rows(group)
    assert (row.topic, row.committed_offset, row.topic_id) == ("bad", 7, "")


def topic_of(name: str, partitions: int) -> TopicView:
    there = {index: PartitionView(index, HERE, LeaderEpoch(1), (HERE,), (HERE,)) for index in range(partitions)}
    return TopicView(name, f"{name}-id", 1, 1, there, partition_count=partitions)


def test_partitions_without_a_commit_are_in_the_list_of_a_group_that_reads_the_topic() -> None:
    groups, _ = groups_of(THERE)
    topics = {one.topic: one for one in (topic_of("committed", 3), topic_of("subscribed", 2), topic_of("other", 1))}
    groups.metadata.update(replace(view(THERE), topics=topics))
    group = Group("g")
    group.offsets[TopicPartition("committed", 1)] = Committed(7, LeaderEpoch(4), "", "committed-id", "", 0)
    group.offsets[TopicPartition("other", 0)] = Committed(7, LeaderEpoch(4), "", "a former id", "", 0)
    group.put(MemberMetadataKey("g", "m"), MemberMetadata("", "", "", 1, ("subscribed", "not created yet"), ""))
    offsets = GroupOffsets(groups, cast(PartitionEnds, None))
    expected = [("committed", 0, -1), ("committed", 1, 7), ("committed", 2, -1)]
    expected += [("subscribed", 0, -1), ("subscribed", 1, -1)]
    assert [(row.topic, row.partition, row.committed_offset) for row in offsets.rows(group)] == expected
    pending = {TopicPartition("first", 4): [(Writer(40, 1), Committed(9, LeaderEpoch(4), "", "first-id", "", 0))]}
    (row,) = (row for row in offsets.rows(group, pending) if row.topic == "first")
    assert (row.partition, row.committed_offset) == (4, -1)
    assert [(one.offset, one.producer_id, one.producer_epoch) for one in row.pending] == [(9, 40, 1)]
    assert sorted((*where, offset) for where, offset in offsets.progress(group)) == expected


@pytest.mark.parametrize("assignors", ["best", "sticky,best", "sticky,sticky", ","])
async def test_an_unknown_assignor_ends_the_start(assignors: str) -> None:
    nothing: Any = None
    with raises_code(ErrorCode.INVALID_CONFIG):
        GroupCoordinators(
            HERE,
            settings(**{"group.consumer.assignors": assignors}),
            nothing,
            nothing,
            nothing,
            GroupMetrics(Metrics()),
            lambda error: None,
        )
