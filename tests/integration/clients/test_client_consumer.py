# SPDX-License-Identifier: Apache-2.0
"""The consumer with brokers that refuse, drop connections, stop answering and move: every record once, in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tidemark import client
from tidemark.client import InvalidRequestError
from tidemark.client.aio import Consumer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.records import Timestamp
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Attributes, parse_envelope, seal
from tidemark.record.payload import build_batch, from_columns

from tests.integration.harness.fake_broker import DROP_BEFORE, FINE, HOLD, TOPIC, FakeCluster, Fault, refuse

ZERO = TopicPartition(TOPIC, 0)
NOON_US = 1_700_000_000_000_000
PER_BATCH = 3


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        fill(started, 0, 12)
        yield started


def fill(cluster: FakeCluster, start: int, end: int, *, partition: int = 0, epoch: int = 0) -> None:
    """Record n has value n and the time NOON_US + n; PER_BATCH in a batch."""
    for first in range(start, end, PER_BATCH):
        numbers = range(first, min(first + PER_BATCH, end))
        rows = from_columns(
            [b"key"] * len(numbers),
            [str(number).encode() for number in numbers],
            [NOON_US + number for number in numbers],
            [[("n", str(number).encode())] for number in numbers],
        )
        cluster.logs[TopicPartition(TOPIC, partition)].append(build_batch(rows), epoch)


async def read(consumer: Consumer, count: int) -> list[int]:
    numbers = []
    async with asyncio.timeout(20):
        async for record in consumer:
            assert record.offset == int(record.value or b"")
            numbers.append(record.offset)
            if len(numbers) == count:
                break
    return numbers


async def refusal_of(consumer: Consumer) -> ErrorCode:
    with pytest.raises(TidemarkError) as refusal:
        await consumer.poll(10)
    return refusal.value.code


async def test_records_come_whole_and_in_order_and_the_position_follows_each(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        assert await consumer.assign(TOPIC) == [ZERO]
        record = await anext(consumer)
        assert record == (TOPIC, 0, 0, NOON_US, b"key", b"0", (("n", b"0"),))
        assert consumer.position(ZERO) == 1
        assert await read(consumer, 11) == list(range(1, 12))
        assert consumer.position(ZERO) == 12
        assert await consumer.poll(0.02) is None
        assert await consumer.end_offsets() == {ZERO: 12}


@pytest.mark.parametrize(("start", "requests"), [("latest", [50]), (Timestamp(NOON_US), [50, 50]), (0, [])])
async def test_an_assignment_asks_each_leader_once(start: str | Timestamp | int, requests: list[int]) -> None:
    async with FakeCluster(partitions=50) as wide, Consumer(wide.bootstrap) as consumer:
        assert len(await consumer.assign(TOPIC, start=start)) == 50
        assert wide.listed == requests


async def test_end_offsets_of_many_partitions_take_one_request_to_each_leader() -> None:
    async with FakeCluster(partitions=50) as wide, Consumer(wide.bootstrap) as consumer:
        await consumer.assign(TOPIC, start=0)
        assert len(await consumer.end_offsets()) == 50
        assert wide.listed == [50]


async def test_lists_of_records_follow_one_another_and_the_position_follows_each(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await consumer.poll_records(10, max_records=2) == [
            (TOPIC, 0, 0, NOON_US, b"key", b"0", (("n", b"0"),)),
            (TOPIC, 0, 1, NOON_US + 1, b"key", b"1", (("n", b"1"),)),
        ]
        assert consumer.position(ZERO) == 2
        assert (await anext(consumer)).offset == 2
        found = []
        while len(found) < 9:
            records = await consumer.poll_records(10, max_records=2)
            assert 0 < len(records) <= 2
            found += [int(record.value) for record in records]
            assert consumer.position(ZERO) == records[-1].offset + 1
        assert found == list(range(3, 12))
        assert await consumer.poll_records(0.02) == []


async def test_a_batch_that_is_partly_read_is_polled_from_where_the_reader_stands(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC, start=1)
        assert (await anext(consumer)).offset == 1
        batch = await consumer.poll(10)
        assert batch is not None
        assert batch[:2] == ZERO
        assert batch.rows.column("offset").to_pylist() == [2]
        batch = await consumer.poll(10)
        assert batch is not None
        assert batch.rows.column("offset").to_pylist() == [3, 4, 5]
        assert consumer.position(ZERO) == 6


@pytest.mark.parametrize(
    "faults",
    [
        [DROP_BEFORE, FINE, DROP_BEFORE],
        [refuse(ErrorCode.NOT_LEADER), refuse(ErrorCode.FENCED_LEADER_EPOCH)],
        [refuse(ErrorCode.OFFSET_NOT_AVAILABLE)] * 3,
        [refuse(ErrorCode.UNKNOWN_TOPIC)],
        [Fault(damage=True), FINE, Fault(damage=True)],
    ],
    ids=["drop", "not leader", "not available", "unknown topic", "damaged on the way"],
)
async def test_each_record_comes_once_despite_any_fetch_failure(cluster: FakeCluster, faults: list[Fault]) -> None:
    cluster.fetch_faults.extend(faults)
    async with Consumer(cluster.bootstrap, max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))


async def test_a_damaged_batch_is_an_error_in_the_end_and_the_other_partition_is_read_on() -> None:
    async with FakeCluster(partitions=2) as cluster:
        log = cluster.logs[ZERO]
        fill(cluster, 0, 3)
        fill(cluster, 0, 3, partition=1)
        batch = log.batches[0]
        log.batches[0] = batch._replace(data=batch.data[:-1] + bytes([batch.data[-1] ^ 1]))
        async with Consumer(cluster.bootstrap) as consumer:
            await consumer.assign(TOPIC)
            seen: list[int] = []
            codes: list[ErrorCode] = []
            while not (seen and codes):
                try:
                    found = await consumer.poll(10)
                except TidemarkError as error:
                    codes.append(error.code)
                else:
                    assert found is not None
                    seen.append(found.partition)
            assert (seen, codes[0]) == ([1], ErrorCode.CORRUPT_BATCH)


async def test_a_silent_leader_is_left_after_new_metadata(cluster: FakeCluster) -> None:
    cluster.fetch_faults.append(HOLD)
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        await cluster.until(lambda: cluster.fetched and cluster.watchers)
        await cluster.move(1)
        assert await read(consumer, 12) == list(range(12))
    assert cluster.fetched[-1][0] == 1


async def test_a_dead_leader_is_replaced_and_the_consumer_sends_its_last_leader_epoch(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        await cluster.stop_broker(0)
        await cluster.move(1)
        fill(cluster, 12, 15, epoch=1)
        assert await read(consumer, 3) == [12, 13, 14]
        await cluster.until(lambda: cluster.fetched[-1][1].partitions[0].fetch_offset == 15)
    asked = {part.fetch_offset: part for broker, request in cluster.fetched for part in request.partitions if broker}
    assert (asked[12].last_fetched_epoch, asked[12].current_leader_epoch) == (0, 1)
    assert (asked[15].last_fetched_epoch, asked[15].current_leader_epoch) == (1, 1)
    assert (asked[12].topic_id, asked[12].incarnation) == ("topic-id", "i")


async def test_the_metadata_stream_continues_at_another_broker(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        await cluster.until(lambda: cluster.watchers)
        watched = next(iter(cluster.watchers.values()))
        await cluster.stop_broker(watched)
        await cluster.until(lambda: [broker for broker in cluster.watchers.values() if broker != watched])
        await cluster.move(1 - watched)
        assert await read(consumer, 12) == list(range(12))


async def test_offsets_out_of_range_are_errors_until_a_seek(
    cluster: FakeCluster,
) -> None:
    cluster.logs[ZERO].start = 3
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC, start=0)
        assert await refusal_of(consumer) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await refusal_of(consumer) == ErrorCode.OFFSET_OUT_OF_RANGE
        await consumer.seek(ZERO, 13)
        assert await refusal_of(consumer) == ErrorCode.LOG_TRUNCATED
        await consumer.seek(ZERO, "earliest")
        assert await read(consumer, 9) == list(range(3, 12))


async def test_a_seek_is_not_waited_for_behind_a_fetch_and_its_answer_is_not_used(cluster: FakeCluster) -> None:
    cluster.fetch_faults.append(HOLD)
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        await cluster.until(lambda: cluster.fetched)
        await consumer.seek(ZERO, 7)
        assert await read(consumer, 5) == list(range(7, 12))
        await consumer.seek(ZERO, 4)
        assert await read(consumer, 2) == [4, 5]
        await consumer.seek(ZERO, 10)
        assert await read(consumer, 2) == [10, 11]


async def test_the_leader_answers_a_start_lookup_after_any_failure(cluster: FakeCluster) -> None:
    cluster.list_faults.extend([refuse(ErrorCode.OFFSET_NOT_AVAILABLE), refuse(ErrorCode.NOT_LEADER)])
    cluster.logs[ZERO].start = 3
    async with Consumer(cluster.bootstrap) as consumer:
        for start, offset in {
            "earliest": 3,
            "latest": 12,
            8: 8,
            Timestamp(NOON_US + 7): 6,
            Timestamp(NOON_US + 100): 12,
        }.items():
            await consumer.assign(TOPIC, start=start)
            assert consumer.position(ZERO) == offset
        assert await consumer.offset_for_timestamp(ZERO, NOON_US + 100) is None


async def test_the_end_offset_of_an_old_leader_never_goes_backwards(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await consumer.end_offsets() == {ZERO: 12}
        del cluster.logs[ZERO].batches[2:]
        assert await consumer.end_offsets() == {ZERO: 12}


async def test_a_recreated_topic_is_another_topic(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        topic = cluster.view.topics[TOPIC]
        await cluster.change(replace(topic, topic_id="another", created_zxid=2, modified_zxid=2))
        assert await refusal_of(consumer) == ErrorCode.UNKNOWN_TOPIC_ID
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))


async def test_a_partition_without_a_leader_is_waited_for(cluster: FakeCluster) -> None:
    topic = cluster.view.topics[TOPIC]
    partition = replace(topic.partitions[0], leader=BrokerId(-1), partition_epoch=1)
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 12) == list(range(12))
        await cluster.until(lambda: cluster.watchers)
        await cluster.change(replace(topic, partitions={0: partition}))
        assert await consumer.poll(0.02) is None
        fill(cluster, 12, 15, epoch=2)
        await cluster.move(1)
        assert await read(consumer, 3) == [12, 13, 14]


async def test_markers_of_the_protocol_are_passed_over(cluster: FakeCluster) -> None:
    batch = cluster.logs[ZERO].batches[1]
    marker = batch.envelope._replace(attributes=Attributes.CONTROL)
    data = seal(marker, memoryview(batch.data)[64:])
    cluster.logs[ZERO].batches[1] = batch._replace(envelope=parse_envelope(data), data=data)
    async with Consumer(cluster.bootstrap, max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        assert await read(consumer, 9) == [0, 1, 2, 6, 7, 8, 9, 10, 11]


async def test_reading_ahead_ends_at_its_bound_and_continues_when_there_is_room(cluster: FakeCluster) -> None:
    fill(cluster, 12, 60)
    async with Consumer(cluster.bootstrap, max_partition_bytes=1) as consumer:
        await consumer.assign(TOPIC)
        await cluster.until(lambda: cluster.fetched)
        await consumer._fetcher.wait_for_rows(10)
        assert len(cluster.fetched) == 1
        assert await read(consumer, 60) == list(range(60))


async def test_partitions_take_turns_and_one_that_is_unassigned_is_read_no_more() -> None:
    async with FakeCluster(partitions=2) as cluster:
        fill(cluster, 0, 30)
        fill(cluster, 0, 30, partition=1)
        async with Consumer(cluster.bootstrap) as consumer:
            await consumer.assign(TOPIC)
            turns = [batch.partition for _ in range(8) if (batch := await consumer.poll(10)) is not None]
            assert sorted(turns[-4:]) == [0, 0, 1, 1]
            consumer.unassign([ZERO])
            assert consumer.assignment == [(TOPIC, 1)]
            rest = [batch.partition for _ in range(6) if (batch := await consumer.poll(10)) is not None]
            assert set(rest) == {1}


async def test_close_ends_waiting_polls_with_an_error(cluster: FakeCluster) -> None:
    consumer = Consumer(cluster.bootstrap)
    await consumer.start()
    await consumer.assign(TOPIC, start="latest")
    waiting = asyncio.create_task(consumer.poll())
    await cluster.until(lambda: cluster.fetched)
    await consumer.close()
    with pytest.raises(TidemarkError) as refusal:
        await waiting
    assert refusal.value.code == ErrorCode.CLIENT_CLOSED


async def test_a_partition_that_a_member_is_given_before_it_heard_of_it_is_waited_for() -> None:
    async with FakeCluster(partitions=2) as cluster:
        whole = cluster.view.topics[TOPIC]
        await cluster.change(replace(whole, partitions={0: whole.partitions[0]}))
        async with Consumer(cluster.bootstrap) as consumer:
            await consumer.assign(TOPIC)
            await cluster.change(whole, tell=False)
            where = TopicPartition(TOPIC, 1)
            made = await consumer.starts({where: "earliest"})
            assert [(found, cursor.partition, cursor.position) for found, cursor in made.items()] == [(where, where, 0)]


@pytest.mark.usefixtures("impatient")
async def test_invalid_assignments_are_refused(cluster: FakeCluster) -> None:
    async with Consumer(cluster.bootstrap) as consumer:
        for topic, partitions, start, code in (
            ("other", None, "earliest", ErrorCode.UNKNOWN_TOPIC),
            (TOPIC, [3], "earliest", ErrorCode.UNKNOWN_PARTITION),
            (TOPIC, [0], "newest", ErrorCode.INVALID_REQUEST),
            (TOPIC, [0], -1, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(TidemarkError) as refusal:
                await consumer.assign(topic, partitions, start)
            assert refusal.value.code == code


async def test_the_blocking_consumer_gives_the_same(cluster: FakeCluster) -> None:
    def use() -> None:
        with client.Consumer(cluster.bootstrap) as consumer:
            assert consumer.assign(TOPIC) == [ZERO]
            assert [next(consumer).offset for _ in range(4)] == [0, 1, 2, 3]
            assert consumer.position(ZERO) == 4
            batch = consumer.poll(10)
            assert batch is not None
            assert batch.rows.column("offset").to_pylist() == [4, 5]
            assert consumer.position(ZERO) == 6
            consumer.seek(ZERO, 10)
            assert [next(consumer).offset for _ in range(2)] == [10, 11]
            assert consumer.poll(0.02) is None
            assert consumer.end_offsets() == {ZERO: 12}

    await asyncio.to_thread(use)
    assert not [thread for thread in threading.enumerate() if thread.name == "tidemark-consumer"]


async def test_a_range_is_read_exactly_across_refusals_and_a_move(cluster: FakeCluster) -> None:
    cluster.fetch_faults.extend([refuse(ErrorCode.NOT_LEADER), FINE, DROP_BEFORE])

    def use() -> list[int]:
        with RangeReader(cluster.bootstrap, deadline_s=20) as reader:
            passed: list[int] = []
            means = {"topic_id": "topic-id", "incarnation": "i"}
            found: list[int] = []
            for rows in reader.read(TOPIC, 0, 1, 11, fetch_bytes=1, passed=passed.append, **means):
                assert not found or passed[-1] == found[-1] + 1
                found += rows.column("offset").to_pylist()
            assert passed == sorted(passed)
            assert passed[-1] == 11
            return found

    reading = asyncio.create_task(asyncio.to_thread(use))
    await cluster.until(lambda: len(cluster.fetched) >= 2)
    await cluster.move(1)
    assert await reading == list(range(1, 11))


async def test_a_read_committed_reader_refuses_records_of_a_broker_without_transactions(cluster: FakeCluster) -> None:
    """The broker ignores the isolation level: its answers have no last stable offset and no aborted transactions."""

    def read_range() -> None:
        with RangeReader(cluster.bootstrap, deadline_s=20, isolation_level="read_committed") as reader:
            next(reader.read(TOPIC, 0, 1, 11, topic_id="topic-id", incarnation="i"))

    async with Consumer(cluster.bootstrap, isolation_level="read_committed") as consumer:
        await consumer.assign(TOPIC)
        with pytest.raises(InvalidRequestError, match=r"has a version without transactions.*upgrade this broker"):
            await consumer.poll(10)
        assert consumer.position(ZERO) == 0
    with pytest.raises(InvalidRequestError, match="upgrade this broker"):
        await asyncio.to_thread(read_range)
