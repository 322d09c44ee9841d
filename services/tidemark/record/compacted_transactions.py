# SPDX-License-Identifier: Apache-2.0
"""Transactions in a compaction: removes records of aborted batches, and markers that no longer end a batch (rule X6).

Every transaction with batches in the cleaned part of a log has ended: the cleaner stops at the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.record.envelope import Envelope
from tidemark.record.transactions import AbortedBatches, AbortedTransaction


class CompactedTransactions:
    """The transactions of one pass through a log, from its first batch on.

    Attributes:
        aborted: recognizes the batches of aborted transactions.
        _left: producers of which a pending batch was kept since their last marker.
    """

    __slots__ = ("_left", "aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self.aborted = AbortedBatches(aborted)
        self._left: set[int] = set()

    def keep(self, envelope: Envelope) -> None:
        """Note that the cleaned log has this batch, possibly without records."""
        if envelope.is_pending and not envelope.is_control:
            self._left.add(envelope.producer_id)

    def end(self, envelope: Envelope) -> bool:
        """A marker follows: whether a batch of its transaction is left. If a batch stays, the marker stays.

        Without its marker, a replay of the batch would open the transaction again.
        """
        is_left = envelope.producer_id in self._left
        self._left.discard(envelope.producer_id)
        return is_left
