# SPDX-License-Identifier: Apache-2.0
"""The batches for a reader (rule X4): without control batches and without batches of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark.record.envelope import Envelope


class AbortedTransaction(NamedTuple):
    """An aborted transaction in one partition: its batches have base offsets in [first_offset, last_offset).

    Attributes:
        first_offset: offset of its first record.
        last_offset: offset of its marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class AbortedBatches:
    """Recognizes the batches of aborted transactions.

    Args:
        aborted: aborted transactions that a read_committed fetch names; empty for a read_uncommitted reader.
    """

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in aborted:
            self._by_producer.setdefault(producer_id, []).append((first_offset, last_offset))

    def __contains__(self, envelope: Envelope) -> bool:
        """Whether the batch is pending and belongs to one of the transactions."""
        if not self._by_producer or not envelope.is_pending:
            return False
        base = envelope.base_offset
        return any(first <= base < last for first, last in self._by_producer.get(envelope.producer_id, ()))


def has_records(envelope: Envelope, aborted: AbortedBatches) -> bool:
    """Whether an application may get a batch: no control batches, and with read_committed no aborted batches.

    A reader continues at the end of the last *fetched* batch, because dropped batches have offsets, too.
    """
    return not envelope.is_control and envelope not in aborted
