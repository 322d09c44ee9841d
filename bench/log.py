"""The log on disk: append, sequential read and the scan after a kill, each beside the plainest program that could be.

Peers, in the same run and on the same file system: a loop of write(2), a loop of pread(2), a pass of CRC-32C over the
same bytes. Batches of 64 KiB; the appends include the checks that every replicated batch gets.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
from tidemark.model import BrokerId, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.manager import LogManager, open_logs

PARTITION = TopicPartition("bench", 0)
IDENTITY = ReplicaIdentity("topic", "incarnation")
BATCHES = 4000
RECORDS = 560
RECORD_BYTES = 100
READ_BYTES = 1 << 20
ROUNDS = 3


def open_at(path: Path) -> LogManager:
    return open_logs([path], cluster_id="bench", broker_id=BrokerId(0))


def make_data() -> bytes:
    rows = from_columns(keys=None, values=[os.urandom(RECORD_BYTES)] * RECORDS, timestamps_us=list(range(RECORDS)))
    return bytes(build_batch(rows))


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def append(path: Path, data: bytes, *, checked: bool) -> None:
    logs = open_at(path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    batch = Batch(parse_envelope(data), data)
    for _ in range(BATCHES):
        if checked:
            batch = check_batch(data)
        log.append((batch,), base_offset=log.log_end_offset, leader_epoch=LeaderEpoch(1), stamp=True)
    logs.close()


def read(path: Path) -> float:
    """Seconds of the reading alone, without the opening."""
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


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="tidemark-bench-log-"))
    data = make_data()
    mebibytes = BATCHES * len(data) / (1 << 20)
    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    try:
        for number in range(ROUNDS):
            path, plain = root / f"log-{number}", root / f"plain-{number}"
            note("plain_write", timed(lambda p=plain: plain_write(p, data)))  # type: ignore[misc]
            note("append", timed(lambda p=path: append(p, data, checked=True)))  # type: ignore[misc]
            note("recovery_scan", timed(lambda p=path: open_after_kill(p)))  # type: ignore[misc]
            note("plain_scan", timed(lambda p=plain: plain_scan(p)))  # type: ignore[misc]
            note("read", read(path))
            note("plain_read", timed(lambda p=plain: plain_read(p)))  # type: ignore[misc]
            note("append_unchecked", timed(lambda p=root / f"raw-{number}": append(p, data, checked=False)))  # type: ignore[misc]
            for used in root.iterdir():
                shutil.rmtree(used) if used.is_dir() else used.unlink()
    finally:
        shutil.rmtree(root)
    rate = {name: mebibytes / statistics.median(values) for name, values in seconds.items()}
    peers = {
        "append": "plain_write",
        "append_unchecked": "plain_write",
        "read": "plain_read",
        "recovery_scan": "plain_scan",
    }
    figures = {
        name: {
            "value": round(rate[name]),
            "unit": "MiB/s",
            "peer": round(rate[peer]),
            "ratio": round(rate[name] / rate[peer], 3),
        }
        for name, peer in peers.items()
    }
    for name, figure in figures.items():
        batches = figure["value"] * (1 << 20) / len(data)
        print(f"{name:18} {figure['value']:>6} MiB/s, {batches:>8.0f} batches/s; peer {figure['peer']} MiB/s")
    print(json.dumps({"name": "log", "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
