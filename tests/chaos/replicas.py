"""All replicas of a stopped cluster, compared below the high watermark, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tidemark.model import BrokerId, Offset, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.storage.manager import LogManager, open_logs

_READ_BYTES = 1 << 20


def differences(directories: dict[int, Path], scratch: Path) -> list[str]:
    """Where two replicas differ below the lower of their high watermarks; `directories` by broker.

    The logs are opened from copies: what a round left behind is evidence.
    """
    opened: dict[int, LogManager] = {}
    try:
        for broker, directory in directories.items():
            copy = scratch / f"copy-{broker}"
            shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.tmp"))
            cluster_id = json.loads((copy / "meta.json").read_text())["cluster_id"]
            opened[broker] = open_logs([copy], cluster_id=cluster_id, broker_id=BrokerId(broker))
        return _compare(opened)
    finally:
        for logs in opened.values():
            logs.close()
        for broker in directories:
            shutil.rmtree(scratch / f"copy-{broker}", ignore_errors=True)


def _compare(opened: dict[int, LogManager]) -> list[str]:
    found: list[str] = []
    partitions = sorted({partition for logs in opened.values() for partition in logs.replicas()})
    for partition in partitions:
        contents = {
            broker: _committed(logs, partition) for broker, logs in opened.items() if partition in logs.replicas()
        }
        first, *others = contents
        for other in others:
            found += _differ(partition, first, contents[first], other, contents[other])
    return found


def _committed(logs: LogManager, partition: TopicPartition) -> dict[int, bytes]:
    """Each batch below the high watermark, by its base offset."""
    log, recovered = logs.open(partition, logs.replicas()[partition], {})
    assert recovered.damaged is None, f"{partition}: {recovered.damaged}"
    batches: dict[int, bytes] = {}
    offset = int(log.log_start_offset)
    while offset < recovered.high_watermark:
        data = log.read(Offset(offset), end_offset=recovered.high_watermark, max_bytes=_READ_BYTES)
        assert data, f"{partition}: nothing at {offset} below the high watermark"
        for batch in check_batches(data):
            batches[batch.envelope.base_offset] = batch.data
            offset = batch.envelope.next_offset
    return batches


def _differ(
    partition: TopicPartition, one: int, mine: dict[int, bytes], other: int, theirs: dict[int, bytes]
) -> list[str]:
    end = min(max(mine, default=-1), max(theirs, default=-1))
    below = sorted(offset for offset in {*mine, *theirs} if offset <= end)
    wrong = next((offset for offset in below if mine.get(offset) != theirs.get(offset)), None)
    return [] if wrong is None else [f"{partition}: brokers {one} and {other} differ at {wrong}"]
