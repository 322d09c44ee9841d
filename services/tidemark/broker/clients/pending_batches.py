# SPDX-License-Identifier: Apache-2.0
"""Before the first pending batch of a transaction in a partition, the coordinator adds the partition (rule X11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Protocol

from tidemark.core.replication.events import ProduceArrived
from tidemark.core.replication.leader.produce_validation import ACKS_ALL
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.clock import timeout


class Verifier(Protocol):
    """Adds partitions to transactions at their coordinators."""

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partition: TransactionPartition
    ) -> Awaitable[TidemarkError | None]:
        """Begin a verification. The outcome of the task is None when the partition is added, else the refusal. Several
        tasks may await the task.
        """


Verification = tuple[int, Awaitable[TidemarkError | None]]


class PendingBatches:
    """Finds the pending batches that the coordinator has to verify."""

    def __init__(self, queries: BrokerQueries, verifier: Verifier) -> None:
        self._queries = queries
        self._verifier = verifier

    def verifications(self, events: Iterable[ProduceArrived]) -> list[Verification]:
        """Verifications by request id; a request is appended after its verifications. The call begins the
        verifications."""
        return [
            (event.request_id, outcome)
            for event in events
            if event.transactional_id and event.acks == ACKS_ALL
            for outcome in self._of(event)
        ]

    def _of(self, event: ProduceArrived) -> list[Awaitable[TidemarkError | None]]:
        envelopes = (batch.envelope for batch in event.batches)
        producers = {ProducerIdentity(one.producer_id, one.producer_epoch) for one in envelopes if one.is_pending}
        try:
            new = [one for one in sorted(producers) if self._queries.needs_verification(event.partition, *one)]
        except TidemarkError as error:
            # The leader's check is not enough. A request can wait behind another request until this broker leads, and
            # would then be appended without a verification.
            return [_refused(error)]
        view = self._queries.replica(event.partition)
        if view is None or not new:
            return []
        partition = TransactionPartition(event.partition.topic, view.identity.topic_id, event.partition.partition)
        return [self._verifier.verify(event.transactional_id, producer, partition) for producer in new]

    async def require(
        self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition, timeout_s: float
    ) -> None:
        """Request the coordinator to add a partition, unless it is added, before this broker's own pending batch.

        Raises:
            TidemarkError: the refusal of the coordinator; NOT_LEADER; REQUEST_TIMED_OUT.
        """
        if not self._queries.needs_verification(partition, *producer):
            return
        view = self._queries.replica(partition)
        assert view is not None, "needs_verification has found the replica"
        wanted = TransactionPartition(partition.topic, view.identity.topic_id, partition.partition)
        outcome = self._verifier.verify(transactional_id, producer, wanted)
        refused = await refusals_of([(0, outcome)], timeout_s)
        if refused:
            raise refused[0]


def _refused(error: TidemarkError) -> Awaitable[TidemarkError | None]:
    outcome: asyncio.Future[TidemarkError | None] = asyncio.get_running_loop().create_future()
    outcome.set_result(error)
    return outcome


async def refusals_of(verifications: Iterable[Verification], timeout_s: float) -> Mapping[int, TidemarkError]:
    """The errors of the refused requests, by request id; a call that takes longer is a refusal, too."""
    refused: dict[int, TidemarkError] = {}
    try:
        async with timeout(timeout_s):
            for request_id, outcome in verifications:
                error = await outcome
                if error is not None:
                    refused.setdefault(request_id, error)
    except TimeoutError:
        late = TidemarkError(
            ErrorCode.REQUEST_TIMED_OUT, "the coordinator of the transaction did not add the partition in time; retry"
        )
        return {**{request_id: late for request_id, _ in verifications}, **refused}
    return refused
