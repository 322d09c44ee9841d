# SPDX-License-Identifier: Apache-2.0
"""The part of a log that readers with `read_committed` may get, from the files of one replica (rule X4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.core.producer_state import ProducerStates
from tidemark.record.envelope import Envelope
from tidemark.record.transactions import AbortedBatches, AbortedTransaction, has_records
from tidemark.storage.directories.checkpoint_files import read_checkpoints
from tidemark.storage.files import PARTITION_FILE, BadFile, read_json
from tidemark.storage.inspect.inspection import Good, read_log

_NO_END: Final = (1 << 63) - 1


class CommittedPart(NamedTuple):
    """Recognizes the batches with committed records.

    Attributes:
        start: the log start, inclusive: records below were deleted.
        end: end of the log at the time of the call, exclusive.
        hidden: transactions that were aborted, or have not ended.
        open: first offsets of the transactions that have not ended, by producer id. Their coordinator may have
            committed one, and have been stopped before the marker.
    """

    start: int
    end: int
    hidden: AbortedBatches
    open: Mapping[int, int]

    def has(self, envelope: Envelope) -> bool:
        """Whether the batch has a committed record."""
        inside = self.start < envelope.next_offset and envelope.base_offset < self.end
        return inside and has_records(envelope, self.hidden)


def committed_part(directory: Path) -> CommittedPart:
    """Read all batches of a replica once, and find the end of each transaction.

    Raises:
        TidemarkError: INVALID_PAYLOAD: a marker cannot be read.
        OSError: a file cannot be read.
    """
    producers, hidden, end = ProducerStates(), list[AbortedTransaction](), 0
    for _, piece in read_log(directory):
        if isinstance(piece, Good):
            ended = producers.observe_batch(piece.batch)
            end = piece.batch.envelope.next_offset
            if ended is not None and not ended.commit:
                hidden.append(AbortedTransaction(ended.producer_id, ended.first_offset, ended.marker_offset))
    unended = {one: producers.entries[one].open_offset for one in producers.open_producers}
    hidden += [AbortedTransaction(producer_id, first, _NO_END) for producer_id, first in unended.items()]
    return CommittedPart(_log_start(directory), end, AbortedBatches(hidden), unended)


def _log_start(directory: Path) -> int:
    """The log start in the checkpoint of the log directory; 0 without a checkpoint of this replica."""
    try:
        identity = read_json(directory / PARTITION_FILE) or {}
    except BadFile:
        return 0
    starts = read_checkpoints(directory.parent, ()).log_starts
    mine = (
        offset
        for (partition, incarnation), offset in starts.items()
        if str(partition) == directory.name and incarnation == identity.get("incarnation")
    )
    return max(0, next(mine, 0))
