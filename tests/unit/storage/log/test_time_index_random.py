# SPDX-License-Identifier: Apache-2.0
"""Offsets by time, earliest, latest and newest, over rolled and trimmed segments, against a list of records (K1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.model import Offset
from tidemark.ports import TimestampOffset
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one

CONFIGS = {"segment.bytes": "3000", "index.interval.bytes": "1", "file.delete.delay.ms": "0"}


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 60)),
        st.tuples(st.just("trim"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(60, 100), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


def first_at_or_after(records: dict[int, int], start: int, end: int, time_us: int) -> TimestampOffset | None:
    found = [offset for offset in sorted(records) if start <= offset < end and records[offset] >= time_us]
    return TimestampOffset(records[found[0]], Offset(found[0])) if found else None


def check(log: PartitionLog, records: dict[int, int], limit: int) -> None:
    start = int(log.log_start_offset)
    held = [time_us for offset, time_us in records.items() if start <= offset < limit]
    for time_us in {0, 1, 30, 63, 64, *(one + more for one in held for more in (0, 1))}:
        expected = first_at_or_after(records, start, limit, time_us)
        assert log.offset_for_timestamp(time_us, end_offset=Offset(limit)) == expected, f"at or after {time_us}"
    newest = log.max_timestamp(end_offset=Offset(limit))
    assert newest == (first_at_or_after(records, start, limit, max(held)) if held else None), "the newest record"


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_every_timestamp_finds_the_same_record_as_a_linear_search(path: Path, steps: list[Step]) -> None:
    directory = path / f"{len(list(path.iterdir()))}"
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    records: dict[int, int] = {}
    ends = [0]
    for what, number, time_us in steps:
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        if what == "append":
            lead(log, make_batch(["v" * 120] * number, timestamp_us=time_us))
            records.update({end + index: time_us + index for index in range(number)})
            ends.append(end + number)
        elif what == "trim":
            log.trim(Offset(start + (end - start) * number // 100))
        elif what == "truncate":
            at = start + (end - start) * number // 100
            log.truncate(Offset(at))
            records = {offset: time for offset, time in records.items() if offset < log.log_end_offset}
            ends = [one for one in ends if one <= log.log_end_offset]
        elif what == "checkpoint":
            logs.checkpoint({PARTITION: log.log_end_offset})
        else:
            logs.checkpoint({PARTITION: log.log_end_offset})
            logs.close()
            logs = open_one(directory)
            log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
        end = int(log.log_end_offset)
        check(log, records, end)
        middle = (log.log_start_offset + end) // 2
        boundary = max((one for one in ends if log.log_start_offset <= one <= middle), default=end)
        check(log, records, boundary)
    logs.close()


def test_the_newest_remaining_record_is_found_after_compaction_removed_a_newer_one(path: Path) -> None:
    logs = open_one(path / "newest")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["young"], timestamp_us=60), make_batch(["old"], timestamp_us=5), make_batch(["older"]))
    log.trim(Offset(1))
    assert log.max_timestamp(end_offset=Offset(3)) == TimestampOffset(5, Offset(1))
    logs.close()
