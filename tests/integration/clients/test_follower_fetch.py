# SPDX-License-Identifier: Apache-2.0
"""A consumer that reads from the replica in its rack, with replicas that refuse, lag or stop answering (rule K1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tidemark.client.aio import Consumer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.model import BrokerId, ErrorCode, TopicPartition
from tidemark.v1 import broker_service_pb2 as pb

from tests.integration.clients.test_client_consumer import fill, read
from tests.integration.harness.fake_broker import DROP_BEFORE, FINE, HOLD, TOPIC, FakeCluster, Fault, refuse
from tests.refusals import raises_code

ZERO = TopicPartition(TOPIC, 0)
LEADER, NEAR = 0, 1
FROM_FOLLOWER, NEAREST, ALONE = pb.READ_FROM_FOLLOWER, pb.READ_FROM_NEAREST, pb.READ_FROM_LEADER


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    """Broker 0, in rack a, leads; broker 1 is in rack b. 300 ms without a record, 600 without an answer are long."""
    monkeypatch.setattr("tidemark.client.consuming.preferred_replica.QUIET_S", 0.3)
    monkeypatch.setattr("tidemark.client.consuming.preferred_replica.SILENT_S", 0.6)
    async with FakeCluster() as started:
        started.racks = {LEADER: "a", NEAR: "b"}
        fill(started, 0, 12)
        yield started


async def test_records_come_from_the_replica_in_the_consumers_rack(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap, rack="b", max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        assert [part.read_from for part in cluster.asked(of=LEADER)] == [NEAREST]
        assert {part.read_from for part in cluster.asked(of=NEAR)} == {FROM_FOLLOWER}
        health = consumer.health()[ZERO]
        assert (health.reads_from, health.lag) == (NEAR, 0)
        assert "broker 0" in health.detail
        assert "broker 1, in this consumer's rack, is read from" in health.detail
        size_bytes = sum(len(batch.data) for batch in cluster.logs[ZERO].batches)
        assert consumer.metrics().follower_bytes == size_bytes


@pytest.mark.parametrize("rack", ["", "a", "c"])
async def test_without_a_replica_in_the_rack_or_without_a_rack_the_leader_gives_the_records(
    cluster: FakeCluster, rack: str
) -> None:
    async with Consumer(cluster.bootstrap, rack=rack) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        assert not cluster.asked(of=NEAR)
        assert (consumer.health()[ZERO].reads_from, consumer.metrics().follower_bytes) == (LEADER, 0)


@pytest.mark.parametrize(
    "faults",
    [
        [FINE, DROP_BEFORE, FINE, DROP_BEFORE],
        [refuse(ErrorCode.OFFSET_NOT_AVAILABLE)],
        [FINE, refuse(ErrorCode.NOT_LEADER)],
        [FINE, refuse(ErrorCode.UNKNOWN_LEADER_EPOCH)],
        [FINE, refuse(ErrorCode.OFFSET_OUT_OF_RANGE)],
        [FINE, refuse(ErrorCode.LOG_TRUNCATED)],
        [FINE, refuse(ErrorCode.UNKNOWN_TOPIC_ID)],
        [FINE, Fault(damage=True), Fault(damage=True), Fault(damage=True), Fault(damage=True)],
        [FINE, HOLD],
    ],
    ids=["drop", "not there", "not leader", "epoch", "below its start", "diverged", "topic id", "damaged", "silent"],
)
async def test_each_record_comes_once_when_a_replica_refuses_and_the_leader_serves(
    cluster: FakeCluster, faults: list[Fault]
) -> None:
    cluster.follower_faults.extend(faults)
    async with Consumer(cluster.bootstrap, rack="b", max_partition_bytes=1, out_of_range="earliest") as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        assert ALONE in {part.read_from for part in cluster.asked(of=LEADER)}, (
            "the consumer read from the leader for a while"
        )


async def test_the_leader_serves_records_that_a_replica_lacks(cluster: FakeCluster) -> None:
    cluster.behind[NEAR] = 6
    async with Consumer(cluster.bootstrap, rack="b", max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        assert max(part.fetch_offset for part in cluster.asked(of=NEAR)) == 6
        assert [part.fetch_offset for part in cluster.asked(of=LEADER)][:2] == [0, 6]
        assert consumer.health()[ZERO].reads_from == LEADER


async def test_a_log_that_was_cut_is_found_through_a_replica_too(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap, rack="b", max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        await cluster.until(lambda: any(part.fetch_offset == 12 for part in cluster.asked(of=NEAR)))
        del cluster.logs[ZERO].batches[2:]
        with raises_code(ErrorCode.LOG_TRUNCATED):
            await consumer.poll(10)


async def test_a_consumer_at_the_end_returns_to_the_replica_after_a_fetch_from_the_leader(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap, rack="b", fetch_max_wait_ms=50) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        await cluster.until(lambda: len(cluster.asked(of=LEADER)) >= 3)
        assert {part.read_from for part in cluster.asked(of=LEADER)} == {NEAREST}
        fill(cluster, 12, 15)
        assert await read(consumer, 3) == [12, 13, 14]
        assert consumer.health()[ZERO].reads_from == NEAR


async def test_a_replica_that_is_out_of_sync_or_down_is_left_after_new_metadata(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tidemark.client.consuming.preferred_replica.SILENT_S", 60.0
    )  # because of a change, not of silence
    cluster.follower_faults.append(HOLD)
    async with Consumer(cluster.bootstrap, rack="b", fetch_max_wait_ms=20_000) as consumer:
        await consumer.assign(TOPIC)
        await cluster.until(lambda: cluster.asked(of=NEAR))
        topic = cluster.view.topics[TOPIC]
        alone = replace(topic.partitions[0], in_sync_replicas=(BrokerId(LEADER),), partition_epoch=1)
        await cluster.change(replace(topic, partitions={0: alone}))
        assert await read(consumer, 12) == list(range(12))
        assert [part.read_from for part in cluster.asked(of=LEADER)][:2] == [NEAREST, ALONE]


async def test_a_new_leader_chooses_the_replica_to_fetch_from_again(cluster: FakeCluster) -> None:
    cluster.racks = {LEADER: "a", NEAR: "c"}
    async with Consumer(cluster.bootstrap, rack="a", max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 6) == list(range(6))
        await cluster.move(NEAR)
        assert await read(consumer, 6) == list(range(6, 12))
        fill(cluster, 12, 15, epoch=1)
        assert await read(consumer, 3) == [12, 13, 14]
        assert consumer.health()[ZERO].reads_from == LEADER
        assert {part.current_leader_epoch for part in cluster.asked(of=LEADER) if part.read_from == FROM_FOLLOWER} == {
            1
        }


async def test_partitions_of_one_broker_are_read_as_leader_and_as_follower_in_one_request() -> None:
    async with FakeCluster(partitions=2) as cluster:
        cluster.racks = {LEADER: "a", NEAR: "b"}
        await cluster.move(NEAR, partition=1)
        for partition in (0, 1):
            fill(cluster, 0, 6, partition=partition, epoch=partition)
        async with Consumer(cluster.bootstrap, rack="b") as consumer:
            await consumer.assign(TOPIC)
            found = []
            async with asyncio.timeout(20):
                while len(found) < 12:
                    record = await anext(consumer)
                    found.append((record.partition, record.offset))
            assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(6)]
            assert {one.reads_from for one in consumer.health().values()} == {NEAR}


@pytest.mark.parametrize(
    "faults", [[], [refuse(ErrorCode.OFFSET_NOT_AVAILABLE)], [FINE, DROP_BEFORE]], ids=["fine", "refused", "dropped"]
)
async def test_a_bounded_read_uses_the_nearest_replica_and_falls_back_to_the_leader(
    cluster: FakeCluster, faults: list[Fault]
) -> None:
    cluster.follower_faults.extend(faults)

    def rows() -> list[int]:
        with RangeReader(cluster.bootstrap, deadline_s=20, rack="b") as reader:
            topic = reader.topics([TOPIC])[TOPIC]
            means = {"topic_id": topic.topic_id, "incarnation": topic.partitions[0].incarnation}
            batches = reader.read(TOPIC, 0, 1, 11, fetch_bytes=1, **means)
            return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    assert await asyncio.to_thread(rows) == list(range(1, 11))
    assert cluster.asked(of=NEAR)
    assert (ALONE in {part.read_from for part in cluster.asked(of=LEADER)}) == bool(faults)
