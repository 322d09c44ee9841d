# SPDX-License-Identifier: Apache-2.0
"""Offsets of many partitions: one request to each leader, and one more for each partition that it refuses."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tidemark.client.consuming import offset_lookup
from tidemark.client.consuming.offset_lookup import OffsetLookup
from tidemark.client.metadata.cluster import Leader
from tidemark.client.records import Timestamp
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition, unknown_topic
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2 as pb

COUNT = 100
PARTITIONS = [TopicPartition("flights", index) for index in range(COUNT)]


class FakeCluster:
    """Two brokers lead half of the partitions each; every offset is 10 times the partition, or by time 5.

    Attributes:
        asked: address and number of partitions of each request.
        refused: partitions that are refused once.
        offline: partitions without a leader.
        down: addresses that answer nothing once.
        stopped: addresses whose broker does not answer one request in time; another broker leads its partitions then.
        timeouts_s: timeout of each request.
        empty: partitions without a record at or after any time.
        lagging: partitions that their leader does not have yet; a refusal comes with metadata without a leader.
    """

    headers = ()
    refusal = TidemarkError(ErrorCode.NOT_LEADER, "it moved")

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.refused: set[int] = set()
        self.down: set[str] = set()
        self.stopped: set[str] = set()
        self.timeouts_s: list[float] = []
        self.empty: set[int] = set()
        self.lagging: set[int] = set()
        self.offline: set[int] = set()
        self._without_leader: set[int] = set()

    def leader(self, where: TopicPartition) -> Leader | None:
        broker = where.partition % 2
        known = where.partition not in self._without_leader | self.offline
        return Leader(BrokerId(broker), f"broker-{broker}", LeaderEpoch(3), "t", "i") if known else None

    async def leader_in_time(self, where: TopicPartition, *, deadline_s: float) -> Leader:
        self._without_leader.discard(where.partition)
        found = self.leader(where)
        assert found is not None
        return found

    def stub(self, address: str) -> Any:
        cluster = self

        class Stub:
            async def ListOffsets(self, request: pb.ListOffsetsRequest, **given: Any) -> pb.ListOffsetsResponse:  # noqa: N802
                cluster.timeouts_s.append(given["timeout"])
                return cluster.answer(address, request)

        return Stub()

    def answer(self, address: str, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self.asked.append((address, len(request.partitions)))
        if address in self.down:
            self.down.remove(address)
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        if address in self.stopped:
            self.stopped.remove(address)
            raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())
        return pb.ListOffsetsResponse(partitions=[self._result(part) for part in request.partitions])

    def _result(self, part: pb.PartitionListOffsets) -> pb.PartitionListOffsetsResult:
        result = pb.PartitionListOffsetsResult(topic=part.topic, partition=part.partition, offset=10 * part.partition)
        if part.HasField("timestamp_us"):
            result.offset = -1 if part.partition in self.empty else 5
        if part.partition in self.refused:
            self.refused.remove(part.partition)
            result.error.CopyFrom(errors.to_proto(self.refusal))
        if part.partition in self.lagging:
            self.lagging.remove(part.partition)
            self._without_leader.add(part.partition)
            result.error.CopyFrom(errors.to_proto(unknown_topic(part.topic)))
        return result

    def note_refusal(self, where: TopicPartition, error: TidemarkError) -> None:
        pass

    def refresh(self) -> None:
        pass

    async def wait_for_update(self, timeout_s: float) -> None:
        pass


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def lookup(cluster: FakeCluster) -> OffsetLookup:
    known: Any = cluster
    return OffsetLookup(known, 5.0)


async def test_offsets_of_many_partitions_take_one_request_to_each_leader(
    lookup: OffsetLookup, cluster: FakeCluster
) -> None:
    found = await lookup.find_each(PARTITIONS, "latest")
    assert found == {where: 10 * where.partition for where in PARTITIONS}
    assert sorted(cluster.asked) == [("broker-0", COUNT // 2), ("broker-1", COUNT // 2)]


async def test_a_refused_partition_is_asked_again_alone(lookup: OffsetLookup, cluster: FakeCluster) -> None:
    cluster.refused = {7, 8}
    found = await lookup.find_each(PARTITIONS, "earliest")
    assert found == {where: 10 * where.partition for where in PARTITIONS}
    assert sorted(cluster.asked)[:1] == [("broker-0", 1)]
    assert len(cluster.asked) == 4


async def test_a_new_partition_that_neither_its_leader_nor_the_metadata_have_yet_is_asked_again(
    lookup: OffsetLookup, cluster: FakeCluster
) -> None:
    cluster.lagging = {7}
    assert (await lookup.look_up(PARTITIONS[7], latest=True)).offset == 70
    assert cluster.asked == [("broker-1", 1)] * 2


async def test_partitions_of_a_broker_that_does_not_answer_are_asked_again(
    lookup: OffsetLookup, cluster: FakeCluster
) -> None:
    cluster.down = {"broker-1"}
    assert len(await lookup.find_each(PARTITIONS, "latest")) == COUNT
    assert cluster.asked.count(("broker-1", 1)) == COUNT // 2


async def test_the_partitions_of_a_stopped_broker_are_asked_again_together_after_a_short_attempt(
    cluster: FakeCluster,
) -> None:
    """The broker that leads them next answers long before the timeout of the call."""
    known: Any = cluster
    cluster.stopped = {"broker-1"}
    assert len(await OffsetLookup(known, 30.0).find_each(PARTITIONS, "latest")) == COUNT
    assert sorted(cluster.asked) == [("broker-0", COUNT // 2), *[("broker-1", COUNT // 2)] * 2]
    assert cluster.timeouts_s == [2.0, 2.0, 4.0]


async def test_a_partition_without_a_leader_does_not_delay_the_others(
    lookup: OffsetLookup, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_lookup, "_SOON_S", 0.05)
    cluster.offline, cluster.refused, cluster.down = {3}, {7, 8}, {"broker-0"}
    found = await lookup.find_soon(PARTITIONS, "earliest")
    assert found == {where: 10 * where.partition for where in PARTITIONS if where.partition != 3}


async def test_a_permanent_refusal_is_raised_at_once(
    lookup: OffsetLookup, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = TidemarkError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to READ")
    monkeypatch.setattr(cluster, "refusal", denied)
    cluster.refused = {7}
    with pytest.raises(TidemarkError, match="no right to READ"):
        await lookup.find_soon(PARTITIONS, "earliest")
    assert len(cluster.asked) == 2


async def test_a_partition_without_a_record_at_the_time_starts_at_its_end(
    lookup: OffsetLookup, cluster: FakeCluster
) -> None:
    cluster.empty = {4}
    found = await lookup.find_each(PARTITIONS[:6], Timestamp(1))
    assert list(found.values()) == [5, 5, 5, 5, 40, 5]


async def test_an_offset_needs_no_request(lookup: OffsetLookup, cluster: FakeCluster) -> None:
    assert set((await lookup.find_each(PARTITIONS, 42)).values()) == {42}
    assert cluster.asked == []
