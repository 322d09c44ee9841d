# SPDX-License-Identifier: Apache-2.0
"""The transactions in the log of one simulated replica: the shipping producer states, LSO and index of aborted ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.unstable_transactions import UncommittedEnds
from tidemark.model import Offset
from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.log.aborted_index import AbortedIndex
from tidemark.storage.recovery.aborted_replay import aborted_row

if TYPE_CHECKING:
    from tests.simulation.transactions.partition_log import Entry


class ReplicaState:
    """The state of a log's transactions, kept as `ReplicaLog` and `ReplayedState` are.

    Attributes:
        producers: a leader checks writes and markers against them (rules X1, X2).
    """

    def __init__(self, opened_with: Sequence[Entry] = ()) -> None:
        self.producers = ProducerStates()
        self._ends = UncommittedEnds(Offset(0))
        self._aborted = AbortedIndex()
        self.observe(opened_with)
        self._ends = UncommittedEnds(Offset(len(opened_with)))

    def observe(self, entries: Sequence[Entry]) -> None:
        """Entries are appended to the log."""
        for entry in entries:
            ended = self.producers.observe(entry.envelope, 0, entry.marker)
            if ended is not None:
                self._ends.add(ended)
                if not ended.commit:
                    self._aborted.add(aborted_row(ended, self.producers))

    def truncate(self, kept: Sequence[Entry]) -> None:
        """Truncate the state to the entries that the log still has."""
        self._ends.truncate(Offset(len(kept)))
        self._aborted.truncate(len(kept))
        self.producers = ProducerStates()
        for entry in kept:
            self.producers.observe(entry.envelope, 0, entry.marker)

    def commit(self, high_watermark: int) -> None:
        self._ends.commit(Offset(high_watermark))

    def last_stable_offset(self, high_watermark: int) -> int | None:
        """Rule X3; None while it is unknown."""
        return self._ends.stable_offset(Offset(high_watermark), self.producers)

    def aborted(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that overlap [start, end) (rule X4)."""
        return self._aborted.overlapping(start, end)
