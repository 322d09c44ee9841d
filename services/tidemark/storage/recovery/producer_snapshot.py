# SPDX-License-Identifier: Apache-2.0
"""Producer snapshots: `<offset>.snapshot` is the state of all producers after every batch below that offset (P3, X7).

Version 2 adds the open transaction and the last coordinator epoch to the items of producers that have them. So a reader
of version 1 still reads a snapshot without transactional producers. For the same reason, only a batch with an append
time has this time in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidemark.core.producer_state import (
    NO_COORDINATOR_EPOCH,
    NO_TRANSACTION,
    ProducerEntry,
    ProducerStates,
    RememberedBatch,
)
from tidemark.model import Offset
from tidemark.storage.files import BadFile, pack_json, read_json, replace_file

SNAPSHOT_SUFFIX: Final = ".snapshot"
_BATCHES: Final = 256
_VERSION: Final = 2


def snapshot_path(directory: Path, offset: int) -> Path:
    """Path of the snapshot of this offset."""
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_due(batches: int, states: ProducerStates) -> bool:
    """Whether to write a snapshot after this number of batches, as a start after a kill reads the header of each batch.

    A snapshot costs a few appends, and more with more producers.
    """
    return batches >= max(_BATCHES, len(states.entries))


def write_snapshot(directory: Path, offset: int, states: ProducerStates) -> None:
    """Replace the snapshot of this offset; durable with the next syncfs."""
    producers = [_item(producer_id, entry) for producer_id, entry in states.entries.items()]
    document = {"version": _VERSION, "offset": offset, "producers": producers}
    replace_file(snapshot_path(directory, offset), pack_json(document))


def _item(producer_id: int, entry: ProducerEntry) -> list[Any]:
    item = [producer_id, entry.producer_epoch, entry.last_timestamp_us, [_numbers(batch) for batch in entry.batches]]
    if entry.is_open or entry.coordinator_epoch != NO_COORDINATOR_EPOCH:
        item += [entry.open_offset, entry.coordinator_epoch]
    return item


def _numbers(batch: RememberedBatch) -> list[int]:
    return list(batch if batch.append_time_us >= 0 else batch[:-1])


def read_snapshot(directory: Path, offset: int) -> ProducerStates | None:
    """The states of a snapshot; None where the file is missing, damaged or of another offset."""
    try:
        document = read_json(snapshot_path(directory, offset), offset=int, producers=list)
        return None if document is None or document["offset"] != offset else _states(document["producers"])
    except (BadFile, TypeError, ValueError):
        return None


def _states(producers: Sequence[Any]) -> ProducerStates:
    """Raises TypeError or ValueError for a document that `write_snapshot` did not write."""
    entries = {}
    for producer_id, producer_epoch, last_timestamp_us, batches, *transactional in producers:
        remembered = tuple(
            RememberedBatch(int(first), int(last), Offset(int(start)), Offset(int(end)), *map(int, times))
            for first, last, start, end, *times in batches
        )
        open_offset, coordinator_epoch = map(int, transactional or (NO_TRANSACTION, NO_COORDINATOR_EPOCH))
        entries[int(producer_id)] = ProducerEntry(
            int(producer_epoch), remembered, int(last_timestamp_us), Offset(open_offset), coordinator_epoch
        )
    return ProducerStates(entries)


def newest_snapshot(
    directory: Path, offsets: list[int], *, at_least: int, at_most: int, clean_point: int = 0
) -> tuple[int, ProducerStates] | None:
    """The newest readable snapshot of these offsets within [at_least, at_most].

    `at_least` is where the first segment begins: the batches between an older snapshot and that segment are deleted.

    A snapshot from below the clean point has no open transaction here. The cleaner stays below the last stable offset,
    so such a transaction has ended, and the cleaner may have removed its marker (rule X6). A later batch of that
    transaction opens it again, until its marker.
    """
    for offset in sorted((offset for offset in offsets if at_least <= offset <= at_most), reverse=True):
        states = read_snapshot(directory, offset)
        if states is not None:
            return offset, states.without_open() if offset < clean_point else states
    return None
