# SPDX-License-Identifier: Apache-2.0
"""The transactions in the log of one simulated replica: the shipping producer state, and answers to readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidemark.core.producer_state import EndedTransaction, ProducerStates

if TYPE_CHECKING:
    from tests.simulation.transactions.partition_log import Entry


class Aborted(NamedTuple):
    """An aborted transaction in one partition; both offsets inclusive, the last one is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class ReplicaState:
    """`producers` is the state that a leader checks writes and markers against (rules X1, X2)."""

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self._ended: list[EndedTransaction] = []

    @classmethod
    def replay(cls, entries: Iterable[Entry]) -> ReplicaState:
        """The state of a log."""
        state = cls()
        for entry in entries:
            state.observe(entry)
        return state

    def observe(self, entry: Entry) -> None:
        """An entry of the log."""
        ended = self.producers.observe(entry.envelope, 0, entry.marker)
        if ended is not None:
            self._ended.append(ended)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Rule X3: a transaction is unstable until its marker is below the high watermark."""
        first = self.producers.first_open_offset
        open_ones = [] if first is None else [first]
        unstable = [one.first_offset for one in self._ended if one.marker_offset >= high_watermark]
        return min([high_watermark, *open_ones, *unstable])

    def aborted(self, start: int, end: int) -> tuple[Aborted, ...]:
        """The aborted transactions that overlap [start, end) (rule X4)."""
        return tuple(
            Aborted(one.producer_id, one.first_offset, one.marker_offset)
            for one in self._ended
            if not one.commit and one.first_offset < end and one.marker_offset >= start
        )
