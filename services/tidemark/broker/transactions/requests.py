# SPDX-License-Identifier: Apache-2.0
"""Requests to the transaction coordinators of this broker: their producer ids, and their wait for a completion."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tidemark.broker.coordination.shard import Outcome
from tidemark.broker.transactions.coordinators import TransactionCoordinators
from tidemark.broker.transactions.transaction_shard import TransactionShard
from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.requests import Situation
from tidemark.core.transactions.state import Change
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import timeout

COMPLETION_WAIT_S: Final = 1.0
"""A request waits this long for the markers of the last transaction; then its caller retries."""

_T = TypeVar("_T")
Work = Callable[[TransactionCoordinator, Situation], Outcome[_T, Change]]
NextProducerId = Callable[[], Awaitable[int]]


class Requests:
    """Carries out requests at the coordinators of this broker.

    Args:
        next_producer_id: a producer id that was never given before.
    """

    def __init__(self, coordinators: TransactionCoordinators, next_producer_id: NextProducerId) -> None:
        self._coordinators = coordinators
        self.next_producer_id = next_producer_id

    async def change(
        self, transactional_id: str, work: Work[_T | TidemarkError], *, wait_s: float = COMPLETION_WAIT_S
    ) -> _T:
        """Carry out a request at the coordinator of an id, after the completion of the id's last transaction.

        Raises:
            TidemarkError: the refusal, even if the change itself returned the refusal.
        """
        return await self._when_complete(transactional_id, lambda shard: shard.change(work), wait_s)

    async def change_with_producer_id(
        self, transactional_id: str, work: Callable[[int | None], Work[_T | TidemarkError]]
    ) -> _T:
        """Like `change`, with a fresh producer id if the coordinator needs one for this id."""

        async def attempt(shard: TransactionShard) -> _T | TidemarkError:
            needed = shard.coordinator.needs_producer_id(transactional_id)
            return await shard.change(work(await self.next_producer_id() if needed else None))

        return await self._when_complete(transactional_id, attempt, COMPLETION_WAIT_S)

    async def _when_complete(
        self,
        transactional_id: str,
        attempt: Callable[[TransactionShard], Awaitable[_T | TidemarkError]],
        wait_s: float,
    ) -> _T:
        until_s = time.monotonic() + wait_s
        while True:
            shard = self._coordinators.shard_of(transactional_id)
            completion = shard.event_of(transactional_id)
            try:
                answer = await attempt(shard)
                if not isinstance(answer, TidemarkError):
                    return answer
                raise answer
            except TidemarkError as error:
                self._coordinators.metrics.refused.labels(str(error.code)).inc()
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not shard.is_prepared(transactional_id):
                    raise
                try:
                    async with timeout(max(0, until_s - time.monotonic())):
                        await completion.wait()
                except TimeoutError:
                    raise error from None
