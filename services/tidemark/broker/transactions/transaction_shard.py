# SPDX-License-Identifier: Apache-2.0
"""The transactional ids of one partition of `__transaction_state`, while this broker leads the partition in one epoch.

A marker is sent only after the record of its decision is committed (rule X12). After a failover, every prepared
transaction sends its markers again, under the new leader epoch (rule X14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tidemark.broker.coordination.shard import Shard
from tidemark.broker.coordination.state_log import RecordFormat, Records, StateLog
from tidemark.broker.transactions.metrics import TransactionMetrics
from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.phases import CLOSED, PREPARED
from tidemark.core.transactions.records import decode, encode
from tidemark.core.transactions.requests import Marker, Situation
from tidemark.core.transactions.state import (
    Change,
    ProducerIdentity,
    TransactionKey,
    TransactionMetadata,
    TransactionPartition,
)
from tidemark.model import TidemarkError

TRANSACTION_RECORDS: Final = RecordFormat(encode, decode, "transactions")

_log = logging.getLogger(__name__)


class TransactionShard(Shard[TransactionCoordinator, Change, Situation]):
    """A `Shard` whose state is the transaction coordinator of one partition.

    The event of an id is set when its transaction is complete.

    Args:
        send_markers: called with the ids whose decision is committed; `markers` of this shard has their markers.
    """

    noun = TRANSACTION_RECORDS.noun

    def __init__(
        self,
        log: StateLog[Change],
        situation: Callable[[], Situation],
        write_timeout_s: float,
        metrics: TransactionMetrics,
        send_markers: Callable[[TransactionShard, Iterable[str]], None],
    ) -> None:
        self._metrics = metrics
        self._send_markers = send_markers

        def replay(changes: Records[Change], now: Situation) -> TransactionCoordinator:
            return TransactionCoordinator.replay(changes, now.now_ms, log.leader_epoch)

        super().__init__(log, replay, situation, write_timeout_s, metrics)

    @property
    def is_closed(self) -> bool:
        """Whether the leadership has ended."""
        return self._closed

    @property
    def state(self) -> TransactionCoordinator | None:
        """The loaded state, even if the lease does not cover the state; None while it is being loaded."""
        return self._state

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether a decision about the id is still being completed."""
        try:
            return self._state is not None and self._state.describe(transactional_id).phase in PREPARED
        except TidemarkError:
            return False

    def markers(self, transactional_id: str) -> Iterator[Marker]:
        """The markers of an id that have not been answered."""
        return iter(()) if self._state is None else self._state.markers(transactional_id)

    def sweep(self) -> None:
        """Abort the transactions whose timeout has passed (rule X13); called periodically."""
        if self._state is None or not self._state.ongoing or not self.is_changeable:
            return
        for transactional_id in self.change_unasked(lambda coordinator, now: coordinator.abort_overdue(now)) or ():
            _log.warning(
                "a transaction is aborted: it was open for longer than its timeout",
                extra={"transactional_id": transactional_id},
            )

    def expire(self, wall_ms: int) -> bool:
        """Delete ids that were not used for long, a bounded number (rule X13); returns whether some were deleted.

        Args:
            wall_ms: milliseconds since 1970 that have passed even if the wall clock has jumped ahead.
        """
        if self._state is None or not len(self._state) or not self.is_changeable:
            return False
        expired = self.change_unasked(lambda coordinator, now: coordinator.expire(now._replace(wall_ms=wall_ms)))
        if expired:
            _log.info("transactional ids have expired", extra={"count": len(expired), "first": expired[0]})
        return bool(expired)

    def marked(
        self, transactional_id: str, marker: ProducerIdentity, partitions: Sequence[TransactionPartition]
    ) -> bool:
        """Note partitions that have the marker, or were deleted; returns False if the caller must report again."""
        if self._closed:
            return True
        if not self.is_changeable:
            return False
        self.change_unasked(lambda coordinator, now: coordinator.marked(transactional_id, marker, partitions, now))
        return True

    def _changed(self, changes: Sequence[Change]) -> None:
        for transactional_id, metadata in _transactions_in(changes):
            if metadata.phase in CLOSED:
                self._wake(transactional_id)

    def _committed(self, changes: Sequence[Change]) -> None:
        self._metrics.note(changes)
        decided = () if self._state is None else self._state.committed(changes)
        if decided:
            self._send_markers(self, decided)

    def _loaded(self) -> None:
        assert self._state is not None
        if self._state.prepared:
            self._send_markers(self, tuple(self._state.prepared))


def _transactions_in(changes: Iterable[Change]) -> Iterator[tuple[str, TransactionMetadata]]:
    for key, value in changes:
        if isinstance(key, TransactionKey) and isinstance(value, TransactionMetadata):
            yield key.transactional_id, value
