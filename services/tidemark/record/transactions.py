# SPDX-License-Identifier: Apache-2.0
"""The batches for a reader (rule X4): without control batches and without batches of aborted transactions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidemark.record.envelope import Envelope

_NONE: Final[tuple[list[int], list[int]]] = ([], [])


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
        aborted: aborted transactions that a read_committed fetch names; empty for a read_uncommitted reader. Those of
            one producer do not overlap.
    """

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        """First and last offsets of each producer, in order: a producer may have very many aborted transactions."""
        for producer_id, first_offset, last_offset in sorted(aborted):
            firsts, lasts = self._by_producer.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            lasts.append(last_offset)

    def __contains__(self, envelope: Envelope) -> bool:
        """Whether the batch is pending and belongs to one of the transactions."""
        if not self._by_producer or not envelope.is_pending:
            return False
        firsts, lasts = self._by_producer.get(envelope.producer_id, _NONE)
        number = bisect_right(firsts, envelope.base_offset) - 1
        return number >= 0 and envelope.base_offset < lasts[number]


def has_records(envelope: Envelope, aborted: AbortedBatches) -> bool:
    """Whether an application may get a batch: no control batches, and with read_committed no aborted batches.

    A reader continues at the end of the last *fetched* batch, because dropped batches have offsets, too.
    """
    return not envelope.is_control and envelope not in aborted
