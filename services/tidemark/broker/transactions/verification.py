# SPDX-License-Identifier: Apache-2.0
"""A partition leader's calls of AddPartitions (rule X11).

Verifications that are requested at the same time share one call to each coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from tidemark.broker.coordination.broker_calls import BrokerCalls
from tidemark.broker.coordination.lookup import Coordinator
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import BrokerId, ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.transaction import identity_to_proto, partition_to_proto
from tidemark.v1 import transaction_service_pb2 as pb
from tidemark.v1.transaction_service_pb2_grpc import TransactionCoordinationStub

_DEADLINE_S: Final = 5.0
_BATCH: Final = 2000
"""Largest number of partitions in one call."""
_NOT_NOW: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.SHUTTING_DOWN}
)

AddPartitions = Callable[[pb.AddPartitionsRequest], Awaitable[pb.AddPartitionsResponse]]
_Outcome = asyncio.Future[TidemarkError | None]

_log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    transactional_id: str
    producer: ProducerIdentity
    partition: TransactionPartition


class Verification:
    """A `Verifier` that calls the coordinators, one call for all partitions that wait.

    Args:
        own: AddPartitions of this broker.
        locate: the coordinator of an id; raises COORDINATOR_NOT_AVAILABLE.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        own: AddPartitions,
        locate: Callable[[str], Coordinator],
    ) -> None:
        self._locate = locate
        self._brokers = BrokerCalls(
            broker_id, metadata, own, lambda channel: TransactionCoordinationStub(channel).AddPartitions, _DEADLINE_S
        )
        self._open: dict[_Asked, _Outcome] = {}
        self._gathered: list[_Asked] = []
        self._calls: set[asyncio.Task[None]] = set()

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partition: TransactionPartition
    ) -> Awaitable[TidemarkError | None]:
        """Verify a partition, as `Verifier.verify` states; callers share a verification in flight."""
        asked = _Asked(transactional_id, producer, partition)
        outcome = self._open.get(asked)
        if outcome is None:
            loop = asyncio.get_running_loop()
            outcome = self._open[asked] = loop.create_future()
            if not self._gathered:
                loop.call_soon(self._call_coordinators)
            self._gathered.append(asked)
        return asyncio.shield(outcome)

    async def stop(self) -> None:
        """Refuse the verifications in flight, and close the channels."""
        for call in tuple(self._calls):
            call.cancel()
        for asked in tuple(self._open):
            self._settle(asked, TidemarkError(ErrorCode.SHUTTING_DOWN, "this broker stops; retry"))
        await self._brokers.close()

    def _call_coordinators(self) -> None:
        gathered, self._gathered = self._gathered, []
        by_broker: dict[BrokerId, list[_Asked]] = {}
        for asked in gathered:
            try:
                coordinator = self._locate(asked.transactional_id)
            except TidemarkError as error:
                self._settle(asked, error)
            else:
                by_broker.setdefault(coordinator.broker.broker_id, []).append(asked)
        for broker_id, some in by_broker.items():
            for start in range(0, len(some), _BATCH):
                work = self._call(broker_id, some[start : start + _BATCH])
                call = asyncio.create_task(work, name=f"verify at broker {broker_id}")
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _call(self, broker_id: BrokerId, batch: Sequence[_Asked]) -> None:
        groups: dict[tuple[str, ProducerIdentity], list[_Asked]] = {}
        for asked in batch:
            groups.setdefault(asked[:2], []).append(asked)
        request = pb.AddPartitionsRequest()
        for (transactional_id, producer), some in groups.items():
            request.additions.add(
                transactional_id=transactional_id,
                producer=identity_to_proto(producer),
                partitions=[partition_to_proto(asked.partition) for asked in some],
            )
        try:
            response = await self._brokers.call(broker_id, request)
            outcomes = [errors.error_in(one) for one in response.outcomes]
            answers = list(zip(groups.values(), outcomes, strict=True))
        except TidemarkError as error:
            answers = [(list(batch), error)]
        except Exception as error:  # noqa: BLE001 - the batches would wait until their timeout
            _log.exception("cannot verify transactions")
            answers = [(list(batch), TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))]
        for some, outcome in answers:
            for asked in some:
                self._settle(asked, None if outcome is None else _for_producer(outcome))

    def _settle(self, asked: _Asked, error: TidemarkError | None) -> None:
        outcome = self._open.pop(asked)
        if not outcome.done():
            outcome.set_result(error)


def _for_producer(error: TidemarkError) -> TidemarkError:
    """The error of a produce request: its leader calls the coordinator, not the producer."""
    if error.code in _NOT_NOW:
        return TidemarkError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"the coordinator of the transaction cannot add the partition now ({error.message}); retry",
        )
    return error
