"""The session lease, compared at the moment something is released to a client (rules F1, F2).

The simple form of F2: past the lease nothing is acknowledged and nothing is read here, whoever is in sync. That is
always safe; a partition whose followers all acknowledge its epoch could go on and does not.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.ports import Clock


class Lease:
    """What this broker may still promise."""

    def __init__(self, clock: Clock, valid_until_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._valid_until_ms = valid_until_ms

    @property
    def held(self) -> bool:
        """Nobody else can have been elected: ZooKeeper cannot have ended our session yet."""
        return self._clock.now_ms() < self._valid_until_ms()

    def refusal(self, partition: TopicPartition) -> TidemarkError:
        """What a client is told past the lease. Its records may be in the log all the same; a retry finds them."""
        return TidemarkError(
            ErrorCode.NOT_LEADER,
            f"{partition}: this broker has lost touch with ZooKeeper, and another one may lead; ask again",
        )
