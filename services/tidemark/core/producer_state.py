"""What a replica remembers of idempotent producers (rules P1-P4).

Per producer: its epoch and its last five batches. The state follows the log: appends fold batches in
(`observe`), truncation and failover rebuild it from snapshot and log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemark.model import Offset
from tidemark.record.envelope import Envelope

REMEMBERED_BATCHES = 5


class RememberedBatch(NamedTuple):
    """A batch of a producer; both ends inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: Offset
    last_offset: Offset


class ProducerEntry(NamedTuple):
    """One producer: its epoch, its last batches (oldest first) and the largest timestamp seen."""

    producer_epoch: int
    batches: tuple[RememberedBatch, ...]
    last_timestamp_us: int


class ProducerStates:
    """All producers of one partition."""

    def __init__(self, entries: Mapping[int, ProducerEntry] | None = None) -> None:
        self._entries: dict[int, ProducerEntry] = dict(entries or {})

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """By producer id; what a snapshot holds."""
        return self._entries

    def copy(self) -> ProducerStates:
        """An independent copy."""
        return ProducerStates(self._entries)

    def check(self, envelope: Envelope) -> RememberedBatch | None:
        """May this batch be appended next? None: yes. A batch: it is a duplicate of that one (rule P2).

        Raises:
            TidemarkError: PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, DUPLICATE_SEQUENCE.
        """
        raise NotImplementedError

    def observe(self, envelope: Envelope) -> None:
        """Fold in a batch that the log holds, with its final base offset; batches without a producer are passed over."""
        raise NotImplementedError
