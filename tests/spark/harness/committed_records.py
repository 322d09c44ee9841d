# SPDX-License-Identifier: Apache-2.0
"""The committed values of a topic by the files of a broker's log: independent of the clients' read_committed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.record.envelope import Batch
from tidemark.record.markers import read_marker
from tidemark.record.payload import read_batch
from tidemark.storage.inspect.inspection import Good, read_log

_PATIENCE_S: Final = 60.0


def committed_values(cluster: LocalCluster, topic: str, *, partitions: int = 3) -> list[bytes | None]:
    """Values of the records that count, by partition and offset, once every transaction has its marker.

    The broker with the index 0 has a replica of each partition.
    """
    found: list[bytes | None] = []
    for partition in range(partitions):
        until_s = time.monotonic() + _PATIENCE_S
        directory = cluster.directory / broker_name(0) / f"{topic}-{partition}"
        values = _values(directory)
        while values is None:
            assert time.monotonic() < until_s, f"a transaction of {topic}-{partition} stays open"
            time.sleep(0.05)
            values = _values(directory)
        found += values
    return found


def _values(directory: Path) -> list[bytes | None] | None:
    """The committed values of a log; None while a transaction is open."""
    if not directory.exists():
        return []  # a replica that never held a record
    batches: list[Batch] = []
    for _, piece in read_log(directory):
        assert isinstance(piece, Good), piece
        batches.append(piece.batch)
    counts: dict[int, bool] = {}
    """The decision of the transaction, by the index of a pending batch."""
    pending: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        marker, producer_id = read_marker(batch), batch.envelope.producer_id
        if marker is not None:
            counts |= dict.fromkeys(pending.pop(producer_id, ()), marker.commit)
        elif batch.envelope.is_pending:
            pending.setdefault(producer_id, []).append(index)
    if pending:
        return None
    return [
        value
        for index, batch in enumerate(batches)
        if counts.get(index, not batch.envelope.is_pending and not batch.envelope.is_control)
        for value in read_batch(batch).column(1).to_pylist()
    ]
