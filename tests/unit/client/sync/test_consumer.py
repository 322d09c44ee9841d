# SPDX-License-Identifier: Apache-2.0
"""Records of the blocking consumer, over an async client that notes the calls."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tidemark.client import Consumer, ConsumerRecord, PartitionBatch
from tidemark.client.consuming.health import PartitionHealth
from tidemark.client.consuming.record_reader import RecordReader
from tidemark.client.group.group_reader import _waiting, in_callback
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.sync import producer_consumer
from tidemark.client.sync.transaction import Transaction
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.schema import OFFSET_SCHEMA

from tests.refusals import raises_code


class Noting(Lifecycle):
    settings = SimpleNamespace(request_timeout_ms=1000)
    wants_back = False
    held_partition = TopicPartition("a", 2)
    reader = RecordReader()

    def __init__(self) -> None:
        self.polled: list[PartitionBatch | BaseException] = []
        self.noted: list[Any] = []

    async def start(self) -> None:
        return

    async def close(self) -> None:
        self.noted.append("closed")

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        self.noted.append((partition.partition, offset))

    def not_done_with_last(self) -> None:
        self.noted.append("not done")

    async def commit(self, offsets: object) -> None:
        self.noted.append("commit")

    async def commit_before(self, record: ConsumerRecord) -> None:
        self.noted.append(("commit", record.offset))

    def works_on(self, record: ConsumerRecord | None) -> None:
        self.working_on = record

    def pause(self, partitions: object) -> None:
        self.noted.append("pause")


class Polling(Consumer):
    """The test decides whether its polls return or are interrupted."""

    def __init__(self, noting: Noting) -> None:
        super().__init__("127.0.0.1:1")
        self._noting = noting

    def poll(self, timeout_s: float) -> PartitionBatch | None:
        found = self._noting.polled.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    made = Noting()
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: made)
    return made


def batch(*offsets: int) -> PartitionBatch:
    columns: dict[str, Any] = {name: [None] * len(offsets) for name in OFFSET_SCHEMA.names}
    columns |= {"offset": list(offsets), "timestamp": [0] * len(offsets)}
    return PartitionBatch("a", 2, pa.RecordBatch.from_pydict(columns, schema=OFFSET_SCHEMA))


@pytest.mark.parametrize("reads", [1, 2])
def test_rows_that_make_no_records_are_read_again(noting: Noting, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    def refuses(_: PartitionBatch) -> list[ConsumerRecord]:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, "no record")

    reader = RecordReader()
    monkeypatch.setattr(reader, "records_in", refuses)
    monkeypatch.setattr(noting, "reader", reader, raising=False)
    noting.polled = [batch(107, 108), batch(107, 108)]
    with Polling(noting) as consumer:
        for _ in range(reads):
            with pytest.raises(TidemarkError, match="no record"):
                next(consumer)
    assert noting.noted == [*[(2, 107)] * reads, "closed"]


def read(noting: Noting, count: int) -> None:
    """Read this number of records, then interrupt."""
    with Polling(noting) as consumer:
        assert [next(consumer).offset for _ in range(count)] == list(range(107, 107 + count))
        raise KeyboardInterrupt


def test_an_interrupted_poll_gives_no_records_of_an_earlier_batch_back(noting: Noting) -> None:
    """Meanwhile the member may have lost the partition and got it again, at a later offset."""
    noting.polled = [batch(107, 108), KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        read(noting, 3)
    assert noting.noted == ["not done", "closed"]


def test_an_interruption_on_a_record_gives_that_record_and_the_rest_back(noting: Noting) -> None:
    noting.polled = [batch(107, 108, 109)]
    with pytest.raises(KeyboardInterrupt):
        read(noting, 2)
    assert noting.noted == [(2, 108), "not done", "closed"]


class Interrupted(Noting):
    """Each poll returns rows, and the application gets an interrupt in place of the first ones."""

    wants_back = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.monkeypatch = monkeypatch
        self.rows = [batch(107, 108), batch(107, 108)]
        self._typed = SimpleNamespace(want=lambda columns: None)

    async def poll(self, timeout_s: float, columns: object) -> PartitionBatch:
        return self.rows.pop(0)

    async def _in_time(self, *_: Any) -> PartitionBatch:
        return self.rows.pop(0)

    def interrupt(self, consumer: Consumer) -> None:
        background = consumer._background
        call = background.call

        def interrupted(work: Any, *limit: Any) -> Any:
            self.monkeypatch.setattr(background, "call", call)
            call(work, *limit)
            raise KeyboardInterrupt

        self.monkeypatch.setattr(background, "call", interrupted)


@pytest.mark.parametrize(
    "read",
    [
        lambda consumer: consumer.poll(5.0),
        next,
        lambda consumer: consumer.poll_records(5.0),
        lambda consumer: next(consumer._batches(None)),
    ],
    ids=["poll", "next", "poll_records", "batches"],
)
def test_rows_that_arrive_with_an_interrupt_are_read_again(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    """Otherwise an application that goes on, as in a notebook, would miss them."""
    made = Interrupted(monkeypatch)
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: made)
    with Consumer("127.0.0.1:1") as consumer:
        made.interrupt(consumer)
        with pytest.raises(KeyboardInterrupt):
            read(consumer)
        assert made.noted == [(2, 107)]


def test_a_commit_in_a_callback_leaves_the_records_to_the_thread_that_iterates_them(noting: Noting) -> None:
    """The callback runs in a thread of its own, while the iterating thread is between two steps."""
    noting.polled = [batch(107, 108, 109)]
    with Polling(noting) as consumer:
        assert next(consumer).offset == 107
        with _waiting(cast("asyncio.Future[None]", Future())):
            committing = Thread(target=copy_context().run, args=(consumer.commit,))
        committing.start()
        committing.join()
        assert noting.noted == ["commit"]
        assert [next(consumer).offset for _ in range(2)] == [108, 109]


@pytest.mark.parametrize("in_lists", [False, True])
def test_records_of_a_partition_that_a_callback_pauses_are_not_returned(noting: Noting, in_lists: bool) -> None:
    """In its own thread, the callback pauses a partition while the application deserializes a record."""
    noting.polled = [batch(107, 108), batch(107, 108)]

    def deserialized(record: ConsumerRecord) -> ConsumerRecord:
        if noting.polled:
            pausing = Thread(target=consumer.pause, args=([("a", 2)],))
            pausing.start()
            pausing.join()
        return record

    noting.reader = RecordReader()
    noting.reader.deserializes = True
    noting.reader.deserialized = deserialized  # type: ignore[method-assign]
    with Polling(noting) as consumer:
        read = [one.offset for one in consumer.poll_records(1.0)] if in_lists else [next(consumer).offset]
    assert read == ([107, 108] if in_lists else [107])
    assert noting.noted[:2] == [(2, 107), "pause"]
    assert noting.polled == [], "the records come from the second poll"


def test_a_member_that_goes_through_a_polled_batch_says_on_which_record_it_works(noting: Noting) -> None:
    noting.polled = [batch(107, 108, 109, 111), None]
    with Polling(noting) as consumer:
        next(consumer)
        assert noting.working_on is not None
        assert noting.working_on.offset == 107
        consumer.poll_records(1, max_records=2)
        assert noting.working_on.offset == 108
    assert noting.working_on is None, "a given back record counts for nothing"


def test_a_commit_after_each_record_gives_nothing_back(noting: Noting) -> None:
    noting.polled = [batch(107, 108)]
    with Polling(noting) as consumer:
        for _ in range(2):
            next(consumer)
            consumer.commit()
        consumer.commit({("a", 2): 100})
    assert noting.noted == [("commit", 108), "commit", "commit", "closed"]


class Rebalanced(Noting):
    """The group revokes the second partition when the event loop is free."""

    def __init__(self) -> None:
        super().__init__()
        self.assignment = [TopicPartition("a", 2), TopicPartition("a", 3)]

    def position(self, partition: TopicPartition) -> int:
        if partition not in self.assignment:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{partition} is not assigned")
        return 110 + partition.partition


class Sending:
    """A transaction that notes offsets."""

    def __init__(self) -> None:
        self.offsets: Any = None

    async def send_offsets(self, consumer: Any, offsets: Any) -> None:
        self.offsets = "of processed records" if offsets is None and in_callback() else offsets


def test_a_transaction_takes_all_positions_before_a_partition_can_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator refuses offsets of a partition that has left, and the transaction must be aborted."""
    client, sending = Rebalanced(), Sending()
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: client)
    client.polled = [batch(107, 108, 109)]
    with Polling(client) as consumer:
        assert next(consumer).offset == 107
        assert next(consumer).offset == 108
        background = consumer._background
        call = background.call

        def call_and_rebalance(work: Any, *limit: Any) -> Any:
            result = call(work, *limit)
            client.assignment = [TopicPartition("a", 2)]
            return result

        monkeypatch.setattr(background, "call", call_and_rebalance)
        Transaction(sending, background, 5.0).send_offsets(consumer)  # type: ignore[arg-type]
        assert sending.offsets == {TopicPartition("a", 2): 109, TopicPartition("a", 3): 113}


