# SPDX-License-Identifier: Apache-2.0
"""Calls to the coordinator of a transactional id (rules X10, X12, X16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from tidemark.client.metadata.closed_calls import unary_calls
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.coordinator_calls import CoordinatorCalls, answer_of
from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.state import NO_SEQUENCE, ProducerIdentity
from tidemark.model import host_port
from tidemark.rpc import errors
from tidemark.rpc.codecs.transaction import identity_from_proto, identity_to_proto
from tidemark.v1 import transaction_service_pb2 as pb
from tidemark.v1.transaction_service_pb2_grpc import TransactionServiceStub


class Started(NamedTuple):
    """The answer of InitTransactions.

    Attributes:
        identity: producer id and epoch of the next transaction.
        generation: raised by each start; the calls of rule X16 name it.
        last_sequence: the last sequence that `commit_members` has committed; -1: none.
    """

    identity: ProducerIdentity
    generation: int
    last_sequence: int


class TransactionCoordinator:
    """The coordinator of one transactional id; used on one event loop.

    Every method retries until it is answered or refused, and raises TidemarkError: the refusal, for example
    PRODUCER_FENCED, or REQUEST_TIMED_OUT with the last error. Each call may be repeated after a timeout.

    Args:
        cluster: metadata and channels.
        transactional_id: the id.
        timeout_s: seconds for all attempts of one call.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, *, timeout_s: float) -> None:
        async def find(address: str, timeout_s: float) -> str:
            request = pb.FindTransactionCoordinatorRequest(transactional_id=transactional_id)
            stub = transaction_stub(cluster, address)
            call = stub.FindTransactionCoordinator(request, timeout=timeout_s, metadata=cluster.headers)
            found = await answer_of(call, address)
            return host_port(found.host, found.port)

        self.transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._calls = CoordinatorCalls(
            cluster,
            f"transactional id {transactional_id!r}",
            find=find,
            stub=lambda address: transaction_stub(cluster, address),
        )

    async def init(self, timeout_ms: int, identity: ProducerIdentity | None = None) -> Started:
        """Start a producer, and fence the earlier ones (rule X10).

        Args:
            timeout_ms: the coordinator aborts a transaction that is open for longer.
            identity: of a producer that continues after an error; None: a new producer.
        """
        request = pb.InitTransactionsRequest(transactional_id=self.transactional_id, timeout_ms=timeout_ms)
        if identity is not None:
            request.producer.CopyFrom(identity_to_proto(identity))
        answer = await self._call("InitTransactions", request)
        return Started(identity_from_proto(answer.producer), answer.generation, answer.last_sequence)

    async def end(self, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commit or abort the open transaction; returns the identity of the next one (rule X12)."""
        request = pb.EndTransactionRequest(
            transactional_id=self.transactional_id, producer=identity_to_proto(identity), commit=commit
        )
        return identity_from_proto((await self._call("EndTransaction", request)).producer)

    async def join(self, generation: int) -> ProducerIdentity:
        """Return the identity of a new member of the open transaction (rule X16)."""
        request = pb.JoinTransactionRequest(transactional_id=self.transactional_id, generation=generation)
        return identity_from_proto((await self._call("JoinTransaction", request)).producer)

    async def keep(self, generation: int) -> None:
        """Start the timeout of the open transaction again (rule X16)."""
        request = pb.KeepTransactionRequest(transactional_id=self.transactional_id, generation=generation)
        await self._call("KeepTransaction", request)

    async def commit_members(
        self, generation: int, producer_ids: Sequence[int], *, sequence: int = NO_SEQUENCE
    ) -> bool:
        """Commit the writes of the named members, and abort the writes of all other members (rule X16).

        Returns:
            Whether this or a later sequence was committed before; if so, the members of this call are aborted.
        """
        request = pb.CommitMembersRequest(
            transactional_id=self.transactional_id,
            generation=generation,
            sequence=sequence,
            producer_ids=producer_ids,
        )
        already: bool = (await self._call("CommitMembers", request)).already
        return already

    async def phase(self) -> Phase:
        """The phase of the last transaction; until it leaves `PREPARED`, some partition has no marker yet."""
        request = pb.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        found = (await self._call("DescribeTransactions", request)).transactions[0]
        errors.raise_error_in(found)
        return Phase(found.summary.phase)

    async def _call(self, method: str, request: Any) -> Any:
        return await self._calls.call(lambda stub: getattr(stub, method), request, timeout_s=self._timeout_s)


def transaction_stub(cluster: Cluster, address: str) -> Any:
    """Return the stub of the transaction service at an address."""
    return cast("Any", TransactionServiceStub(unary_calls(cluster.channel(address))))
