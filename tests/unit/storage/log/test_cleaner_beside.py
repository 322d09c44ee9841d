# SPDX-License-Identifier: Apache-2.0
"""A cleaner concurrent with an appender, readers, searches by time and flushes, each on a separate thread."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tidemark.model import Offset
from tidemark.record.checks import check_batches
from tidemark.record.payload import with_offsets
from tidemark.storage.files import Descriptor
from tidemark.storage.log.log_segments import LogSegments
from tidemark.storage.segments.segment import Segment

from tests.unit.storage.batches import lead
from tests.unit.storage.log.test_cleaner import clean, cleanable_end, keyed, latest_of, opened, rows_of

BATCHES = 150
KEYS = 20


def test_reads_appends_and_flushes_continue_while_segments_are_swapped(directory: Path) -> None:
    """Every value holds its own offset, so a read of wrong bytes is detected."""
    logs, log = opened(directory)
    rng = random.Random(1)
    finished = threading.Event()

    def append() -> None:
        try:
            for _ in range(BATCHES):
                base = int(log.log_end_offset)
                records = [(b"%d" % rng.randrange(KEYS), b"%d" % (base + number)) for number in range(10)]
                lead(log, keyed(list(records)))
        finally:
            finished.set()

    def repeated(work: Callable[[random.Random], object], seed: int) -> int:
        times, chance = 0, random.Random(seed)
        while not finished.is_set():
            work(chance)
            times += 1
        return times

    def read(chance: random.Random) -> None:
        end = log.log_end_offset
        if not end:
            return
        offset = chance.randrange(int(end))
        cached_only = chance.random() < 0.3
        data = log.read(Offset(offset), end_offset=end, max_bytes=chance.choice((1, 3000)), cached_only=cached_only)
        if data is None:
            assert cached_only
            return
        assert data, f"nothing at {offset} below {end}"
        for batch in check_batches(data):
            assert batch.envelope.next_offset > offset
            rows = with_offsets(batch)
            values: Any = rows.column("value").to_pylist()
            assert [int(value) for value in values] == rows.column("offset").to_pylist()

    def search(chance: random.Random) -> None:
        end = log.log_end_offset
        found = log.offset_for_timestamp(chance.randrange(10), end_offset=end)
        assert found is None or found.offset < end
        newest = log.max_timestamp(end_offset=end)
        # The latest record of each key stays: after more appends the newest below the old end may be removed.
        assert newest is None or newest.timestamp_us == 9 or log.log_end_offset > end

    with ThreadPoolExecutor(6) as threads:
        tasks: list[Future[Any]] = [threads.submit(append), threads.submit(repeated, lambda _: clean(log), 1)]
        tasks += [threads.submit(repeated, read, seed) for seed in (2, 3)]
        tasks += [threads.submit(repeated, search, 4), threads.submit(repeated, lambda _: log.flush(), 5)]
        for task in tasks:
            task.result()
    assert log.broken is None
    before = rows_of(log)
    clean(log)
    assert rows_of(log) == latest_of(before, below=cleanable_end(log, int(log.log_end_offset)))
    assert log.flush() == log.log_end_offset
    logs.close()


def test_a_read_that_meets_a_swap_is_repeated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of the old segment and the opening of its file, another file gets that name."""
    logs, log = opened(directory)
    for number in range(60):
        records: list[tuple[bytes | None, bytes | None]] = [(b"same", b"x" * 50), (b"%d" % number, b"y" * 150)]
        lead(log, keyed(records))
    end = log.log_end_offset
    segments = log.cleaning.view(int(end)).segments  # type: ignore[union-attr]
    asked = Offset(segments[1].next_offset - 1)
    open_segment, swapped = LogSegments.open, threading.Event()

    def open_after_a_swap(self: LogSegments, segment: Segment) -> Descriptor:
        if segment is segments[1] and not swapped.is_set():
            swapped.set()
            clean(log)
        return open_segment(self, segment)

    def look() -> int:
        data = log.read(asked, end_offset=end, max_bytes=1)
        assert data
        return check_batches(data)[0].envelope.base_offset

    monkeypatch.setattr(LogSegments, "open", open_after_a_swap)
    found = look()
    assert swapped.is_set()
    assert found == look()
    logs.close()
