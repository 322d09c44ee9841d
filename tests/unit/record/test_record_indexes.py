# SPDX-License-Identifier: Apache-2.0
"""Indexes of records as text, written by a broker and read by a producer."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from tidemark.record.record_indexes import RANGES_MAX, parse_ranges, ranges_of, ranges_text


@given(st.lists(st.booleans(), max_size=200))
def test_ranges_are_read_as_they_were_written(marked: list[bool]) -> None:
    ranges = ranges_of(marked)
    assert list(parse_ranges(ranges_text(ranges), len(marked))) == list(ranges)
    found = {index for first, last in ranges for index in range(first, last + 1)}
    assert found == {index for index, mark in enumerate(marked) if mark}
    assert len(ranges) == sum(mark for mark, _ in groupby(marked))


@given(st.text("0123456789-,", max_size=20), st.integers(1, 50))
def test_a_text_gives_rising_ranges_within_the_batch_or_none(text: str, count: int) -> None:
    ends = [index for pair in parse_ranges(text, count) for index in pair]
    assert ends == sorted(ends)
    assert all(0 <= index < count for index in ends)


def test_an_error_names_a_bounded_number_of_ranges() -> None:
    text = ranges_text(ranges_of([True, False] * 5000))
    assert text.count(",") == RANGES_MAX - 1
    assert parse_ranges(text, 10_000)[-1] == (1998, 1998)
