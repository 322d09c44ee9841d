# SPDX-License-Identifier: Apache-2.0
"""Lanes: records arrive in the same batches as by the accumulator alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.client.producing.accumulator import Accumulator
from tidemark.client.producing.batching import SendHandle
from tidemark.client.producing.lanes import BytesLane, Lane, Lanes, RowLane
from tidemark.client.producing.partitioner import partition_of
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.model import ErrorCode, TidemarkError

PARTITIONS = 4
AT = datetime(2026, 1, 2, tzinfo=UTC)
BUFFER_BYTES = 100_000
few = settings(max_examples=60, deadline=None)
texts = st.text(max_size=12)
row = st.fixed_dictionaries(
    {"name": texts, "count": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), "at": st.just(AT)}
)
record = st.tuples(st.one_of(st.none(), st.binary(max_size=4)), st.one_of(st.none(), st.binary(max_size=40)))


def formats(*keys: str, event_time: str | None = "at") -> TypedFormat:
    draft = draft_from_ddl("name STRING NOT NULL, count INT, at TIMESTAMP NOT NULL")
    return TypedFormat("t", "id", first_version(draft.keyed(keys, event_time)))


def gathering(typed: TypedFormat | None = None) -> Accumulator:
    accumulator = Accumulator(
        batch_bytes=1000,
        buffer_bytes=BUFFER_BYTES,
        delivery_timeout_s=60,
        wake=lambda: None,
        typed=lambda topic: typed,
    )
    accumulator.sticky["t"] = 0  # each accumulator would choose another first partition for records without a key
    return accumulator


def add_record(accumulator: Accumulator, key: Any, value: Any) -> Any:
    partition = None if key is None else partition_of(key, PARTITIONS)
    return accumulator.add("t", partition, PARTITIONS, key, value, 7, None)


def add_row(accumulator: Accumulator, typed: TypedFormat, value: Any) -> Any:
    return accumulator.add_row(typed, typed.records.check(value), None, PARTITIONS, None, None)


def places(handles: Iterable[SendHandle]) -> list[tuple[int, int]]:
    """Partition and index of each record."""
    return [(handle._batch.partition.partition, handle._index) for handle in handles]


def taken(accumulator: Accumulator) -> list[tuple[Any, ...]]:
    return [
        (*batch.partition, batch.count, batch.size_bytes, batch.keys, batch.values, len(batch.timestamps_us))
        for batch in accumulator.take_closed(lambda batch: True)
    ]


@given(st.lists(record, max_size=120))
@few
def test_records_are_in_the_same_batches(records: list[tuple[bytes | None, bytes | None]]) -> None:
    plain, fast = gathering(), gathering()
    lane = BytesLane(fast, "t", PARTITIONS)
    alone = places(add_record(plain, key, value) for key, value in records)
    assert places(lane.send(key, value) or add_record(fast, key, value) for key, value in records) == alone
    assert taken(fast) == taken(plain)
    assert fast.buffered_bytes == plain.buffered_bytes


@given(st.lists(row, max_size=120), st.sampled_from([(), ("name",), ("name", "at")]), st.booleans())
@few
def test_rows_are_in_the_same_batches(rows: list[dict[str, Any]], keys: tuple[str, ...], has_event_time: bool) -> None:
    typed = formats(*keys, event_time="at" if has_event_time else None)
    plain, fast = gathering(typed), gathering(typed)
    lane = RowLane(fast, typed, PARTITIONS)
    alone = places(add_row(plain, typed, value) for value in rows)
    assert places(lane.send(None, value) or add_row(fast, typed, value) for value in rows) == alone
    assert taken(fast) == taken(plain)
    assert fast.buffered_bytes == plain.buffered_bytes


@given(st.lists(record, max_size=120))
@few
def test_records_of_a_list_are_in_the_same_batches(records: list[tuple[bytes | None, bytes | None]]) -> None:
    plain, fast = gathering(), gathering()
    lane = BytesLane(fast, "t", PARTITIONS)
    alone = places(add_record(plain, key, value) for key, value in records)
    assert places(sent(lane, records, lambda key, value: add_record(fast, key, value))) == alone
    assert taken(fast) == taken(plain)
    assert fast.buffered_bytes == plain.buffered_bytes


@given(st.lists(row, max_size=60))
@few
def test_rows_of_a_list_are_in_the_same_batches(rows: list[dict[str, Any]]) -> None:
    typed = formats("name")
    plain, fast = gathering(typed), gathering(typed)
    lane = RowLane(fast, typed, PARTITIONS)
    alone = places(add_row(plain, typed, value) for value in rows)
    records = [(None, value) for value in rows]
    assert places(sent(lane, records, lambda key, value: add_row(fast, typed, value))) == alone
    assert taken(fast) == taken(plain)


def sent(lane: Lane, records: Sequence[tuple[Any, Any]], add: Callable[[Any, Any], SendHandle]) -> list[SendHandle]:
    """The handles of records of which the lane leaves some."""
    handles: list[SendHandle] = []
    while len(handles) < len(records):
        lane.send_some(records, handles)
        if len(handles) < len(records):
            handles.append(add(*records[len(handles)]))
    return handles


def test_lane_takes_no_record_of_a_list_after_one_that_it_leaves() -> None:
    accumulator, lane = opened()
    handles: list[SendHandle] = []
    lane.send_some([(None, b"a"), (None, "no bytes"), (None, b"b")], handles)
    assert len(handles) == 1
    lane.send_some([(None, b"a"), ("no bytes", b"b")], handles)
    accumulator.refuse(TidemarkError(ErrorCode.INVALID_TXN_STATE, "no transaction"))
    lane.send_some([(None, b"a"), (None, b"b")], handles)
    accumulator.admit()
    accumulator.buffered_bytes += BUFFER_BYTES
    lane.send_some([(None, b"a"), (None, b"b")], handles)
    assert len(handles) == 1


def opened() -> tuple[Accumulator, Lane]:
    """An accumulator with an open batch of partition 0, to which a record without a key goes."""
    accumulator = gathering()
    accumulator.add("t", None, 1, None, b"first", 7, None)
    return accumulator, BytesLane(accumulator, "t", 1)


def opened_rows() -> tuple[Accumulator, Lane]:
    typed = formats()
    accumulator = gathering(typed)
    accumulator.add_row(typed, typed.records.check({"name": "first", "count": 1, "at": AT}), None, 1, None, None)
    return accumulator, RowLane(accumulator, typed, 1)


ROW = {"name": "a", "count": 1, "at": AT}
BOTH = pytest.mark.parametrize(("make", "value"), [(opened, b"value"), (opened_rows, ROW)])
Opened = Callable[[], tuple[Accumulator, Lane]]


@BOTH
def test_lane_leaves_a_record_that_needs_a_batch_or_an_error(make: Opened, value: Any) -> None:
    accumulator, lane = make()
    assert lane.send(None, value) is not None
    before = accumulator.buffered_bytes
    assert lane.send({"name": "a"}, value) is None
    assert lane.send(None, "no record") is None
    assert lane.send(None, None) is None
    accumulator.refuse(TidemarkError(ErrorCode.INVALID_TXN_STATE, "no transaction"))
    assert lane.send(None, value) is None
    accumulator.admit()
    assert lane.send(None, value) is not None
    accumulator.take_closed(lambda batch: True)
    assert lane.send(None, value) is None
    assert accumulator.buffered_bytes > before


@BOTH
def test_lane_leaves_a_record_while_the_buffer_is_full(make: Opened, value: Any) -> None:
    accumulator, lane = make()
    accumulator.buffered_bytes += BUFFER_BYTES
    assert lane.send(None, value) is None


@BOTH
def test_lane_leaves_a_record_of_a_batch_with_headers(make: Opened, value: Any) -> None:
    accumulator, lane = make()
    for batch in accumulator.open.values():
        batch.headers = [None]
    assert lane.send(None, value) is None


@pytest.mark.parametrize("wrong", [{**ROW, "count": 2**31}, {**ROW, "at": datetime(2026, 1, 2)}, {"name": "a"}, 7])  # noqa: DTZ001 - a misfit
def test_lane_leaves_a_row_that_does_not_fit(wrong: Any) -> None:
    accumulator, lane = opened_rows()
    before = accumulator.buffered_bytes
    assert lane.send(None, wrong) is None
    assert accumulator.buffered_bytes == before


def test_lane_leaves_a_row_of_a_batch_that_deletes_rows_or_has_another_version() -> None:
    typed = formats("name")
    accumulator = gathering(typed)
    accumulator.add_row(typed, typed.records.deletion("a", 7), None, 1, 7, None)
    assert RowLane(accumulator, typed, 1).send(None, ROW) is None
    accumulator, _ = opened_rows()
    assert RowLane(accumulator, formats(), 1).send(None, ROW) is None


def test_lanes_are_forgotten_with_the_metadata_that_they_are_made_of() -> None:
    lanes = Lanes()
    before = lanes.now
    lanes.forget()
    before["t"] = BytesLane(gathering(), "t", 1)
    assert "t" not in lanes.now
