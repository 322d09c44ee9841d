# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""TransactionService: translates requests about transactions, and calls the transaction coordinators."""

from __future__ import annotations

from typing import Any

from tidemark.broker.transactions.coordinators import TransactionCoordinators
from tidemark.broker.transactions.partition_producers import PartitionProducers
from tidemark.broker.transactions.requests import Requests
from tidemark.core.transactions.refusals import check_versions
from tidemark.core.transactions.requests import Abort, CommitMembers, End, Init, Initialized, Join
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.refs import ref_from_proto
from tidemark.rpc.codecs.transaction import (
    description_to_proto,
    identity_from_proto,
    identity_to_proto,
    phases_from_proto,
    summary_to_proto,
)
from tidemark.rpc.request_limits import check_named
from tidemark.rpc.security.access import audited
from tidemark.rpc.security.callers import address_for_caller
from tidemark.runtime.slices import InSlices
from tidemark.v1 import transaction_service_pb2 as pb
from tidemark.v1.transaction_service_pb2_grpc import TransactionServiceServicer


class TransactionService(TransactionServiceServicer):
    """The RPCs of transactions; the server's interceptor maps the errors of unary calls."""

    def __init__(
        self, coordinators: TransactionCoordinators, requests: Requests, producers: PartitionProducers
    ) -> None:
        self._coordinators = coordinators
        self._requests = requests
        self._producers = producers

    async def FindTransactionCoordinator(
        self, request: pb.FindTransactionCoordinatorRequest, context: Any
    ) -> pb.FindTransactionCoordinatorResponse:
        """The coordinator of an id; the first call creates `__transaction_state`."""
        found = await self._coordinators.find(request.transactional_id)
        address = address_for_caller(found.broker)
        return pb.FindTransactionCoordinatorResponse(
            broker_id=found.broker.broker_id,
            host=address.host,
            port=address.port,
            partition=found.partition,
            leader_epoch=found.leader_epoch,
        )

    async def InitTransactions(self, request: pb.InitTransactionsRequest, context: Any) -> pb.InitTransactionsResponse:
        """Give a producer its identity, and fence the earlier ones (rule X10)."""
        check_versions(self._coordinators.metadata.view.brokers)
        transactional_id, timeout_ms = request.transactional_id, request.timeout_ms
        goes_on = request.HasField("producer") and request.producer.producer_id >= 0
        producer = identity_from_proto(request.producer) if goes_on else None
        found: Initialized = await self._requests.change_with_producer_id(
            transactional_id,
            lambda fresh: (
                lambda coordinator, now: coordinator.init(Init(transactional_id, timeout_ms, producer, fresh), now)
            ),
        )
        return pb.InitTransactionsResponse(
            producer=identity_to_proto(found.producer),
            generation=found.generation,
            last_sequence=found.last_sequence,
        )

    async def EndTransaction(self, request: pb.EndTransactionRequest, context: Any) -> pb.EndTransactionResponse:
        """Decide a transaction; answers when the decision is committed (rule X12)."""
        transactional_id, commit = request.transactional_id, request.commit
        producer = identity_from_proto(request.producer)
        following: ProducerIdentity = await self._requests.change_with_producer_id(
            transactional_id,
            lambda fresh: lambda coordinator, now: coordinator.end(End(transactional_id, producer, commit, fresh), now),
        )
        return pb.EndTransactionResponse(producer=identity_to_proto(following))

    async def JoinTransaction(self, request: pb.JoinTransactionRequest, context: Any) -> pb.JoinTransactionResponse:
        """A fresh producer id, as a member of the open transaction (rule X16)."""
        shard = self._coordinators.shard_of(request.transactional_id)
        # the check prevents that an unknown id uses up a producer id
        shard.coordinator.describe(request.transactional_id)
        asked = Join(request.transactional_id, request.generation, await self._requests.next_producer_id())
        member: ProducerIdentity = await self._requests.change(
            request.transactional_id, lambda coordinator, now: coordinator.join(asked, now)
        )
        return pb.JoinTransactionResponse(producer=identity_to_proto(member))

    async def KeepTransaction(self, request: pb.KeepTransactionRequest, context: Any) -> pb.KeepTransactionResponse:
        """Start the timeout of the open transaction again (rule X16)."""
        transactional_id, generation = request.transactional_id, request.generation
        await self._requests.change(
            transactional_id, lambda coordinator, now: coordinator.keep(transactional_id, generation, now)
        )
        return pb.KeepTransactionResponse()

    async def CommitMembers(self, request: pb.CommitMembersRequest, context: Any) -> pb.CommitMembersResponse:
        """Commit the writes of the named members, and abort the writes of all other members (rule X16)."""
        transactional_id = request.transactional_id
        asked = CommitMembers(transactional_id, request.generation, tuple(request.producer_ids), request.sequence)
        already: bool = await self._requests.change(
            transactional_id, lambda coordinator, now: coordinator.commit_members(asked, now)
        )
        return pb.CommitMembersResponse(already=already)

    async def AbortTransaction(self, request: pb.AbortTransactionRequest, context: Any) -> pb.AbortTransactionResponse:
        """Abort the open transaction in place of its producer."""
        transactional_id = request.transactional_id
        with audited("AbortTransaction", context, {"transactional_id": transactional_id}):
            asked = Abort(transactional_id, request.generation, request.started_at_ms)
            await self._requests.change(transactional_id, lambda coordinator, now: coordinator.abort(asked, now))
        return pb.AbortTransactionResponse()

    async def ListTransactions(self, request: pb.ListTransactionsRequest, context: Any) -> pb.ListTransactionsResponse:
        """The ids that this broker coordinates."""
        phases, longer_ms = phases_from_proto(request.phases), request.open_longer_than_ms
        now = self._coordinators.situation()
        found, missing = await self._coordinators.read_each(
            lambda shard: shard.read(lambda coordinator: coordinator.summaries(now, phases, longer_ms))
        )
        response = pb.ListTransactionsResponse(loading_partitions=missing)
        async for one in InSlices(sorted(found)):
            response.transactions.append(summary_to_proto(*one))
        return response

    async def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: Any
    ) -> pb.DescribeTransactionsResponse:
        """The state of each of these transactional ids."""
        check_named(request.transactional_ids, "transactional ids")
        response = pb.DescribeTransactionsResponse()
        async for transactional_id in InSlices(dict.fromkeys(request.transactional_ids)):
            response.transactions.append(await self._describe(transactional_id))
        return response

    async def DescribeProducers(
        self, request: pb.DescribeProducersRequest, context: Any
    ) -> pb.DescribeProducersResponse:
        """The open transactions in partitions that this broker leads."""
        check_named(request.partitions, "partitions")
        response = pb.DescribeProducersResponse()
        async for one in InSlices(request.partitions):
            response.partitions.append(self._producers.describe(ref_from_proto(one)))
        return response

    async def _describe(self, transactional_id: str) -> pb.TransactionDescription:
        try:
            shard = self._coordinators.shard_of(transactional_id)
            return await shard.read(lambda coordinator: description_to_proto(coordinator.describe(transactional_id)))
        except TidemarkError as error:
            return pb.TransactionDescription(transactional_id=transactional_id, error=errors.to_proto(error))
