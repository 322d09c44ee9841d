# SPDX-License-Identifier: Apache-2.0
"""The session lease, checked at the moment an answer is released to a client (rules F1, F2)."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.ports import Clock
from tidemark.zookeeper.store import MetadataStore


class Lease:
    """While the lease is valid, no other leader can be elected: ZooKeeper cannot have ended the session yet.

    Args:
        holds_epoch_since: whether every replica that can be elected cleanly in a partition was in this leader epoch
            after that time. The leader then serves the partition while ZooKeeper is unavailable (rule F2).
        leads_in_session: whether the current leaderships belong to the current session. The lease of a new session does
            not cover leaderships of the previous one; a busy event loop may end these leaderships later.
    """

    def __init__(
        self,
        clock: Clock,
        session: MetadataStore,
        holds_epoch_since: Callable[[TopicPartition, int], bool],
        leads_in_session: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._session = session
        self._holds_epoch_since = holds_epoch_since
        self._leads_in_session = leads_in_session

    def covers(self, partition: TopicPartition) -> bool:
        """Whether an acknowledgement or a read of this partition may be released now."""
        now_ms = self._clock.now_ms()
        if now_ms < self._session.lease_valid_until_ms() and self._leads_in_session():
            return True
        return self._holds_epoch_since(partition, now_ms - self._session.lease_length_ms())

    def check(self, partition: TopicPartition) -> None:
        """Raises NOT_LEADER when the lease does not cover the partition."""
        if not self.covers(partition):
            raise self.refusal(partition)

    def refusal(self, partition: TopicPartition) -> TidemarkError:
        """The error after the lease has expired. The records may be in the log; a retry finds them."""
        return TidemarkError(
            ErrorCode.NOT_LEADER,
            f"{partition}: the session lease of this broker has expired, and another broker may lead; retry",
        )
