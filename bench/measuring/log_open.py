# SPDX-License-Identifier: Apache-2.0
"""Opening many logs: 1,000 partitions with 10 GB in two directories, after a clean shutdown and after a kill.

The recovery threads of a broker open the logs, with its progress. The benchmark writes the data through the logs, in
appends of many batches, so that the data has the indexes, checkpoints and segments of a real broker. The page cache is
not dropped, since a benchmark has no permission for that.

Peers over the same files: for a clean shutdown, a loop that opens each file and reads all but the records; for a kill,
a loop that reads the bytes to scan and computes their CRC-32C.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import google_crc32c
from tidemark.broker.logs.recovery_progress import RecoveryProgress
from tidemark.broker.logs.recovery_threads import RecoveryThreads
from tidemark.model import BrokerEpoch, BrokerId, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log.partition_log import PartitionLog

TOPIC = "bench"
APPEND_BATCHES = 100
READ_BYTES = 1 << 20
WAIT_S = 300.0
OPEN_FILES_MAX = 512
Ends = dict[TopicPartition, Offset]


class Opened(NamedTuple):
    """Seconds of Tidemark and of the plain loop, and the bytes that both scanned."""

    seconds: float
    peer_seconds: float
    scanned_bytes: int = 0


def identity(number: int) -> ReplicaIdentity:
    return ReplicaIdentity("topic", f"incarnation-{number}")


def manager(paths: Sequence[Path], *, open_files_max: int = 4096) -> LogManager:
    return open_logs(paths, cluster_id="bench", broker_id=BrokerId(0), open_files_max=open_files_max)


def append(log: PartitionLog, batch: Batch, count: int) -> Offset:
    while count:
        some = min(count, APPEND_BATCHES)
        log.append((batch,) * some, base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(1), stamp=True)
        count -= some
    return log.log_end_offset


def fill(logs: LogManager, data: bytes, *, partitions: int, batches: int) -> Ends:
    """Append this number of batches to each partition; returns the log end offsets."""
    batch = Batch(parse_envelope(data), data)
    ends: Ends = {}
    for number in range(partitions):
        partition = TopicPartition(TOPIC, number)
        log, _ = logs.open(partition, identity(number), {})
        ends[partition] = append(log, batch, batches)
    return ends


def open_all(paths: Sequence[Path], ends: Ends) -> tuple[LogManager, float]:
    """Seconds from the reading of the directories until every log is open."""
    started = time.perf_counter()
    logs = manager(paths)
    openers = RecoveryThreads(logs, progress=RecoveryProgress(logs, [str(path) for path in paths], Metrics()))
    left = threading.Semaphore(0)
    wrong: list[object] = []

    def open_one(partition: TopicPartition) -> None:
        try:
            _, recovered = logs.open(partition, identity(partition.partition), {})
            if recovered.log_end_offset != ends[partition] or recovered.damaged is not None:
                wrong.append(recovered)
        finally:
            left.release()

    for partition in ends:
        openers.open(partition, partial(open_one, partition))
    for _ in ends:
        assert left.acquire(timeout=WAIT_S)
    seconds = time.perf_counter() - started
    openers.stop()
    assert not wrong, wrong[0]
    return logs, seconds


def plain_open(paths: Sequence[Path]) -> float:
    """Seconds of a loop that opens each file of each log, and reads those without records."""
    started = time.perf_counter()
    for path in paths:
        for replica in os.scandir(path):
            if not replica.is_dir():
                continue
            for name in os.listdir(replica.path):
                descriptor = os.open(f"{replica.path}/{name}", os.O_RDONLY)
                size = os.fstat(descriptor).st_size
                if not name.endswith(".log"):
                    os.read(descriptor, size)
                os.close(descriptor)
    return time.perf_counter() - started


def plain_scan(paths: Sequence[Path], from_bytes: int) -> tuple[float, int]:
    """Seconds of a loop that reads each log from a position and computes its CRC-32C; and the bytes."""
    started = time.perf_counter()
    total = 0
    for path in paths:
        for log in path.glob("*/*.log"):
            descriptor = os.open(log, os.O_RDONLY)
            position = from_bytes
            while data := os.pread(descriptor, READ_BYTES, position):
                google_crc32c.value(data)
                position += len(data)
            os.close(descriptor)
            total += max(position - from_bytes, 0)
    return time.perf_counter() - started, total


def replicas_held(root: Path, data: bytes, *, replicas: int, with_records: int) -> tuple[float, int]:
    """(kilobytes of memory for each, descriptors) of this number of replicas in one process, some with records. The
    process may hold OPEN_FILES_MAX open files."""
    before_bytes, before_files = _resident_bytes(), len(os.listdir("/dev/fd"))
    logs = manager([root / "first", root / "second"], open_files_max=OPEN_FILES_MAX)
    opened = [logs.open(TopicPartition(TOPIC, number), identity(number), {})[0] for number in range(replicas)]
    for log in opened[:with_records]:
        append(log, Batch(parse_envelope(data), data), 1)
    found = (_resident_bytes() - before_bytes) / replicas / 1000, len(os.listdir("/dev/fd")) - before_files
    logs.close()
    return found


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(root: Path, data: bytes, *, partitions: int, size_bytes: int) -> dict[str, Opened]:
    """Open in three cases: all bytes past the recovery points; a clean shutdown; a kill with a tenth more than then."""
    paths = [root / "first", root / "second"]
    batches = max(1, size_bytes // partitions // len(data))
    found: dict[str, Opened] = {}
    try:
        logs = manager(paths)
        ends = fill(logs, data, partitions=partitions, batches=batches)
        logs.close()  # a kill before the first checkpoint
        logs, seconds = open_all(paths, ends)
        found["open_after_kill_unsynced_s"] = Opened(seconds, *plain_scan(paths, 0))
        logs.close_clean(BrokerEpoch(1), ends)
        logs, seconds = open_all(paths, ends)
        found["open_after_clean_stop_s"] = Opened(seconds, plain_open(paths))
        logs.confirm_registration(BrokerEpoch(2), "boot")
        ends = fill(logs, data, partitions=partitions, batches=max(1, batches // 10))
        logs.close()
        logs, seconds = open_all(paths, ends)
        found["open_after_kill_s"] = Opened(seconds, *plain_scan(paths, batches * len(data)))
        logs.close()
    finally:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
    return found
