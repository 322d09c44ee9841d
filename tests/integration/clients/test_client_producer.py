# SPDX-License-Identifier: Apache-2.0
"""The producer with brokers that refuse, disconnect, stop answering or answer late: each record once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tidemark.client.aio import Consumer, Producer
from tidemark.client.metadata import cluster as cluster_module
from tidemark.client.producing.batch_format import BytesFormat
from tidemark.client.producing.batching import SendHandle
from tidemark.client.producing.partitioner import partition_of
from tidemark.model import FEATURES, REMEMBERED_BATCHES, BrokerId, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.payload import from_columns

from tests.integration.harness.fake_broker import (
    CONFUSE,
    DROP_AFTER,
    DROP_BEFORE,
    FINE,
    HOLD,
    TOPIC,
    FakeCluster,
    FakeLog,
    Fault,
    refuse,
)
from tests.turns import turns

ONE_RECORD_A_BATCH: dict[str, Any] = {"batch_bytes": 1, "linger_ms": 0}
COUNT = 12


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as started:
        yield started


def values(count: int = COUNT) -> list[bytes | None]:
    return [str(number).encode() for number in range(count)]


async def send(producer: Producer, count: int = COUNT) -> list[SendHandle]:
    return [await producer.send(TOPIC, value, partition=0) for value in values(count)]


@pytest.mark.parametrize(
    "faults",
    [
        [refuse(ErrorCode.NOT_LEADER)],
        [refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3,
        [FINE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS)],
        [FINE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, append=True), FINE],
        [refuse(ErrorCode.REQUEST_TIMED_OUT, append=True)] * 5,
        [refuse(ErrorCode.STORAGE_ERROR), FINE, refuse(ErrorCode.STORAGE_ERROR, append=True)],
        [refuse(ErrorCode.CORRUPT_BATCH)],
        [DROP_BEFORE],
        [DROP_AFTER],
        [FINE, FINE, DROP_AFTER],
        [FINE, DROP_BEFORE, DROP_AFTER, FINE, DROP_AFTER],
        [HOLD, HOLD, DROP_AFTER],
        [FINE, CONFUSE, FINE],
        [HOLD, refuse(ErrorCode.NOT_ENOUGH_REPLICAS), DROP_BEFORE],
    ],
    ids=lambda faults: "-".join(
        str(fault.refuse or next((name for name in ("drop", "hold", "confuse") if getattr(fault, name)), "fine"))
        + ("+" if fault.append else "")
        for fault in faults
    ),
)
@pytest.mark.parametrize("sent", ["gathered", "one-by-one", "after-each-response"])
async def test_each_record_is_written_once_in_order_despite_any_request_failure(
    cluster: FakeCluster, faults: list[Fault], sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.produce_faults.extend(faults)
    if sent == "one-by-one":
        monkeypatch.setattr("tidemark.client.producing.sender.GROUP_BYTES_MAX", 1)
        monkeypatch.setattr("tidemark.client.producing.sender.REQUESTS_MAX", 5)
    settings = {**ONE_RECORD_A_BATCH, "linger_ms": 20 if sent == "after-each-response" else 0}
    async with Producer(cluster.bootstrap, request_timeout_ms=200, **settings) as producer:
        handles = await send(producer)
        assert [(await handle).offset for handle in handles] == list(range(COUNT))
    assert cluster.values() == values()
    assert cluster.producer_ids == 1


async def test_records_of_many_partitions_wait_for_one_producer_id() -> None:
    """A request for each of thousands of partitions would take seconds, also in each task of Spark."""
    async with FakeCluster(partitions=50) as wide, Producer(wide.bootstrap) as producer:
        for partition in range(50):
            await producer.send(TOPIC, b"v", partition=partition)
        await producer.flush()
        assert wide.producer_ids == 1


@pytest.mark.parametrize(
    ("features", "remembered"), [({"protocol": 1}, 5), (FEATURES, REMEMBERED_BATCHES)], ids=["older", "present"]
)
async def test_no_more_batches_are_under_way_than_brokers_remember_and_the_answers_may_come_backwards(
    features: dict[str, int], remembered: int
) -> None:
    async with FakeCluster(features=features) as cluster, Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        cluster.produce_faults.extend([HOLD] * 2)
        handles = await send(producer, 2)
        await cluster.until(lambda: len(cluster.held) == 1)
        handles += [await producer.send(TOPIC, value, partition=0) for value in values()[2:]]
        await cluster.until(lambda: len(cluster.held) == 2)
        assert cluster.values() == values(remembered)
        assert not any(handle.done() for handle in handles)
        await cluster.release(backwards=True)
        assert [(await handle).offset for handle in handles] == list(range(COUNT))
        assert cluster.values() == values()


async def test_full_batches_gather_until_the_response_to_the_request_before(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.client.producing.produce_stream._LONG_S", 60.0)
    cluster.produce_faults.extend([HOLD])
    async with Producer(cluster.bootstrap, batch_bytes=1, linger_ms=20) as producer:
        handles = await send(producer, 1)
        await cluster.until(lambda: cluster.held)
        for value in values(6)[1:]:
            handles.append(await producer.send(TOPIC, value, partition=0))
            await turns()  # the producer would send the record now
        await cluster.release()
        assert [(await handle).offset for handle in handles] == list(range(6))
    (_, first), (_, second), *_ = cluster.produced
    assert (first, second[:4]) == ([0], [1, 2, 3, 4])


@pytest.mark.parametrize("settings", [{"linger_ms": 1}, {"linger_ms": 0, "batch_bytes": 1}], ids=["due", "no-linger"])
async def test_a_batch_that_is_due_is_sent_although_the_response_to_a_request_is_missing(
    cluster: FakeCluster, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.client.producing.produce_stream._LONG_S", 60.0)
    cluster.produce_faults.extend([HOLD] * 2)
    async with Producer(cluster.bootstrap, **settings) as producer:
        handles = []
        for number in range(2):
            handles += await send(producer, 1)
            await cluster.until(lambda awaited=number + 1: len(cluster.held) == awaited)
        await cluster.release()
        assert [(await handle).offset for handle in handles] == [0, 1]


async def test_a_silent_leader_is_left_after_new_metadata_and_its_batches_go_to_the_next_with_their_sequences(
    cluster: FakeCluster,
) -> None:
    cluster.produce_faults.extend([HOLD])
    async with Producer(cluster.bootstrap, request_timeout_ms=60_000, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer)
        await cluster.until(lambda: len(cluster.values()) == REMEMBERED_BATCHES and cluster.watchers)
        await cluster.move(1)
        assert [(await handle).offset for handle in handles] == list(range(COUNT))
    assert cluster.values() == values()
    again = [sequences for broker, sequences in cluster.produced if broker == 1]
    assert again[:REMEMBERED_BATCHES] == [[number] for number in range(REMEMBERED_BATCHES)]


async def test_a_leader_that_dies_is_replaced_by_the_next(cluster: FakeCluster) -> None:
    cluster.produce_faults.extend([FINE, HOLD])
    async with Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer)
        await cluster.until(lambda: cluster.held)
        await cluster.stop_broker(0)
        await cluster.move(1)
        assert [(await handle).offset for handle in handles] == list(range(COUNT))
    assert cluster.values() == values()


async def test_the_refusal_of_an_old_leader_names_the_new_one(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        await (await producer.send(TOPIC, b"0", partition=0))
        await cluster.move(1, tell=False)
        where = await (await producer.send(TOPIC, b"1", partition=0))
        assert where.offset == 1
    assert cluster.values() == [b"0", b"1"]


async def test_a_broker_that_does_not_answer_is_given_up_after_the_request_timeout(cluster: FakeCluster) -> None:
    cluster.produce_faults.extend([HOLD])
    async with Producer(cluster.bootstrap, request_timeout_ms=1, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 3)
        assert [(await handle).offset for handle in handles] == [0, 1, 2]
    assert cluster.values() == values(3)


async def test_after_the_delivery_timeout_every_handle_raises_and_close_returns(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.client.aio.producer._START_S_MIN", 30.0)  # a start may take so long on a busy machine
    cluster.produce_faults.extend([refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
    async with Producer(cluster.bootstrap, delivery_timeout_ms=300, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer)
    for handle in handles:
        with pytest.raises(TidemarkError) as refusal:
            await handle
        assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert cluster.values() == []


@pytest.mark.parametrize(
    ("code", "producer_ids"),
    [(ErrorCode.INVALID_PAYLOAD, 2), (ErrorCode.INVALID_TIMESTAMP, 1)],
    ids=["of the batch", "of its record"],
)
async def test_after_a_refusal_for_good_the_rest_has_a_new_producer_id_unless_records_caused_it(
    cluster: FakeCluster, code: ErrorCode, producer_ids: int
) -> None:
    cluster.produce_faults.extend([FINE, refuse(code)])
    async with Producer(cluster.bootstrap, max_in_flight=1, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 4)
        outcomes = [handle.exception() for handle in handles if await _settled(handle)]
    assert [error.code if error else None for error in outcomes] == [None, code, None, None]
    assert cluster.values() == [b"0", b"2", b"3"]
    assert cluster.producer_ids == producer_ids


async def test_batches_refused_for_a_sequence_gap_are_written_once(cluster: FakeCluster) -> None:
    cluster.produce_faults.extend([FINE, *[refuse(ErrorCode.INVALID_TIMESTAMP)] * 2])
    async with Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 1)
        await handles[0]
        handles += [await producer.send(TOPIC, value, partition=0) for value in values(5)[1:]]
        outcomes = [handle.exception() for handle in handles if await _settled(handle)]
    assert [error.code if error else None for error in outcomes] == [
        None,
        ErrorCode.INVALID_TIMESTAMP,
        None,
        None,
        None,
    ]
    assert cluster.values() == [b"0", b"2", b"3", b"4"]


async def test_batches_that_go_together_are_one_request_and_each_has_its_own_offset(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 5)
        assert [(await handle).offset for handle in handles] == list(range(5))
    assert cluster.produced == [(0, [0, 1, 2, 3, 4])]


async def test_batches_refused_together_go_again_one_by_one_and_are_written_if_it_was_not_their_fault(
    cluster: FakeCluster,
) -> None:
    cluster.produce_faults.extend([refuse(ErrorCode.INVALID_TIMESTAMP)])
    async with Producer(cluster.bootstrap, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 5)
        assert [(await handle).offset for handle in handles] == list(range(5))
    assert [sequences for _, sequences in cluster.produced] == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
    assert cluster.producer_ids == 1


async def test_a_producer_forgotten_while_a_batch_is_in_doubt_raises_and_does_not_write_again(
    cluster: FakeCluster,
) -> None:
    cluster.produce_faults.extend([FINE, DROP_AFTER, refuse(ErrorCode.UNKNOWN_PRODUCER_ID)])
    async with Producer(cluster.bootstrap, max_in_flight=1, **ONE_RECORD_A_BATCH) as producer:
        handles = await send(producer, 3)
        outcomes = [handle.exception() for handle in handles if await _settled(handle)]
    assert [error.code if error else None for error in outcomes] == [None, ErrorCode.UNKNOWN_PRODUCER_ID, None]
    assert cluster.values() == values(3)


async def test_close_sends_pending_records_and_later_sends_are_refused(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, linger_ms=60_000)
    await producer.start()
    handles = await send(producer)
    await producer.close()
    assert [(await handle).offset for handle in handles] == list(range(COUNT))
    with pytest.raises(TidemarkError) as refusal:
        await producer.send(TOPIC, b"late")
    assert refusal.value.code == ErrorCode.CLIENT_CLOSED


async def test_rows_that_waited_while_their_topic_was_recreated_fail_and_later_records_are_written(
    cluster: FakeCluster,
) -> None:
    class RowsOfTheDeletedTopic(BytesFormat):
        topic_id = "deleted"

    async with Producer(cluster.bootstrap, linger_ms=60_000) as producer:
        await send(producer)
        assert producer._sender is not None
        rows = from_columns(None, [b"row"], [7])
        waiting = producer._sender.accumulator.add_rows(TopicPartition(TOPIC, 0), rows, RowsOfTheDeletedTopic())
        after = await producer.send(TOPIC, b"after", partition=0)
        await producer.flush()
        (outcome,) = waiting.outcomes
        assert outcome.error is not None
        assert outcome.error.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await after).offset == COUNT


async def test_without_acknowledgement_the_offset_is_unknown(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, acks=0) as producer:
        assert (await (await producer.send(TOPIC, b"0"))).offset == -1
    assert cluster.produced[0][1] == [-1]


async def test_a_full_buffer_makes_send_wait_until_something_is_acknowledged(cluster: FakeCluster) -> None:
    cluster.produce_faults.append(HOLD)
    async with Producer(cluster.bootstrap, buffer_bytes=100, linger_ms=0) as producer:
        await producer.send(TOPIC, bytes(200), partition=0)
        blocked = asyncio.create_task(producer.send(TOPIC, b"next", partition=0))
        await cluster.until(lambda: cluster.held)
        assert not blocked.done()
        await cluster.release()
        assert (await (await blocked)).offset == 1


async def test_a_table_goes_where_its_keys_belong_in_their_order() -> None:
    async with FakeCluster(partitions=3) as cluster:
        keys = [None if number % 5 == 0 else f"key{number % 11}" for number in range(1000)]
        table = pa.table({"key": keys, "value": [str(number) for number in range(1000)]})
        async with Producer(cluster.bootstrap, batch_bytes=2000) as producer:
            batches = await (await producer.send_table(TOPIC, table))
            assert sum(batch.record_count for batch in batches) == 1000
        written = {index: [int(value or b"") for value in cluster.values(index)] for index in range(3)}
        assert sorted(number for numbers in written.values() for number in numbers) == list(range(1000))
        for index, numbers in written.items():
            keyed = [number for number in numbers if keys[number] is not None]
            assert keyed == sorted(keyed)
            assert {partition_of((keys[number] or "").encode(), 3) for number in keyed} == {index}


async def test_a_topic_that_busy_brokers_hear_of_late_is_waited_for(cluster: FakeCluster) -> None:
    cluster.unheard = 12
    async with Producer(cluster.bootstrap) as producer:
        assert (await (await producer.send(TOPIC, b"0"))).offset == 0
    assert cluster.unheard == 0


@pytest.mark.usefixtures("impatient")
async def test_a_topic_or_partition_that_is_not_there_is_refused(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap) as producer:
        with pytest.raises(TidemarkError) as refusal:
            await producer.send(TOPIC, b"0", partition=7)
        assert refusal.value.code == ErrorCode.UNKNOWN_PARTITION
        with pytest.raises(TidemarkError) as refusal:
            await producer.send("other", b"0")
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC


async def test_a_partition_that_was_added_just_now_is_asked_for_before_it_is_refused(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
        await (await producer.send(TOPIC, b"0", partition=0))
        await consumer.assign(TOPIC)
        topic = cluster.view.topics[TOPIC]
        cluster.logs[TopicPartition(TOPIC, 1)] = FakeLog()
        added = cluster._partition(1, BrokerId(0), 0)
        await cluster.change(replace(topic, partitions={**topic.partitions, 1: added}), tell=False)
        assert (await (await producer.send(TOPIC, b"1", partition=1))).partition == 1
        assert await consumer.assign(TOPIC, [1]) == [TopicPartition(TOPIC, 1)]


async def test_without_a_reachable_broker_the_error_names_each_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_TIMEOUT_S", 0.2)
    with contextlib.ExitStack() as stack:  # bound and not listening: no other program takes these ports meanwhile
        bound = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in bound]
        producer = Producer(",".join(addresses))
        with pytest.raises(TidemarkError) as refusal:
            await producer.start()
        await producer.close()
    assert refusal.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert set(refusal.value.metadata) == set(addresses)


async def _settled(handle: SendHandle) -> bool:
    try:
        await handle
    except TidemarkError:
        return handle.done()
    return handle.done()