def test_a_transaction_in_a_callback_leaves_out_the_record_that_another_thread_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `commit` does: the results of that record may belong to the next transaction."""
    client, sending = Rebalanced(), Sending()
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: client)
    client.polled = [batch(107, 108, 109)]
    with Polling(client) as consumer:
        assert next(consumer).offset == 107
        transaction = Transaction(sending, consumer._background, 5.0)  # type: ignore[arg-type]
        with _waiting(cast("asyncio.Future[None]", Future())):
            committing = Thread(target=copy_context().run, args=(transaction.send_offsets, consumer))
        committing.start()
        committing.join()
    assert sending.offsets == "of processed records"


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


def test_records_come_in_lists_of_the_size_that_the_application_names(noting: Noting) -> None:
    noting.polled = [batch(107, 108, 109, 111), None, batch(112)]
    consumer = Polling(noting)
    assert offsets(consumer.poll_records(1, max_records=3)) == [107, 108, 109]
    assert next(consumer).offset == 111
    assert consumer.poll_records(1) == [], "no batch came in time"
    assert offsets(consumer.poll_records(1)) == [112]
    consumer.close()


def test_a_list_of_records_is_given_back_whole_if_the_application_fails_on_it(noting: Noting) -> None:
    noting.polled = [batch(107, 108, 109, 111)]

    def fail_on_the_second_list() -> None:
        with Polling(noting) as consumer:
            consumer.poll_records(1, max_records=1)
            consumer.poll_records(1, max_records=2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_on_the_second_list()
    assert noting.noted == [(2, 108), "not done", "closed"]


def test_the_rest_of_a_batch_is_given_back_without_the_records_before_if_the_application_fails_on_it(
    noting: Noting,
) -> None:
    noting.polled = [batch(107, 108, 109)]

    def fail_on_the_rest() -> None:
        with Polling(noting) as consumer:
            assert next(consumer).offset == 107
            rest = Consumer.poll(consumer, 1)
            assert rest is not None
            assert rest.rows.column("offset").to_pylist() == [108, 109]
            assert noting.working_on is not None
            assert noting.working_on.offset == 108, "record 107 is processed"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_on_the_rest()
    assert noting.noted == [(2, 108), "not done", "closed"]


def test_a_list_of_records_is_not_given_back_if_the_application_asks_for_the_next(noting: Noting) -> None:
    noting.polled = [batch(107, 108), KeyboardInterrupt()]

    def read_on() -> None:
        with Polling(noting) as consumer:
            consumer.poll_records(1)
            consumer.poll_records(1)

    with pytest.raises(KeyboardInterrupt):
        read_on()
    assert noting.noted == ["not done", "closed"]


def test_a_record_that_cannot_be_deserialized_ends_a_list_and_is_the_error_of_the_next(noting: Noting) -> None:
    reader = RecordReader(value_deserializer="json")
    waiting = [
        ConsumerRecord("a", 2, offset, 0, None, value, ()) for offset, value in ((3, b"3"), (2, b"?"), (1, b"1"))
    ]
    assert [record.value for record in reader.next_of(waiting, 10)] == [1]
    with pytest.raises(TidemarkError) as refusal:
        reader.next_of(waiting[:2], 10)
    assert (refusal.value.code, refusal.value.metadata["offset"]) == (ErrorCode.INVALID_PAYLOAD, "2")


@pytest.mark.parametrize("max_records", [0, -3])
def test_a_list_of_no_records_cannot_be_asked_for(noting: Noting, max_records: int) -> None:
    consumer = Polling(noting)
    with raises_code(ErrorCode.INVALID_REQUEST):
        consumer.poll_records(1, max_records=max_records)
    consumer.close()


class Behind(Rebalanced):
    """The consumer's positions are at the end of the polled batch, and before the last record of the log."""

    def lag(self) -> dict[TopicPartition, int]:
        return {self.assignment[0]: 5, self.assignment[1]: -1}

    def health(self) -> dict[TopicPartition, PartitionHealth]:
        return {where: PartitionHealth("caught up", "", self.position(where), 0, 0) for where in self.assignment}


def test_the_lag_counts_polled_records_that_are_not_returned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a loop that ends at a lag of 0 leaves most of the last batch out."""
    client = Behind()
    one, other = client.assignment
    monkeypatch.setattr(producer_consumer, "AsyncConsumer", lambda *_, **__: client)
    client.polled = [batch(109, 110, 111)]
    with Polling(client) as consumer:
        assert consumer.lag() == {one: 5, other: -1}
        for left in (2, 1, 0):
            next(consumer)
            assert consumer.lag() == {one: 5 + left, other: -1}
            health = consumer.health()
            assert (health[one].position, health[one].lag) == (112 - left, left)
            assert (health[one].state, health[other].state) == ("reading" if left else "caught up", "caught up")
