# SPDX-License-Identifier: Apache-2.0
"""A transactional producer without a client: the test chooses the records of each transaction."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tidemark.client.metadata.cluster import Cluster
from tidemark.client.transactions.coordinator import Started, TransactionCoordinator, transaction_stub
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import split_batches
from tidemark.record.markers import EndMarker, read_marker
from tidemark.record.payload import build_batch, from_columns, read_batch
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import transaction_service_pb2 as txn_pb
from tidemark.v1.record_pb2 import PartitionRef

WAIT_S = 20.0
_PAUSE_S = 0.02


class Transactional:
    """Calls of one test's transactional producers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def coordinator(self, transactional_id: str) -> TransactionCoordinator:
        return TransactionCoordinator(self.cluster, transactional_id, timeout_s=WAIT_S)

    async def start(self, timeout_ms: int = 60_000) -> tuple[TransactionCoordinator, Started]:
        """A producer with an id of its own."""
        coordinator = self.coordinator(f"txn-{uuid.uuid4().hex[:12]}")
        return coordinator, await coordinator.init(timeout_ms)

    async def write(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partition: TopicPartition,
        *values: bytes,
        first: int = 0,
    ) -> None:
        """Append a pending batch, with retries of retriable refusals; raises other refusals.

        A leader may learn of a new topic after the broker that named it as the leader.
        """
        data = build_batch(
            from_columns([b""] * len(values), values, [time.time_ns() // 1000] * len(values)),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=first,
            pending=True,
        )
        deadline_s = time.monotonic() + WAIT_S
        while True:
            leader = await self.cluster.leader_in_time(partition, deadline_s=deadline_s)
            request = pb.ProduceRequest(acks=-1, timeout_ms=5000, transactional_id=transactional_id)
            request.partitions.add(
                topic=partition.topic, partition=partition.partition, current_leader_epoch=-1, batches=[data]
            )
            error = await self._produce(leader.address, request)
            if error is None:
                return
            is_passing = error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC
            if not is_passing or time.monotonic() > deadline_s:
                raise error
            self.cluster.refresh()
            await asyncio.sleep(_PAUSE_S)

    async def _produce(self, address: str, request: pb.ProduceRequest) -> TidemarkError | None:
        stream: Any = self.cluster.stub(address).Produce(timeout=WAIT_S)
        try:
            await stream.write(request)
            part = (await stream.read()).partitions[0]
        except Exception as error:  # noqa: BLE001 - the broker was killed: the producer asks the next leader
            return TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, str(error))
        finally:
            stream.cancel()
        return errors.from_proto(part.error) if part.HasField("error") else None

    async def open_in(self, partition: TopicPartition) -> list[ProducerIdentity]:
        """The producers with an open transaction in the log of the leader."""
        opened = (await self._state(partition)).open
        return [ProducerIdentity(one.producer.producer_id, one.producer.producer_epoch) for one in opened]

    async def closed(self, *partitions: TopicPartition) -> None:
        """Wait until the markers of all transactions in these partitions are committed."""
        deadline_s = time.monotonic() + WAIT_S
        for partition in partitions:
            while (found := await self._state(partition)).last_stable_offset < found.high_watermark or found.open:
                assert time.monotonic() < deadline_s, f"{partition} has an open transaction: {found}"
                await asyncio.sleep(_PAUSE_S)

    async def _state(self, partition: TopicPartition) -> txn_pb.PartitionProducers:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            leader = await self.cluster.leader_in_time(partition, deadline_s=deadline_s)
            request = txn_pb.DescribeProducersRequest(
                partitions=[PartitionRef(topic=partition.topic, partition=partition.partition)]
            )
            stub = transaction_stub(self.cluster, leader.address)
            answer: txn_pb.PartitionProducers = (await stub.DescribeProducers(request, timeout=WAIT_S)).partitions[0]
            if not answer.HasField("error"):
                return answer
            assert time.monotonic() < deadline_s, answer.error
            self.cluster.refresh()
            await asyncio.sleep(_PAUSE_S)

    async def log(self, partition: TopicPartition) -> list[bytes | EndMarker]:
        """The values and the markers of a partition, in order, of open transactions too."""
        leader = await self.cluster.leader_in_time(partition, deadline_s=time.monotonic() + WAIT_S)
        request = pb.FetchRequest(max_bytes=1 << 20)
        request.partitions.add(topic=partition.topic, partition=partition.partition, current_leader_epoch=-1)
        answer = await self.cluster.stub(leader.address).Fetch(request, timeout=WAIT_S)
        return list(_content(answer.partitions[0].batches))

    async def describe(self, transactional_id: str) -> txn_pb.TransactionDescription:
        found = await self._find(transactional_id)
        request = txn_pb.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        stub = transaction_stub(self.cluster, f"{found.host}:{found.port}")
        answer: txn_pb.DescribeTransactionsResponse = await stub.DescribeTransactions(request, timeout=WAIT_S)
        return answer.transactions[0]

    async def coordinator_id(self, transactional_id: str) -> int:
        """The broker that coordinates an id."""
        return (await self._find(transactional_id)).broker_id

    async def _find(self, transactional_id: str) -> txn_pb.FindTransactionCoordinatorResponse:
        deadline_s = time.monotonic() + WAIT_S
        request = txn_pb.FindTransactionCoordinatorRequest(transactional_id=transactional_id)
        while True:
            for address in self.cluster.addresses():
                try:
                    stub = transaction_stub(self.cluster, address)
                    found: txn_pb.FindTransactionCoordinatorResponse = await stub.FindTransactionCoordinator(
                        request, timeout=5
                    )
                    return found
                except Exception:  # noqa: BLE001 - another broker may know
                    assert time.monotonic() < deadline_s
            await asyncio.sleep(_PAUSE_S)


def _content(data: bytes) -> Iterator[bytes | EndMarker]:
    for batch in split_batches(data):
        marker = read_marker(batch)
        if marker is not None:
            yield marker
            continue
        yield from (value or b"" for value in read_batch(batch).column(1).to_pylist())
