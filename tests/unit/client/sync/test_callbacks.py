# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a rebalance use a blocking consumer in their threads, while another thread iterates the records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client import ClientClosedError, Consumer, ConsumerRecord, PartitionBatch
from tidemark.client.aio.consumer import Consumer as AsyncConsumer
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.record_reader import RecordReader
from tidemark.client.group.group_reader import _waiting
from tidemark.client.sync import producer_consumer
from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns

ONE = TopicPartition("a", 0)
BATCH_RECORDS, BATCHES = 10, 3


class Log:
    """A fetcher whose one partition has three batches of ten records."""

    def __init__(self) -> None:
        self.cursor = Cursor(ONE, 0, topic_id="t", incarnation="i")
        self.cursors = {ONE: self.cursor}
        self.suspended = False
        self.moved(self.cursor)

    def moved(self, cursor: Cursor) -> None:
        data = build_batch(from_columns(None, [b"v"] * BATCH_RECORDS, [7] * BATCH_RECORDS))
        first = cursor.fetch_offset // BATCH_RECORDS
        for base in range(first * BATCH_RECORDS, BATCH_RECORDS * BATCHES, BATCH_RECORDS):
            cursor.take(stamped(Batch(parse_envelope(data), data), base_offset=base, leader_epoch=0).data)

    def look_again(self) -> None:
        return

    def freed(self, _: int) -> None:
        return

    def resumed(self, _: object) -> None:
        return

    async def wait_for_rows(self, _: float | None) -> None:
        await asyncio.sleep(0.001)

    async def stop(self) -> None:
        return


class Offline(AsyncConsumer):
    """Reads the log without a broker."""

    async def start(self) -> None:
        async def close() -> None:
            return

        topics = SimpleNamespace(want=lambda _: None, schemas=SimpleNamespace(close=close))
        self._read(cast(Any, Log()), None, cast(Any, topics))


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", Offline)
    with Consumer("127.0.0.1:1") as made:
        yield made


def in_callback(act: Callable[[], object]) -> None:
    """Run a function as a callback of a rebalance does, until its end."""
    with _waiting(cast("asyncio.Future[None]", Future())):
        thread = Thread(target=copy_context().run, args=(act,))
    thread.start()
    thread.join()


def once_while_records_are_made(consumer: Consumer, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a callback when the iterating thread has polled a batch, and has not made its records."""
    reader, left = RecordReader(), [act]

    def records_in(batch: PartitionBatch) -> list[ConsumerRecord]:
        while left:
            in_callback(left.pop())
        return RecordReader().records_in(batch)

    monkeypatch.setattr(reader, "records_in", records_in)
    consumer._client.reader = reader


def offsets(consumer: Consumer, count: int) -> list[int]:
    return [next(consumer).offset for _ in range(count)]


def test_a_partition_that_a_callback_pauses_gives_no_record_until_it_is_resumed(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    once_while_records_are_made(consumer, lambda: consumer.pause([ONE]), monkeypatch)
    assert consumer.poll_records(0.05) == []
    assert consumer.poll_records(0.05) == []
    consumer.resume([ONE])
    assert offsets(consumer, 25) == list(range(25))


@pytest.mark.parametrize("to", [3, 23])
def test_a_seek_in_a_callback_discards_the_records_of_the_earlier_position(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    once_while_records_are_made(consumer, lambda: consumer.seek(ONE, to), monkeypatch)
    assert offsets(consumer, 4) == [to, to + 1, to + 2, to + 3]
    assert consumer.position(ONE) == to + 4


def test_a_record_that_is_read_right_after_a_seek_in_a_callback_is_not_skipped(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iterating thread polls before the thread of the callback runs again."""
    found, call = offsets(consumer, 3), consumer._background.call

    def call_and_read(work: Any, *limit: Any) -> Any:
        result = call(work, *limit)
        monkeypatch.setattr(consumer._background, "call", call)
        found.extend(offsets(consumer, 2))
        return result

    monkeypatch.setattr(consumer._background, "call", call_and_read)
    in_callback(lambda: consumer.seek(ONE, 15))
    assert found + offsets(consumer, 2) == [0, 1, 2, 15, 16, 17, 18]


def test_records_polled_during_a_pause_of_a_callback_are_given_back(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop has polled a batch for the iterating thread, which does not have the batch yet."""
    call = consumer._background.call

    def call_and_pause(work: Any, *limit: Any) -> Any:
        result = call(work, *limit)
        monkeypatch.setattr(consumer._background, "call", call)
        in_callback(lambda: consumer.pause([ONE]))
        return result

    monkeypatch.setattr(consumer._background, "call", call_and_pause)
    assert consumer.poll(0.05) is None
    assert consumer.position(ONE) == 0


def test_a_close_in_a_callback_commits_no_record_that_the_application_did_not_get(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = cast(Any, consumer._client)._started.cursor
    once_while_records_are_made(consumer, consumer.close, monkeypatch)
    with pytest.raises(ClientClosedError):
        next(consumer)
    assert cursor.processed == 0


def test_a_poll_of_named_columns_returns_no_rest_of_an_iterated_batch(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the batch has all columns: the consumer drops the rest, and fetches the named columns again."""
    wanted: list[object] = []
    monkeypatch.setattr(consumer._client._typed_topics, "want", wanted.append)
    assert offsets(consumer, 1) == [0]
    batch = consumer.poll(10, ["value"])
    assert batch is not None
    assert (wanted[-1], batch.rows.column("offset")[0].as_py()) == (["value"], 1)
    assert offsets(consumer, 1) == [BATCH_RECORDS]
    rest = consumer.poll(10)
    assert rest is not None
    assert rest.rows.column("offset")[0].as_py() == BATCH_RECORDS + 1
