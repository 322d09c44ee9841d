# SPDX-License-Identifier: Apache-2.0
"""Reads of a start: none after a clean stop, the log past the recovery point after a kill (rule T5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.model import BrokerEpoch, Offset
from tidemark.storage import files
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery import log_loader as recovery_module
from tidemark.storage.segments import scan as scan_module
from tidemark.storage.segments import segment as segment_module
from tidemark.storage.segments.index import INDEX_SUFFIX, TIME_INDEX_SUFFIX

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all

BATCH = make_batch(["x" * 100] * 10)
LENGTH = len(BATCH.data)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position, length) of each read of a log file."""
    seen: list[tuple[int, int]] = []

    def read(descriptor: int, length: int, position: int) -> bytes:
        seen.append((position, length))
        return files.read_exactly(descriptor, length, position)

    for module in (recovery_module, scan_module, segment_module):
        monkeypatch.setattr(module, "read_exactly", read)
    return seen


def opened(path: Path, **configs: str) -> tuple[LogManager, PartitionLog]:
    logs = open_one(path)
    names = {name.replace("_", "."): value for name, value in configs.items()}
    return logs, logs.open(PARTITION, IDENTITY, names)[0]


def append(log: PartitionLog, count: int) -> None:
    lead(log, *[BATCH] * count)


def test_after_a_clean_stop_not_a_byte_of_a_log_is_read(directory: Path, reads: list[tuple[int, int]]) -> None:
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    append(log, 35)
    logs.close_clean(BrokerEpoch(1), {})
    reads.clear()
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    assert log.log_end_offset == 350
    assert reads == []
    logs.close()


def test_a_recovered_log_is_not_read_again_after_a_clean_stop(directory: Path, reads: list[tuple[int, int]]) -> None:
    logs, log = opened(directory)
    append(log, 20)
    logs.close()  # a kill
    logs, log = opened(directory)
    assert log.log_end_offset == 200
    assert reads
    logs.close_clean(BrokerEpoch(1), {})
    reads.clear()
    logs, log = opened(directory)
    assert log.log_end_offset == 200
    assert reads == []
    logs.close()


def test_after_a_kill_records_below_the_recovery_point_are_not_read(
    directory: Path, reads: list[tuple[int, int]]
) -> None:
    logs, log = opened(directory)
    append(log, 1100)
    logs.checkpoint({})
    durable = log.size_bytes()
    append(log, 30)
    logs.close()
    reads.clear()
    logs, log = opened(directory)
    assert log.log_end_offset == 11_300
    assert sum(length for _, length in reads) < 100 * LENGTH
    assert min(position for position, _ in reads) > durable - 2 * 4096 - LENGTH
    assert len(read_all(log)) == 1130 * LENGTH
    logs.close()


def test_a_segment_rolled_after_the_last_checkpoint_is_read_from_the_recovery_point_on(
    directory: Path, reads: list[tuple[int, int]]
) -> None:
    logs, log = opened(directory, segment_bytes=str(1200 * LENGTH))
    append(log, 1100)
    logs.checkpoint({})
    durable = log.size_bytes()
    append(log, 150)  # the segment is full, the next one has begun
    logs.close()
    reads.clear()
    logs, log = opened(directory, segment_bytes=str(1200 * LENGTH))
    assert log.log_end_offset == 12_500
    assert sum(length for _, length in reads) < 300 * LENGTH
    assert not [position for position, _ in reads if 50 * LENGTH < position < durable - 2 * 4096 - LENGTH]
    assert len(read_all(log)) == 1250 * LENGTH
    logs.close()


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("content", [None, b"", b"no index"])
def test_a_missing_or_wrong_index_is_rebuilt(directory: Path, suffix: str, content: bytes | None) -> None:
    logs, log = opened(directory)
    append(log, 40)
    whole = read_all(log)
    logs.close_clean(BrokerEpoch(1), {})
    file = directory / str(PARTITION) / f"{0:020d}{suffix}"
    before = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    logs, log = opened(directory)
    assert read_all(log) == whole
    assert log.read(Offset(205), end_offset=400, max_bytes=1) == whole[20 * LENGTH : 21 * LENGTH]
    lead(log, BATCH)
    logs.close_clean(BrokerEpoch(2), {})
    assert len(file.read_bytes()) >= len(before)
    logs, log = opened(directory)
    assert log.log_end_offset == 410
    logs.close()


def test_repeated_kills_read_nothing_below_the_recovery_point(directory: Path, reads: list[tuple[int, int]]) -> None:
    logs, log = opened(directory)
    append(log, 300)
    logs.close_clean(BrokerEpoch(1), {})
    durable = 300 * LENGTH
    logs, log = opened(directory)
    append(log, 5)
    logs.close()
    for _ in range(2):
        reads.clear()
        logs, log = opened(directory)
        assert log.log_end_offset == 3050
        assert min(position for position, _ in reads) > durable - 2 * 4096 - LENGTH
        logs.close()


def test_an_end_mark_past_the_recovery_point_does_not_outlive_the_scan(directory: Path) -> None:
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    append(log, 12)  # the first segment is rolled, above the recovery point
    logs.close()
    file = directory / str(PARTITION) / f"{0:020d}.log"
    content = bytearray(file.read_bytes())
    content[9 * LENGTH + 100] ^= 1  # a torn tail: nothing valid follows
    file.write_bytes(content)
    (directory / str(PARTITION) / f"{100:020d}.log").unlink()
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    assert log.log_end_offset == 90
    lead(log, make_batch(["y"] * 10))
    logs.checkpoint({})
    whole = read_all(log)
    logs.close()
    assert len(whole) < 10 * LENGTH
    file.write_bytes(whole.ljust(10 * LENGTH, b"\0"))  # offset and size as the mark had them
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    assert log.log_end_offset == 100
    assert log.size_bytes() == len(whole)
    logs.close()


@pytest.mark.parametrize("number", [0, 3])
def test_the_first_use_of_a_lost_index_rewrites_it(directory: Path, reads: list[tuple[int, int]], number: int) -> None:
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    append(log, 36)
    logs.close_clean(BrokerEpoch(1), {})
    file = directory / str(PARTITION) / f"{number * 100:020d}{INDEX_SUFFIX}"
    before = file.read_bytes()
    file.unlink()
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    assert log.read(Offset(number * 100 + 45), end_offset=360, max_bytes=1)
    assert file.read_bytes() == before
    logs.close()
    reads.clear()
    logs, log = opened(directory, segment_bytes=str(10 * LENGTH))
    assert reads == []  # the end mark was rewritten, too
    logs.close()
