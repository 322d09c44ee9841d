# SPDX-License-Identifier: Apache-2.0
"""Lists, describes and aborts transactions, and finds those that hold a last stable offset back (rule X3)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, cast

from tidemark.client.aio.coordinator_admin import LIST_TIMEOUT_S, CoordinatorAdmin
from tidemark.client.argument_types import int64
from tidemark.client.metadata.coordinator_calls import answer_of, asks_for_one
from tidemark.client.transactions.coordinator import TransactionCoordinator, transaction_stub
from tidemark.core.internal_topics import TRANSACTIONS_TOPIC
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.codecs.metadata import broker_from_proto
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.rpc.codecs.transaction import identity_from_proto
from tidemark.v1 import broker_service_pb2 as broker_pb
from tidemark.v1 import metadata_pb2
from tidemark.v1 import transaction_service_pb2 as pb

_CALL_S: Final = 10.0
_PARTITIONS: Final = 10_000
"""Largest number of partitions in one call."""
_IDS: Final = 500
"""Largest number of transactional ids in one call; an answer also names the partitions of each."""


class TransactionListing(NamedTuple):
    """A transactional id in a list; `started_at_ms`: start of its open transaction, since 1970, UTC; 0 without one."""

    transactional_id: str
    phase: str
    producer_id: int
    producer_epoch: int
    started_at_ms: int
    coordinator_id: int


class TransactionDescription(NamedTuple):
    """The state of a transactional id.

    Attributes:
        started_at_ms: start of the open transaction, since 1970, UTC; 0 without one.
        timeout_ms: the coordinator aborts the open transaction after that time.
        updated_at_ms: the last change, since 1970, UTC.
        generation: number that each start of a producer of the id raises.
        last_sequence: sequence of the last committed batch of members; -1: none.
        partitions: the partitions of the open transaction, with the producer that writes to each.
    """

    transactional_id: str
    phase: str
    producer_id: int
    producer_epoch: int
    started_at_ms: int
    timeout_ms: int
    updated_at_ms: int
    generation: int
    last_sequence: int
    partitions: tuple[tuple[TopicPartition, ProducerIdentity], ...]


class OpenInPartition(NamedTuple):
    """An open transaction in the log of a partition.

    Attributes:
        first_offset: offset of its first record.
        last_timestamp_us: largest timestamp of its records, since 1970, UTC.
        end_offset: end of its last batch, exclusive; None for offset commits, and with a broker of 0.1.0.
    """

    partition: TopicPartition
    producer: ProducerIdentity
    first_offset: int
    last_timestamp_us: int
    end_offset: int | None = None


class PartitionState(NamedTuple):
    """The stable offset of a partition, and its open transactions by their first offsets."""

    last_stable_offset: int
    high_watermark: int
    open: tuple[OpenInPartition, ...]


class TransactionAdmin(CoordinatorAdmin):
    """Reads and aborts transactions through the brokers; needs no admin service.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        timeout_s: timeout of each call.
        tls: the TLS files; None: the files that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
    """

    async def list_transactions(
        self, phases: Sequence[str] = (), open_longer_than_ms: int = 0
    ) -> tuple[list[TransactionListing], list[TidemarkError]]:
        """List transactional ids, by name.

        Args:
            phases: names of phases; empty: all phases.
            open_longer_than_ms: only transactions that are open for longer than this; 0: all ids.

        Returns:
            The ids, and errors of brokers whose ids are missing.
        """
        request = pb.ListTransactionsRequest(
            phases=phases, open_longer_than_ms=int64("open_longer_than_ms", open_longer_than_ms)
        )
        timeout_s = min(LIST_TIMEOUT_S, self._timeout_s)
        return await self._lists(
            lambda address: transaction_stub(self._cluster, address).ListTransactions(
                request, timeout=timeout_s, metadata=self._cluster.headers
            ),
            lambda broker_id, answer: (_listing(one, broker_id) for one in answer.transactions),
            what="transactional ids",
            topic=TRANSACTIONS_TOPIC,
        )

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Describe ids in their order; raises TRANSACTION_NOT_FOUND, INVALID_TRANSACTIONAL_ID, REQUEST_TIMED_OUT."""
        return list(await asyncio.gather(*(self._coordinator(one).describe() for one in transactional_ids)))

    async def describe_listed(
        self, listed: Iterable[TransactionListing]
    ) -> tuple[list[TransactionDescription], list[TidemarkError]]:
        """Describe ids of a list with few calls, at the coordinators that listed them; omits expired ids.

        Returns:
            The descriptions, and the errors of calls that failed.
        """
        found, missing, moved = await self._described_at_each(listed)
        if moved:  # the coordinators of these ids have changed
            again = [one for one in (await self.list_transactions())[0] if one.transactional_id in moved]
            found_there, failed, still_moved = await self._described_at_each(again)
            unlisted = moved.keys() - {one.transactional_id for one in again}
            found += found_there
            missing += [*failed, *still_moved.values(), *(moved[name] for name in sorted(unlisted))]
        return found, missing

    async def _described_at_each(
        self, listed: Iterable[TransactionListing]
    ) -> tuple[list[TransactionDescription], list[TidemarkError], dict[str, TidemarkError]]:
        """The descriptions, the errors of calls, and the refusals of ids by name, except of ids that have expired."""
        by_broker: dict[int, list[str]] = {}
        for one in listed:
            by_broker.setdefault(one.coordinator_id, []).append(one.transactional_id)
        calls = [
            self._described_at(broker_id, some[start : start + _IDS])
            for broker_id, some in by_broker.items()
            for start in range(0, len(some), _IDS)
        ]
        found: list[TransactionDescription] = []
        failed: list[TidemarkError] = []
        refused: dict[str, TidemarkError] = {}
        for answer in await asyncio.gather(*calls):
            if isinstance(answer, TidemarkError):
                failed.append(answer)
                continue
            for described in answer.transactions:
                error = errors.error_in(described)
                if error is None:
                    found.append(_description(described))
                elif error.code is not ErrorCode.TRANSACTION_NOT_FOUND:
                    refused[described.transactional_id] = error
        return found, failed, refused

    async def _described_at(
        self, broker_id: int, transactional_ids: Sequence[str]
    ) -> pb.DescribeTransactionsResponse | TidemarkError:
        request = pb.DescribeTransactionsRequest(transactional_ids=transactional_ids)
        try:
            address = self._brokers().get(broker_id)
            if address is None:
                raise TidemarkError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is no longer registered; retry"
                )
            call = transaction_stub(self._cluster, address).DescribeTransactions(
                request, timeout=_CALL_S, metadata=self._cluster.headers
            )
            return cast(pb.DescribeTransactionsResponse, await answer_of(call, address))
        except TidemarkError as error:
            return error

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of an id; its producer is fenced.

        Raises:
            TidemarkError: TRANSACTION_NOT_FOUND, INVALID_TRANSACTIONAL_ID, REQUEST_TIMED_OUT; INVALID_TXN_STATE if no
                transaction is open.
        """
        await self._coordinator(transactional_id).abort()

    async def partition_states(
        self, topics: Collection[str] = ()
    ) -> tuple[Mapping[TopicPartition, PartitionState], list[TidemarkError]]:
        """The stable offset and the open transactions of partitions, as their leaders have them.

        Args:
            topics: their partitions; empty: all topics that the caller may describe.

        Returns:
            The partitions with an answer, and the errors of partitions without one.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, BROKER_NOT_AVAILABLE.
        """
        by_leader: dict[str, list[TopicPartition]] = {}
        failed: list[TidemarkError] = []
        for partition, leader in await self._leaders(topics):
            if leader is None:
                failed.append(TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader now"))
            else:
                by_leader.setdefault(leader, []).append(partition)
        calls = [
            self._states_at(address, some[start : start + _PARTITIONS])
            for address, some in by_leader.items()
            for start in range(0, len(some), _PARTITIONS)
        ]
        found: dict[TopicPartition, PartitionState] = {}
        for answer in await asyncio.gather(*calls):
            if isinstance(answer, TidemarkError):
                failed.append(answer)
                continue
            for one in answer.partitions:
                partition = TopicPartition(one.topic, one.partition)
                if (error := errors.error_in(one)) is not None:
                    failed.append(error)
                else:
                    found[partition] = _state(partition, one)
        return found, failed

    async def _leaders(self, topics: Collection[str]) -> list[tuple[TopicPartition, str | None]]:
        metadata = await self._metadata(broker_pb.GetMetadataRequest(topics=topics, all_topics=not topics))
        brokers: dict[int, str] = {one.broker_id: one.address for one in map(broker_from_proto, metadata.brokers)}
        found = []
        for topic in metadata.topics:
            errors.raise_error_in(topic)
            found += [(TopicPartition(topic.topic, one.partition), brokers.get(one.leader)) for one in topic.partitions]
        return sorted(found)

    async def _metadata(self, request: broker_pb.GetMetadataRequest) -> metadata_pb2.ClusterMetadata:
        """The metadata that the first broker has; a broker that has just started has none."""
        self._brokers()  # raises before the start and after the close
        failure = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")
        for address in self._cluster.addresses():
            try:
                call = self._cluster.stub(address).GetMetadata(request, timeout=_CALL_S, metadata=self._cluster.headers)
                answer = await answer_of(call, address)
            except TidemarkError as error:
                if not error.retriable:
                    raise
                failure = error
                continue
            if answer.metadata.brokers:
                return cast(metadata_pb2.ClusterMetadata, answer.metadata)
            failure = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{address}: the broker has no metadata yet")
        raise failure

    async def _states_at(
        self, address: str, partitions: Sequence[TopicPartition]
    ) -> pb.DescribeProducersResponse | TidemarkError:
        request = pb.DescribeProducersRequest(partitions=map(ref_to_proto, partitions))
        try:
            call = transaction_stub(self._cluster, address).DescribeProducers(
                request, timeout=_CALL_S, metadata=self._cluster.headers
            )
            return cast(pb.DescribeProducersResponse, await answer_of(call, address))
        except TidemarkError as error:
            return error

    def _coordinator(self, transactional_id: str) -> _Administered:
        return _Administered(self._cluster, transactional_id, timeout_s=self._timeout_s)


class _Administered(TransactionCoordinator):
    """An operator's calls to the coordinator of an id."""

    async def describe(self) -> TransactionDescription:
        """Describe the transactional id at its coordinator."""
        request = pb.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        ask = asks_for_one(lambda stub: stub.DescribeTransactions, lambda answer: answer.transactions)
        return _description(await self._calls.call(ask, request, timeout_s=self._timeout_s))

    async def abort(self) -> None:
        """Abort the open transaction of the id.

        The request names the transaction: without its name, a request that is repeated after a lost answer might abort
        the next one.
        """
        found = await self.describe()
        await self._call(
            "AbortTransaction",
            pb.AbortTransactionRequest(
                transactional_id=self.transactional_id, generation=found.generation, started_at_ms=found.started_at_ms
            ),
        )


def _listing(found: pb.TransactionSummary, broker_id: int) -> TransactionListing:
    return TransactionListing(
        found.transactional_id,
        found.phase,
        found.producer.producer_id,
        found.producer.producer_epoch,
        found.started_at_ms,
        broker_id,
    )


def _state(partition: TopicPartition, found: pb.PartitionProducers) -> PartitionState:
    opened = tuple(
        OpenInPartition(
            partition,
            identity_from_proto(one.producer),
            one.first_offset,
            one.last_timestamp_us,
            one.end_offset if one.HasField("end_offset") else None,
        )
        for one in found.open
    )
    return PartitionState(found.last_stable_offset, found.high_watermark, opened)


def _description(found: pb.TransactionDescription) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=found.transactional_id,
        phase=found.summary.phase,
        producer_id=found.summary.producer.producer_id,
        producer_epoch=found.summary.producer.producer_epoch,
        started_at_ms=found.summary.started_at_ms,
        timeout_ms=found.timeout_ms,
        updated_at_ms=found.updated_at_ms,
        generation=found.generation,
        last_sequence=found.last_sequence,
        partitions=tuple(
            (
                TopicPartition(one.topic, one.partition),
                identity_from_proto(one.producer),
            )
            for one in found.partitions
        ),
    )
