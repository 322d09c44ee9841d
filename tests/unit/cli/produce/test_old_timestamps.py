# SPDX-License-Identifier: Apache-2.0
"""A warning names the first time before 2000, with the unit that the numbers seem to have."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tidemark.cli.produce.old_timestamps import OldTimestamps
from tidemark.record.schema import SCHEMA

NOW_S = 1_790_000_000


def rows(*stamps_us: int | None) -> pa.RecordBatch:
    count = len(stamps_us)
    stamps = pa.array(stamps_us, pa.int64()).cast(SCHEMA.field("timestamp").type)
    columns = [pa.nulls(count, pa.binary()), pa.array([b"v"] * count), stamps, pa.nulls(count, SCHEMA.field(3).type)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def warned(unit: str, *stamps_us: int | None) -> list[str]:
    found: list[str] = []
    OldTimestamps(unit, found.append).look_at(rows(*stamps_us))
    return found


@pytest.mark.parametrize(
    ("unit", "stamp_us", "ends"),
    [
        ("us", NOW_S, "1970-01-01T00:29:50Z, before 2000: the column seems to have seconds; if so, add "
         "--timestamp-unit s"),
        ("us", NOW_S * 1000, "the column seems to have milliseconds; if so, add --timestamp-unit ms"),
        ("ms", NOW_S * 1000, "the column seems to have seconds; if so, add --timestamp-unit s"),
        ("us", 560_000_000 * 10**6, "1987-09-30T11:33:20Z, before 2000: retention.ms may delete it soon; if the column "
         "has another unit, add --timestamp-unit"),
        ("s", -5 * 10**6, "1969-12-31T23:59:55Z, before 2000: retention.ms may delete it soon; if the column has "
         "another unit, add --timestamp-unit"),
    ],
)  # fmt: skip
def test_a_time_before_2000_is_warned_of_with_the_likely_unit(unit: str, stamp_us: int, ends: str) -> None:
    (sentence,) = warned(unit, NOW_S * 10**6, stamp_us)
    assert sentence.startswith("a record has the time 19")
    assert sentence.endswith(ends)


def test_present_times_and_times_of_sending_are_fine() -> None:
    assert warned("us", NOW_S * 10**6, None) == []
    assert warned("us", None) == []
    assert warned("us") == []


def test_the_warning_comes_once() -> None:
    found: list[str] = []
    old = OldTimestamps("us", found.append)
    for _ in range(3):
        old.look_at(rows(7))
    assert len(found) == 1
