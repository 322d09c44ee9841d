# SPDX-License-Identifier: Apache-2.0
"""All replicas of a stopped cluster, compared byte for byte below the offsets that were read back at the end.

A follower's own high watermark may be lower. The reads at the end are the bound, because all replicas were in sync.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Container
from pathlib import Path

from tidemark.model import BrokerId, Offset, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.payload import with_offsets
from tidemark.storage.directories.log_manager import LogManager, open_logs

_READ_BYTES = 1 << 20

Batches = dict[int, tuple[int, bytes]]
"""Base offset of a batch: (base offset of the next batch, bytes)."""


def differences(
    directories: dict[int, list[Path]],
    ends: dict[TopicPartition, int],
    scratch: Path,
    *,
    compacted: Container[str] = (),
) -> list[str]:
    """Offsets below `ends`, exclusive, at which a replica lacks a record or differs; `directories` by broker.

    For the topics in `compacted`, records are compared instead of bytes. Records of two replicas at one offset must be
    equal, and each replica must have the latest record of every key. Nothing is compared below the start of one of the
    logs.

    The logs are opened from copies: the files of a round are evidence.
    """
    opened: dict[int, LogManager] = {}
    try:
        for broker, places in directories.items():
            copies = [scratch / f"copy-{broker}" / str(number) for number in range(len(places))]
            for directory, copy in zip(places, copies, strict=True):
                shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.tmp", "ballast"))
            cluster_id = json.loads((copies[0] / "meta.json").read_text())["cluster_id"]
            opened[broker] = open_logs(copies, cluster_id=cluster_id, broker_id=BrokerId(broker))
        contents = {broker: _contents(logs, ends) for broker, logs in opened.items()}
        whole = {partition: end for partition, end in ends.items() if partition.topic not in compacted}
        cleaned = {partition: end for partition, end in ends.items() if partition.topic in compacted}
        return [*compare(contents, whole), *compare_records(contents, cleaned)]
    finally:
        for logs in opened.values():
            logs.close()
        for broker in directories:
            shutil.rmtree(scratch / f"copy-{broker}", ignore_errors=True)


def _contents(logs: LogManager, ends: dict[TopicPartition, int]) -> dict[TopicPartition, Batches]:
    held = logs.replicas()
    return {partition: _below(logs, partition, end) for partition, end in ends.items() if partition in held}


def _below(logs: LogManager, partition: TopicPartition, end: int) -> Batches:
    """Each batch below `end`, or below the log's own end if that comes first, by its base offset."""
    log, recovered = logs.open(partition, logs.replicas()[partition], {})
    assert recovered.damaged is None, f"{partition}: {recovered.damaged}"
    end = min(end, int(log.log_end_offset))
    batches: Batches = {}
    offset = int(log.log_start_offset)
    while offset < end:
        data = log.read(Offset(offset), end_offset=Offset(end), max_bytes=_READ_BYTES)
        assert data, f"{partition}: nothing at {offset} below {end}"
        for batch in check_batches(data):
            batches[batch.envelope.base_offset] = (int(batch.envelope.next_offset), bytes(batch.data))
            offset = batch.envelope.next_offset
    return batches


def compare(contents: dict[int, dict[TopicPartition, Batches]], ends: dict[TopicPartition, int]) -> list[str]:
    """Differences between the contents of these brokers; each broker must have every partition up to its end."""
    found: list[str] = []
    for partition, end in ends.items():
        held = {broker: mine.get(partition, {}) for broker, mine in contents.items()}
        for broker, batches in held.items():
            reached = max((following for following, _ in batches.values()), default=0)
            if reached < end:
                found.append(f"{partition}: broker {broker} ends at {reached}, below {end}")
        begins = max((min(batches, default=0) for batches in held.values()), default=0)
        first, *others = held
        for other in others:
            offsets = sorted(offset for offset in {*held[first], *held[other]} if offset >= begins)
            wrong = next((at for at in offsets if held[first].get(at) != held[other].get(at)), None)
            if wrong is not None:
                found.append(f"{partition}: brokers {first} and {other} differ at {wrong}")
    return found


def compare_records(contents: dict[int, dict[TopicPartition, Batches]], ends: dict[TopicPartition, int]) -> list[str]:
    """The same comparison for compacted partitions."""
    found: list[str] = []
    for partition, end in ends.items():
        latest: dict[bytes, int] = {}
        known: dict[int, tuple[int, tuple[bytes, bytes]]] = {}
        held = {broker: _records(mine.get(partition, {}), end) for broker, mine in contents.items()}
        for broker, records in held.items():
            for offset, record in records.items():
                first, same = known.setdefault(offset, (broker, record))
                if same != record:
                    found.append(f"{partition}: brokers {first} and {broker} differ at {offset}")
                latest[record[0]] = max(latest.get(record[0], -1), offset)
        for broker, records in held.items():
            lacking = sorted(offset for offset in latest.values() if offset not in records)
            if lacking:
                found.append(f"{partition}: broker {broker} lacks the latest records of keys at {lacking}")
    return found


def _records(batches: Batches, end: int) -> dict[int, tuple[bytes, bytes]]:
    """Key and value by offset."""
    records: dict[int, tuple[bytes, bytes]] = {}
    for _, data in batches.values():
        for row in with_offsets(Batch(parse_envelope(data), data)).to_pylist():
            if row["offset"] < end:
                records[row["offset"]] = (row["key"], row["value"])
    return records
