# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of a partition: forward, backward, searched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.client.records import offsets_of
from tidemark.console.queries.record_scan import Limits, Scan, Search

from tests.unit.console.record_log import WHERE, FakeLog

MANY = Limits(records=5, scanned=1_000, data_bytes=1 << 30, seconds=1.0)


def log(count: int, *, missing: Iterable[int] = (), rows_each: int = 4) -> FakeLog:
    made = FakeLog(rows_each)
    for number in range(count):
        made.add(str(number).encode())
    gone = set(missing)
    made.rows = [row for row in made.rows if row["offset"] not in gone]
    return made


def scan(made: FakeLog, limits: Limits = MANY, search: Search | None = None, now_s: Any = lambda: 0.0) -> Scan:
    return Scan(made, WHERE, limits, search or Search(), None, now_s)


def offsets(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [offset for rows in batches for offset in offsets_of(rows).to_pylist()]


def test_a_forward_scan_ends_after_its_number_of_records() -> None:
    made = scan(log(20))
    assert offsets(made.forward(3, 20)) == [3, 4, 5, 6, 7]
    assert (made.begin, made.end, made.stopped) == (3, 8, "")


def test_a_forward_scan_ends_at_the_end_of_the_partition() -> None:
    made = scan(log(20, missing=[19]))
    assert offsets(made.forward(17, 20)) == [17, 18]
    assert (made.begin, made.end) == (17, 20)
    assert offsets(scan(log(20)).forward(20, 20)) == []


def test_a_backward_scan_returns_the_last_records_in_order() -> None:
    made = scan(log(20))
    assert offsets(made.backward(0, 20)) == [15, 16, 17, 18, 19]
    assert (made.begin, made.end, made.stopped) == (15, 20, "")


def test_a_backward_scan_passes_over_records_that_compaction_removed() -> None:
    source = log(200, missing=range(10, 198))
    made = scan(source)
    assert offsets(made.backward(0, 200)) == [7, 8, 9, 198, 199]
    assert (made.begin, made.end) == (7, 200)
    assert len(source.reads) < 8


def test_a_search_reads_at_most_its_number_of_records_and_says_so() -> None:
    limits = Limits(records=5, scanned=40, data_bytes=1 << 30, seconds=1.0)
    made = scan(log(100), limits, Search("99"))
    assert offsets(made.forward(0, 100)) == []
    assert (made.end, made.scanned, made.stopped) == (40, 40, "records")


def test_a_scan_that_reaches_its_end_and_a_bound_together_is_whole() -> None:
    made = scan(log(8), Limits(records=9, scanned=8, data_bytes=1 << 30, seconds=1.0))
    assert offsets(made.forward(0, 8)) == list(range(8))
    assert (made.end, made.stopped) == (8, "")


def test_a_scan_ends_at_its_bound_of_bytes() -> None:
    source = FakeLog(rows_each=1)
    for _ in range(9):
        source.add(b"x" * 1000)
    made = scan(source, Limits(records=9, scanned=1_000, data_bytes=3_000, seconds=1.0))
    assert offsets(made.forward(0, 9)) == [0, 1, 2]
    assert (made.end, made.stopped) == (3, "bytes")


def test_a_scan_ends_at_its_bound_of_time() -> None:
    times = iter(range(100))
    made = scan(log(100), MANY, Search("none"), lambda: float(next(times)))
    assert offsets(made.forward(0, 100)) == []
    assert (made.scanned, made.stopped) == (4, "time")


def test_a_backward_scan_reads_large_records_a_few_at_a_time() -> None:
    source = FakeLog(rows_each=1)
    for _ in range(60):
        source.add(bytes(1 << 20))
    made = scan(source, Limits(records=50, scanned=1_000, data_bytes=30 << 20, seconds=1.0))
    found = offsets(made.backward(0, 60))
    assert found == list(range(found[0], 60))
    assert (made.begin, made.stopped) == (found[0], "bytes")
    assert [end - start for start, end in source.reads] == [16, 7, 7]


@pytest.mark.parametrize(
    ("field", "expected"),
    [("any", [0, 1, 2, 3]), ("key", [0]), ("value", [1]), ("headers", [2, 3])],
)
def test_a_search_looks_into_the_named_field_in_any_case(field: str, expected: list[int]) -> None:
    made = FakeLog()
    made.add(b"\xff", key=b"\xffFLIGHT")
    made.add("Ein Flug: flight é".encode(), key=b"k")
    made.add(None, headers=[("a-Flight", None)])
    made.add(b"v", headers=[("h", b"flightS")])
    made.add(None, headers=[])
    assert offsets(scan(made, search=Search("fLIGHT", field)).forward(0, 5)) == expected


@settings(max_examples=30)
@given(
    st.integers(0, 60), st.sets(st.integers(0, 59)), st.integers(1, 7), st.integers(0, 60), st.sampled_from(["", "1"])
)
def test_pages_forward_and_backward_meet_without_gap_or_overlap(
    count: int, missing: set[int], limit: int, middle: int, text: str
) -> None:
    made = log(count, missing=missing)
    middle = min(middle, count)
    limits = Limits(records=limit, scanned=10, data_bytes=1 << 30, seconds=1.0)
    seen: list[int] = []
    position = middle
    while position < count:
        one = scan(made, limits, Search(text))
        seen += offsets(one.forward(position, count))
        assert one.end > position
        position = one.end
    position = middle
    while position > 0:
        one = scan(made, limits, Search(text))
        seen = offsets(one.backward(0, position)) + seen
        assert one.begin < position
        position = one.begin
    assert seen == [row["offset"] for row in made.rows if text in row["value"].decode()]
