# SPDX-License-Identifier: Apache-2.0
"""Ten thousand replicas: descriptors and memory stay within bounds."""

from __future__ import annotations

import contextlib
import gc
import os
import tracemalloc
from pathlib import Path

import pytest
from tidemark.model import Offset, ReplicaIdentity, TopicPartition
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.segments.loaded_indexes import ENTRY_BYTES, LoadedIndexes

from tests.unit.storage.batches import BROKER, CLUSTER, IDENTITY, PARTITION, lead, make_batch, open_one, read_all

OPEN_FILES_MAX = 64
BATCH = make_batch(["x" * 100] * 10)
LENGTH = len(BATCH.data)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def open_many(logs: LogManager, numbers: range) -> list[PartitionLog]:
    return [
        logs.open(TopicPartition("flights", number), ReplicaIdentity("topic", f"i{number}"), {})[0]
        for number in numbers
    ]


def test_ten_thousand_replicas_of_which_hundreds_hold_records_keep_few_descriptors_and_little_memory(
    directory: Path,
) -> None:
    logs = open_logs(
        [directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER, open_files_max=OPEN_FILES_MAX
    )
    gc.collect()
    before = open_descriptors()
    opened = open_many(logs, range(8_000))  # allocations take four times as long where they are traced
    tracemalloc.start()
    opened += open_many(logs, range(8_000, 10_000))
    empty_bytes = tracemalloc.get_traced_memory()[0]
    assert empty_bytes / 2_000 < 8_000
    busy = opened[:300]
    for log in busy:
        lead(log, *[BATCH] * 20)
    for log in busy:
        assert log.read(Offset(50), end_offset=200, max_bytes=LENGTH) is not None
    busy_bytes = tracemalloc.get_traced_memory()[0] - empty_bytes
    tracemalloc.stop()
    assert busy_bytes / 300 < 8_000
    gc.collect()
    assert open_descriptors() - before <= OPEN_FILES_MAX + 4  # the rosters of both directories
    logs.close()


def test_a_deleted_log_keeps_no_descriptor_of_segments_that_wait_for_a_checkpoint(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": str(2 * LENGTH)})
    for _ in range(8):
        lead(log, BATCH)
    log.trim(Offset(40))
    logs.set_aside(PARTITION, "delete")
    assert len(logs._pool) == 0, "a descriptor keeps the space of a deleted file"
    logs.close()


@pytest.mark.parametrize("end", ["trimmed", "reset", "closed"])
def test_the_pool_keeps_no_descriptor_of_a_segment_that_left_before_a_slow_reader_opened_it(
    directory: Path, end: str
) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": str(2 * LENGTH)})
    for _ in range(8):
        lead(log, BATCH)
    before = log.segments.all
    if end == "trimmed":
        log.trim(Offset(40))
        logs.checkpoint({PARTITION: Offset(40)})
    elif end == "reset":
        log.reset(Offset(0))
    else:
        log.close()
    for segment in before:
        with contextlib.suppress(FileNotFoundError):
            log.segments.open(segment)
    assert len(logs._pool) == (2 if end == "trimmed" else 0), "a descriptor keeps the space of a deleted file"
    logs.close()


def test_many_appends_keep_only_the_last_batches_in_memory(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"index.interval.bytes": "1000000"})
    lead(log, *[BATCH] * 2000)
    tracemalloc.start()
    for _ in range(20):
        lead(log, *[BATCH] * 500)
    grown_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown_bytes < 40_000
    logs.close()


def test_indexes_of_old_segments_are_unloaded_and_read_again(directory: Path) -> None:
    logs = open_one(directory)
    pool = logs._pool = DescriptorPool(8, index_limit_bytes=20 * ENTRY_BYTES)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": str(24 * LENGTH)})
    for _ in range(20):
        lead(log, *[BATCH] * 12)
    segments = log.segments.all
    assert len(segments) == 10
    for _ in range(2):
        for number in range(240):
            data = log.read(Offset(number * 10 + 5), end_offset=2400, max_bytes=1)
            assert data is not None
            assert len(data) == LENGTH
            assert int.from_bytes(data[:8], "little") == number * 10
            assert 0 < pool.indexes.total_bytes <= 20 * ENTRY_BYTES
    assert sum(segment.index is not None for segment in segments) <= 4
    log.truncate(Offset(300))  # an old segment is appended to again: its index stays
    lead(log, BATCH)
    assert len(log.segments.all) == 2
    for number in (1, 35, 200):
        logs.open(TopicPartition("other", number), ReplicaIdentity("topic", "i"), {})
    lead(log, *[BATCH] * 3)
    assert log.log_end_offset == 340
    logs.close()
    assert pool.indexes.total_bytes == 0


def test_a_checkpoint_unloads_the_index_of_an_idle_log(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"index.interval.bytes": "1"})
    lead(log, *[BATCH] * 1000)
    logs.checkpoint({})
    assert log.segments.all[-1].index is not None
    logs.checkpoint({})
    assert log.segments.all[-1].index is None
    assert log.read(Offset(35), end_offset=10_000, max_bytes=1) == read_all(log)[3 * LENGTH : 4 * LENGTH]
    lead(log, BATCH)
    index = log.segments.all[-1].index
    assert index is not None
    assert list(index.offsets) == list(range(0, 10_010, 10))
    logs.checkpoint({})
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {"index.interval.bytes": "1"})
    assert recovered.log_end_offset == 10_010
    assert len(read_all(log)) == 1001 * LENGTH
    logs.close()


class Old:
    """A segment that counts how often its index is unloaded."""

    def __init__(self) -> None:
        self.forgotten = 0

    def forget_index(self) -> None:
        self.forgotten += 1


def test_the_least_recently_used_index_is_unloaded_first_and_a_dropped_one_never() -> None:
    indexes = LoadedIndexes(limit_bytes=30 * ENTRY_BYTES)
    first, second, third, fourth = (Old() for _ in range(4))
    indexes.use(first, 10)
    indexes.use(second, 10)
    indexes.use(third, 10)
    indexes.use(first, 10)
    indexes.drop(second)
    indexes.use(fourth, 15)
    assert [old.forgotten for old in (first, second, third, fourth)] == [0, 0, 1, 0]
    large = Old()
    indexes.use(large, 1000)  # one index is kept in any case
    assert large.forgotten == 0
    assert first.forgotten == fourth.forgotten == 1
