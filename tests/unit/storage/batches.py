# SPDX-License-Identifier: Apache-2.0
"""Small batches and log directories for the tests of storage."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tidemark.model import BrokerId, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.ports import Log
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log.partition_log import PartitionLog

PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("topic-one", "incarnation-one")
CLUSTER = "cluster-one"
BROKER = BrokerId(1)


def latest_epoch(log: PartitionLog) -> int:
    """The leader epoch that appends continue, -1 for none."""
    epochs = log.state().epochs
    return epochs[-1].leader_epoch if epochs else -1


def make_batch(
    values: Sequence[str],
    *,
    timestamp_us: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    pending: bool = False,
) -> Batch:
    """One batch as a producer sends it; the i-th record has timestamp_us + i."""
    rows = from_columns(
        keys=None,
        values=[value.encode() for value in values],
        timestamps_us=[timestamp_us + number for number in range(len(values))],
    )
    data = build_batch(
        rows, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence, pending=pending
    )
    return Batch(parse_envelope(data), data)


def make_pending(values: Sequence[str], *, producer_id: int, producer_epoch: int = 0, sequence: int = 0) -> Batch:
    return make_batch(values, producer_id=producer_id, producer_epoch=producer_epoch, sequence=sequence, pending=True)


def make_marker(
    *, producer_id: int, producer_epoch: int = 1, commit: bool = True, coordinator_epoch: int = 0, timestamp_us: int = 0
) -> Batch:
    """The end of a transaction."""
    data = build_marker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        marker=EndMarker(commit, coordinator_epoch),
        timestamp_us=timestamp_us,
    )
    return Batch(parse_envelope(data), data)


def at(batch: Batch, base_offset: int, leader_epoch: int = 0) -> Batch:
    """The batch as stamped by a leader, for appends of a follower."""
    return stamped(batch, base_offset=base_offset, leader_epoch=leader_epoch)


def lead(log: Log, *batches: Batch, epoch: int = 0) -> Offset:
    """Append as a leader does."""
    return log.append(batches, base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(epoch), stamp=True)


def follow(log: Log, *batches: Batch) -> Offset:
    """Append as a follower does."""
    return log.append(batches, base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(0), stamp=False)


@lru_cache(maxsize=1 << 12)
def checked(data: bytes) -> tuple[Batch, ...]:
    """The batches, which pass the checks of a reader; the same bytes are checked once."""
    return tuple(check_batches(data))


def read_all(log: Log, first: int | None = None) -> bytes:
    """Every byte from the log start, or from the base offset of a batch, to the log end; each batch is checked."""
    parts: list[bytes] = []
    offset, end = int(log.log_start_offset if first is None else first), log.log_end_offset
    while offset < end:
        data = log.read(Offset(offset), end_offset=end, max_bytes=1 << 20)
        assert data
        batches = checked(data)
        assert batches[0].envelope.base_offset <= offset < batches[-1].envelope.next_offset
        offset = batches[-1].envelope.next_offset
        parts.append(data)
    assert offset == end
    return b"".join(parts)


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory on a memory file system where there is one: a syncfs there waits for no other writes."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="tidemark-test-", dir=shm if shm.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # a thread of the log may be deleting files, too


def open_one(path: Path, *, stray_grace_ms: int = 1 << 40, open_files_max: int = 64) -> LogManager:
    return open_logs(
        [path], cluster_id=CLUSTER, broker_id=BROKER, stray_grace_ms=stray_grace_ms, open_files_max=open_files_max
    )
