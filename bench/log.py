# SPDX-License-Identifier: Apache-2.0
"""The log on disk: append, sequential read and the scan after a kill, each compared with a minimal program.

Peers, in the same run and on the same file system: a loop of write(2), a loop of pread(2), a pass of CRC-32C over the
same bytes; for compaction, a loop with a dict over records in memory. Batches of 64 KiB; the appends include the checks
of every replicated batch. Then 1,000 logs are opened (`measuring/log_open.py`).
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import google_crc32c
from tidemark.model import BrokerId, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log.cleaner import CleanerSettings, clean_log

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.log_open import measure, replicas_held

PARTITION = TopicPartition("bench", 0)
IDENTITY = ReplicaIdentity("topic", "incarnation")
BATCHES = 4000
RECORDS = 560
RECORD_BYTES = 100
READ_BYTES = 1 << 20
ROUNDS = 3
COMPACTED = 3600
"""Batches of the log that is compacted: two million records."""
KEYS = 200_000
PARTITIONS = 1000
PEERS = {
    "append": "plain_write",
    "append_unchecked": "plain_write",
    "read": "plain_read",
    "recovery_scan": "plain_scan",
}


def open_at(path: Path) -> LogManager:
    return open_logs([path], cluster_id="bench", broker_id=BrokerId(0))


def make_data() -> bytes:
    rows = from_columns(keys=None, values=[os.urandom(RECORD_BYTES)] * RECORDS, timestamps_us=list(range(RECORDS)))
    return bytes(build_batch(rows))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def append(path: Path, data: bytes, *, checked: bool) -> float:
    """Seconds of the appends, without the creation of the directory, which syncs."""
    logs = open_at(path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    batch = Batch(parse_envelope(data), data)
    started = time.perf_counter()
    for _ in range(BATCHES):
        if checked:
            batch = check_batch(data)
        log.append((batch,), base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(1), stamp=True)
    seconds = time.perf_counter() - started
    logs.close()
    return seconds


def read(path: Path) -> float:
    """Seconds of the reads, without opening the log."""
    logs = open_at(path)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    end = recovered.log_end_offset
    started = time.perf_counter()
    position, offset, size = 0, 0, log.size_bytes()
    each = size // BATCHES
    while offset < end:
        data = log.read(Offset(offset), end_offset=end, max_bytes=READ_BYTES)
        assert data
        position += len(data)
        offset += RECORDS * (len(data) // each)
    assert position == size
    seconds = time.perf_counter() - started
    logs.close()
    return seconds


def open_after_kill(path: Path) -> None:
    logs = open_at(path)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.log_end_offset == BATCHES * RECORDS
    assert recovered.damaged is None
    logs.close()


def plain_write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(BATCHES):
        os.write(descriptor, data)
    os.close(descriptor)


def plain_read(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    position = 0
    while data := os.pread(descriptor, READ_BYTES, position):
        position += len(data)
    os.close(descriptor)


def plain_scan(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    while data := os.read(descriptor, READ_BYTES):
        google_crc32c.value(data)
    os.close(descriptor)


def keyed_data(seed: int) -> tuple[bytes, list[bytes], list[bytes]]:
    """A batch of records of KEYS keys, each record 100 bytes with its key."""
    rng = random.Random(seed)
    keys = [b"key-%012d" % rng.randrange(KEYS) for _ in range(RECORDS)]
    values = [rng.randbytes(RECORD_BYTES - len(key)) for key in keys]
    return bytes(build_batch(from_columns(keys, values, list(range(RECORDS))))), keys, values


def compact(path: Path, batches: Sequence[bytes]) -> float:
    """Seconds of the cleaning, with its writes and syncs."""
    logs = open_at(path)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": str(64 << 20)})
    parsed = [Batch(parse_envelope(data), data) for data in batches]
    for start in range(0, len(parsed), 100):
        some = parsed[start : start + 100]
        log.append(some, base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(1), stamp=True)
    started = time.perf_counter()
    done = clean_log(log, log.log_end_offset, CleanerSettings(), now_us=0, pace=lambda _: None)
    seconds = time.perf_counter() - started
    assert 0 < done.bytes_after < done.bytes_before
    records = done.clean_point
    logs.close()
    return records / seconds


def plain_compact(path: Path, rows: Sequence[tuple[list[bytes], list[bytes]]]) -> float:
    """Records per second of a loop over records in memory: fill a dict, then write its records."""
    started = time.perf_counter()
    latest: dict[bytes, int] = {}
    number = 0
    for keys, _ in rows:
        for key in keys:
            latest[key] = number
            number += 1
    number = 0
    with path.open("wb") as target:
        for keys, values in rows:
            for key, value in zip(keys, values, strict=True):
                if latest[key] == number:
                    target.write(key)
                    target.write(value)
                number += 1
        os.fsync(target.fileno())
    return number / (time.perf_counter() - started)


def compaction(root: Path) -> tuple[float, float]:
    """Records per second of Tidemark and of the plain loop, for a log of COMPACTED batches."""
    made = [keyed_data(seed) for seed in range(COMPACTED)]
    rates = [
        (
            compact(root / f"compacted-{number}", [data for data, _, _ in made]),
            plain_compact(root / f"plain-compacted-{number}", [(keys, values) for _, keys, values in made]),
        )
        for number in range(ROUNDS)
    ]
    return statistics.median(ours for ours, _ in rates), statistics.median(plain for _, plain in rates)


def rounds(root: Path, data: bytes) -> dict[str, list[float]]:
    """Seconds of each step of ROUNDS rounds; Tidemark and the plain loops take turns."""
    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    for number in range(ROUNDS):
        path, raw, plain = root / f"log-{number}", root / f"raw-{number}", root / f"plain-{number}"
        note("plain_write", timed(partial(plain_write, plain, data)))
        note("append", append(path, data, checked=True))
        note("recovery_scan", timed(partial(open_after_kill, path)))
        note("plain_scan", timed(partial(plain_scan, plain)))
        note("read", read(path))
        note("plain_read", timed(partial(plain_read, plain)))
        note("append_unchecked", append(raw, data, checked=False))
        for used in root.iterdir():
            shutil.rmtree(used) if used.is_dir() else used.unlink()
    return seconds


def open_figures(root: Path, data: bytes, size_bytes: int) -> dict[str, Figure]:
    """Figures of opening many logs, each with that of its plain loop."""
    figures: dict[str, Figure] = {}
    for name, opened in measure(root, data, partitions=PARTITIONS, size_bytes=size_bytes).items():
        figures[name] = Figure(opened.seconds, "s", opened.peer_seconds, lower_is_better=True)
        print(f"{name}: {PARTITIONS:,} logs, {opened.scanned_bytes / 1e9:.1f} GB scanned")
    kilobytes, descriptors = replicas_held(root, data, replicas=10 * PARTITIONS, with_records=PARTITIONS)
    figures["replica_kb"] = Figure(kilobytes, "kB")
    figures["replica_descriptors"] = Figure(descriptors, "open files")
    return figures


def main() -> int:
    parser = flags_of("log", __doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the opened logs (default: 10)")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-log-"))
    data = make_data()
    megabytes = BATCHES * len(data) / 1e6
    try:
        seconds = rounds(root, data)
        compacted, plain_compacted = compaction(root)
        shutil.rmtree(root)
        root.mkdir()
        opened = open_figures(root, data, int(arguments.gigabytes * 1e9))
    finally:
        shutil.rmtree(root)
    rate = {name: megabytes / statistics.median(values) for name, values in seconds.items()}
    figures = {name: Figure(rate[name], "MB/s", rate[peer]) for name, peer in PEERS.items()}
    figures["compaction_per_s"] = Figure(compacted, "records/s", plain_compacted)
    report("log", figures | opened)
    return 0


if __name__ == "__main__":
    sys.exit(main())
