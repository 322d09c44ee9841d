# SPDX-License-Identifier: Apache-2.0
"""Batches of records, their handles, and the limit of the buffer."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tidemark.client.producing import table
from tidemark.client.producing.accumulator import RECORD_BYTES_MAX, Accumulator
from tidemark.client.producing.batching import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, PendingBatch, SendHandle
from tidemark.client.settings import consumer_settings, producer_settings
from tidemark.errors import InvalidConfigError, UnknownTopicError
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.schema import SCHEMA

from tests.refusals import raises_code

T0 = TopicPartition("t", 0)
RECORD_BYTES = RECORD_OVERHEAD_BYTES + 10


class Gathering:
    """An accumulator with three records in a batch and ten in all, that counts its wake-ups."""

    def __init__(self) -> None:
        self.woken = 0
        self.without_leader: set[int] = set()
        self.accumulator = Accumulator(
            batch_bytes=3 * RECORD_BYTES + BATCH_OVERHEAD_BYTES,
            buffer_bytes=10 * RECORD_BYTES,
            delivery_timeout_s=60,
            wake=self.wake,
            is_led=lambda where: where.partition not in self.without_leader,
        )

    def wake(self) -> None:
        self.woken += 1

    def add(self, count: int = 1, *, partition: int | None = 0) -> list[SendHandle]:
        return [self.accumulator.add("t", partition, 4, None, bytes(10), 7, None) for _ in range(count)]

    def closed(self, *, due: bool = False) -> list[tuple[int, int]]:
        return [(batch.partition.partition, batch.count) for batch in self.accumulator.take_closed(lambda _: due)]


def test_batch_is_closed_at_its_size_or_when_due() -> None:
    gathering = Gathering()
    gathering.add(7)
    assert gathering.closed() == [(0, 3), (0, 3)]
    assert gathering.closed() == []
    assert gathering.closed(due=True) == [(0, 1)]
    assert gathering.woken == 3


def test_records_without_a_key_fill_one_batch_after_another() -> None:
    gathering = Gathering()
    gathering.add(12, partition=None)
    taken = gathering.closed() + gathering.closed(due=True)
    assert [count for _, count in taken] == [3, 3, 3, 3]
    assert sorted(partition for partition, _ in taken) == [0, 1, 2, 3]


def test_records_without_a_key_go_to_partitions_with_a_leader() -> None:
    """Those of another partition would wait, and fail after the delivery timeout."""
    gathering = Gathering()
    gathering.without_leader = {0, 2}
    gathering.add(12, partition=None)
    taken = gathering.closed() + gathering.closed(due=True)
    assert sorted(partition for partition, _ in taken) == [1, 1, 3, 3]
    assert {gathering.accumulator.sticky_partition("t", 4) for _ in range(4)} == {1, 3}
    gathering.without_leader = {0, 1, 2, 3}
    assert {gathering.accumulator.sticky_partition("t", 4) for _ in range(4)} == {0, 1, 2, 3}


def test_rows_of_a_table_follow_earlier_records() -> None:
    gathering = Gathering()
    gathering.add(2)
    rows = table.as_rows(pa.table({"value": ["a"] * 5}), key=None, value="value", timestamp=None, now_us=7)[0]
    gathering.accumulator.add_rows(T0, rows)
    gathering.add(1)
    assert gathering.closed(due=True) == [(0, 2), (0, 5), (0, 1)]


def test_resolved_batch_makes_room_in_the_buffer() -> None:
    gathering = Gathering()
    gathering.add(10)
    assert gathering.accumulator.is_full
    with pytest.raises(TidemarkError) as refusal:
        gathering.accumulator.wait_for_room(0.001)
    assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
    gathering.accumulator.release(3 * RECORD_BYTES)
    gathering.accumulator.wait_for_room(0.001)
    assert not gathering.accumulator.is_full


def test_too_large_or_too_late_record_is_refused() -> None:
    accumulator = Gathering().accumulator
    with pytest.raises(TidemarkError) as refusal:
        accumulator.add("t", 0, 1, None, bytes(RECORD_BYTES_MAX), 7, None)
    assert refusal.value.code == ErrorCode.BATCH_TOO_LARGE
    assert accumulator.buffered_bytes == 0
    accumulator.end()
    with pytest.raises(TidemarkError) as refusal:
        accumulator.add("t", 0, 1, None, b"", 7, None)
    assert refusal.value.code == ErrorCode.CLIENT_CLOSED


def test_late_headers_do_not_apply_to_earlier_records() -> None:
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    batch.add(b"k", b"0", 5, None)
    batch.add(None, None, 6, [("a", b"1"), ("a", None)])
    rows = batch.take_rows()
    assert rows.schema == SCHEMA
    assert rows.column(0).to_pylist() == [b"k", None]
    assert rows.column(3).to_pylist() == [None, [("a", b"1"), ("a", None)]]


def test_batch_is_resolved_once_and_notifies_all_waiters() -> None:
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    handles = [batch.add(None, b"v", stamp, None) for stamp in (5, 6)]
    told: list[object] = []
    handles[0].add_done_callback(told.append)
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(handles[1].result(10).offset))
    waiting.start()
    batch.resolve(40, -1, None)
    batch.resolve(-1, -1, TidemarkError(ErrorCode.INTERNAL, "too late"))
    waiting.join(10)
    assert results == [41]
    assert told == [handles[0]]
    assert handles[1].result() == ("t", 0, 41, 6)
    assert handles[0].exception() is None


@pytest.mark.parametrize("failure", [KeyError("a"), asyncio.CancelledError(), SystemExit(1)])
def test_a_callback_that_raises_keeps_no_outcome_from_the_others(failure: BaseException) -> None:
    """The result of a cancelled future raises asyncio.CancelledError, which is no Exception."""
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    handles = [batch.add(None, b"v", stamp, None) for stamp in (5, 6)]
    told: list[object] = []

    def fail(_: object) -> None:
        raise failure

    handles[0].add_done_callback(fail)
    handles[1].add_done_callback(told.append)
    batch.resolve(40, -1, None)
    assert told == [handles[1]]
    handles[0].add_done_callback(fail)


def test_append_time_replaces_the_producers_timestamp() -> None:
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    handle = batch.add(None, b"v", 5, None)
    batch.resolve(1, 99, None)
    assert handle.result().timestamp_us == 99


async def test_handle_can_be_awaited_before_and_after_its_outcome() -> None:
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    handle = batch.add(None, b"v", 5, None)
    resolving = threading.Thread(target=batch.resolve, args=(3, -1, None))
    resolving.start()
    assert (await handle).offset == 3
    assert (await handle).offset == 3
    resolving.join()


def test_slices_of_adjacent_large_rows_fit_a_batch() -> None:
    values = [b"x" * 10] * 5000 + [b"y" * 50_000] * 40 + [b"x" * 10] * 5000 + [b"z" * 300_000]
    rows = table.as_rows(pa.table({"value": values}), key=None, value="value", timestamp=None, now_us=1)[0]
    pieces = list(table.slices(rows, 128 << 10))
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([rows]))
    assert [piece.num_rows for piece in pieces if piece.nbytes > 128 << 10] == [1]
    assert len(pieces) < 30


def test_slices_contain_each_row_once() -> None:
    source = pa.table({"value": [f"{number:04}" for number in range(1000)]})
    (rows,) = table.as_rows(source, key="key", value="value", timestamp=None, now_us=7)
    pieces = list(table.slices(rows, 1000))
    assert len(pieces) > 10
    assert [value for piece in pieces for value in piece.column(1).to_pylist()] == [
        f"{number:04}".encode() for number in range(1000)
    ]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"other": ["a"]}, {}),
        ({"value": [1.5]}, {}),
        ({"value": ["a"], "key": [1.5]}, {}),
        ({"value": ["a"]}, {"key": "id"}),
        ({"value": ["a"], "at": ["noon"]}, {"timestamp": "at"}),
        ({"value": ["a"], "headers": ["a"]}, {}),
    ],
    ids=["no value", "value", "key", "no key", "timestamp", "headers"],
)
def test_invalid_table_is_refused(columns: dict[str, list[object]], names: dict[str, str]) -> None:
    arguments: dict[str, Any] = {"key": "key", "value": "value", "timestamp": None, **names}
    with pytest.raises(TidemarkError) as refusal:
        table.as_rows(pa.table(columns), now_us=7, **arguments)
    assert refusal.value.code == ErrorCode.INVALID_PAYLOAD


@pytest.mark.parametrize("value", ["value", None], ids=["a column", "the row as JSON"])
def test_a_table_with_two_columns_of_a_name_is_refused(value: str | None) -> None:
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(TidemarkError, match="the table has 2 columns 'value'"):
        table.as_rows(twice, key="key", value=value, timestamp=None, now_us=7)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_ACKS),
        ({"acks": 1, "enable_idempotence": True}, ErrorCode.INVALID_CONFIG),
        ({"codec": "gzip"}, ErrorCode.INVALID_CONFIG),
        ({"max_in_flight": 11}, ErrorCode.INVALID_CONFIG),
        ({"batch_bytes": 0}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_producer_settings_are_refused(settings: dict[str, object], code: ErrorCode) -> None:
    with pytest.raises(TidemarkError) as refusal:
        producer_settings(**settings)  # type: ignore[arg-type]
    assert refusal.value.code == code


def test_idempotence_defaults_to_acks_all() -> None:
    assert producer_settings().idempotent
    assert producer_settings(acks=-1).idempotent
    assert not producer_settings(acks=1).idempotent
    assert not producer_settings(enable_idempotence=False).idempotent
    with pytest.raises(TidemarkError):
        consumer_settings(max_bytes=0)


@pytest.mark.parametrize(
    ("given", "said"), [("text", "str, not bytes: encode it"), ([1], "list, not bytes"), (7, "int")]
)
def test_key_or_value_of_another_type_is_refused(given: Any, said: str) -> None:
    gathering = Gathering()
    for key, value in ((given, b"value"), (b"key", given)):
        with pytest.raises(TypeError, match=said):
            gathering.accumulator.add("t", 0, 4, key, value, 7, None)
    assert gathering.accumulator.buffered_bytes == 0
    assert gathering.closed(due=True) == []


def test_buffers_of_keys_and_values_are_copied() -> None:
    gathering = Gathering()
    buffer = bytearray(b"one")
    gathering.accumulator.add("t", 0, 4, memoryview(b"key"), buffer, 7, None)
    buffer[:] = b"two"
    (batch,) = gathering.accumulator.take_closed(lambda _: True)
    rows = batch.take_rows()
    assert rows.column("value").to_pylist() == [b"one"]
    assert rows.column("key").to_pylist() == [b"key"]


def test_repeated_result_of_a_failed_record_collects_no_tracebacks() -> None:
    batch = PendingBatch(T0, opened_s=0, deadline_s=1)
    handle = batch.add(None, b"0", 5, None)
    batch.resolve(-1, -1, TidemarkError(ErrorCode.UNKNOWN_TOPIC, "gone", {"a": "b"}))
    raised = []
    for _ in range(3):
        with pytest.raises(UnknownTopicError) as refusal:
            handle.result()
        raised.append(refusal.value)
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in raised}) == 1
    assert [error.metadata for error in raised] == [{"a": "b"}] * 3
    assert handle.exception() is batch.outcomes[0].error


def test_linger_beyond_the_delivery_timeout_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="nothing would be sent in time"):
        producer_settings(linger_ms=5_000, delivery_timeout_ms=1_000)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_a_table_has_keys_of_a_polars_category(kind: Any) -> None:
    frame = pl.concat([pl.DataFrame({"key": pl.Series([one, None], dtype=kind)}) for one in ("a", "b")])
    found = pa.Table.from_batches(table.as_rows(frame, key="key", value="key", timestamp=None, now_us=7))
    assert found.column("key").to_pylist() == found.column("value").to_pylist() == [b"a", None, b"b", None]


def test_a_row_without_a_timestamp_is_refused_at_the_call() -> None:
    """Its batch would fail later, with other rows of the table."""
    frame = pa.table({"value": ["a", "b"], "at": pa.array([1, None])})
    with raises_code(ErrorCode.INVALID_PAYLOAD, "column 'at': 1 rows have no timestamp"):
        table.as_rows(frame, key="key", value="value", timestamp="at", now_us=7)
