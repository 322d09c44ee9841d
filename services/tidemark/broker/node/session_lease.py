# SPDX-License-Identifier: Apache-2.0
"""What this broker may still promise, compared at the moment something is released to a client (rules F1, F2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.ports import Clock


class SessionLease(Protocol):
    """What the lease needs of the session; `MetadataStore` has it."""

    def lease_valid_until_ms(self) -> int:
        """End of the session lease on the port's clock (rule F1)."""

    def lease_length_ms(self) -> int:
        """How long a lease is."""


class Lease:
    """While it is held nobody can have been elected: ZooKeeper cannot have ended our session yet.

    Args:
        holds_epoch_since: whether everybody who could have been elected cleanly in a partition was still in our leader
            epoch after that time; then we go on there while ZooKeeper is away (rule F2).
        leads_in_session: whether what is led is led in this session: the lease of a new one vouches for nothing that
            was led in the one before, which is given up a moment later on a busy event loop.
    """

    def __init__(
        self,
        clock: Clock,
        session: SessionLease,
        holds_epoch_since: Callable[[TopicPartition, int], bool],
        leads_in_session: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._session = session
        self._holds_epoch_since = holds_epoch_since
        self._leads_in_session = leads_in_session

    def covers(self, partition: TopicPartition) -> bool:
        """An acknowledgement or a read of this partition may be released now."""
        now_ms = self._clock.now_ms()
        if now_ms < self._session.lease_valid_until_ms() and self._leads_in_session():
            return True
        return self._holds_epoch_since(partition, now_ms - self._session.lease_length_ms())

    def check(self, partition: TopicPartition) -> None:
        """Raises NOT_LEADER where it does not cover the partition."""
        if not self.covers(partition):
            raise self.refusal(partition)

    def refusal(self, partition: TopicPartition) -> TidemarkError:
        """What a client is told past the lease. Its records may be in the log all the same; a retry finds them."""
        return TidemarkError(
            ErrorCode.NOT_LEADER,
            f"{partition}: this broker has lost touch with ZooKeeper, and another one may lead; ask again",
        )
