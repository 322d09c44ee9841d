# SPDX-License-Identifier: Apache-2.0
"""The size of a log, and of its part past an offset, from memory alone."""

from __future__ import annotations

import pytest
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log import partition_log

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one


def test_bytes_past_an_offset_add_up_over_segments() -> None:
    with memory_directory() as path:
        logs: LogManager = open_one(path)
        try:
            log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "2000"})
            assert (log.segment_count(), log.bytes_from(0)) == (1, 0)
            for number in range(20):
                lead(log, make_batch([f"{number:03d}"] * 10, timestamp_us=number))
            assert log.segment_count() > 2
            size_bytes = log.size_bytes()
            assert log.bytes_from(0) == size_bytes
            assert log.bytes_from(200) == log.bytes_from(999) == 0
            assert log.bytes_from(190) == size_bytes // 20, "batches are alike"
            left = [log.bytes_from(offset) for offset in range(201)]
            assert left == sorted(left, reverse=True)
            assert abs(left[100] - size_bytes / 2) < size_bytes / 100
        finally:
            logs.close()


@pytest.mark.parametrize("setting", ["segment.bytes", "segment.ms"])
def test_a_log_with_very_many_segments_makes_larger_ones(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "SEGMENTS_MAX", 5)
    monkeypatch.setattr(partition_log, "LARGER_BYTES", 4_000)
    with memory_directory() as path:
        logs: LogManager = open_one(path)
        try:
            log, _ = logs.open(PARTITION, IDENTITY, {setting: "1024" if setting == "segment.bytes" else "1"})
            for number in range(40):
                lead(log, make_batch([f"{number:03d}"], timestamp_us=number * 10_000))
            beyond_bytes = sum(path.stat().st_size for path in sorted(log.path.glob("*.log"))[5:])
            assert log.segment_count() <= 5 + 1 + beyond_bytes // 3_000
            assert log.segment_count() < 20
        finally:
            logs.close()
