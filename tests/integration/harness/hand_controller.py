# SPDX-License-Identifier: Apache-2.0
"""Broker processes on a real ZooKeeper; the test itself plays the controller."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ServiceProcess
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import (
    BrokerId,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.ports import ControllerTerm, StateWrite, WriteOutcome
from tidemark.rpc.channel import open_channel
from tidemark.rpc.codecs.control import header_to_proto, leader_and_isr_to_proto
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.runtime.clock import SystemClock
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import controller_service_pb2
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceStub
from tidemark.zookeeper.store import ZooKeeperMetadataStore

SESSION_TIMEOUT_MS = 3000
CONTROLLER_ID = BrokerId(100)
DEADLINE_S = 20.0


class Brokers:
    """Broker processes; their ports are held, so that a restarted broker has the same ones."""

    def __init__(
        self, directory: Path, zookeeper: ZooKeeperProcess, count: int, flags: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._flags = {"controlled.shutdown.max.wait.ms": "0", **(flags or {})}
        self.connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
        self._ports = HeldPorts()
        self.ids = [BrokerId(index) for index in range(count)]
        for broker_id in self.ids:
            self._ports.take(str(broker_id))
            self._ports.take(f"{broker_id} metrics")
        self._ports.hand_over()
        self.processes = {broker_id: self._process(broker_id) for broker_id in self.ids}

    def address(self, broker_id: int) -> str:
        return f"{HOST}:{self._ports[str(broker_id)]}"

    def metrics_address(self, broker_id: int) -> str:
        return f"{HOST}:{self._ports[f'{broker_id} metrics']}"

    def log_directory(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def _process(self, broker_id: BrokerId) -> ServiceProcess:
        flags = {
            "broker.id": str(broker_id),
            "log.dirs": str(self.log_directory(broker_id)),
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "listeners": self.address(broker_id),
            "metrics.listeners": self.metrics_address(broker_id),
            "replica.lag.time.max.ms": "2000",
            "log.format": "text",
            **self._flags,
        }
        arguments = [text for name, value in flags.items() for text in (f"--{name}", value)]
        log = self.directory / f"broker-{broker_id}.log"
        services = str(Path(__file__).parents[3] / "services")
        return ServiceProcess(
            f"broker-{broker_id}", "tidemark.broker", arguments, log=log, environment={"PYTHONPATH": services}
        )

    async def start(self, *broker_ids: int) -> None:
        """Start the named brokers, or all, and wait until they serve."""
        ids = [BrokerId(broker_id) for broker_id in broker_ids] or self.ids
        for broker_id in ids:
            self.processes[broker_id].start()
        await asyncio.gather(*(self._wait_until_serving(broker_id) for broker_id in ids))

    async def _wait_until_serving(self, broker_id: BrokerId) -> None:
        process = self.processes[broker_id]
        async with asyncio.timeout(DEADLINE_S), open_channel(self.address(broker_id)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                if not process.running:
                    raise process.died("ended at its start")
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = await stub.Check(_SERVING, timeout=1.0)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(0.05)

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
        self._ports.release()


_SERVING: Final = health_pb2.HealthCheckRequest(service="tidemark.v1.BrokerService")


class HandController:
    """Holds /controller; elects, writes and sends commands only as the test orders."""

    def __init__(self, brokers: Brokers, store: ZooKeeperMetadataStore, term: ControllerTerm) -> None:
        self.brokers = brokers
        self.store = store
        self._term = term
        self.topics: dict[str, TopicDescription] = {}
        self.states: dict[TopicPartition, VersionedState] = {}

    async def create_topic(
        self, topic: str, *, replicas: Sequence[int], min_isr: int = 1, configs: Mapping[str, str] | None = None
    ) -> TopicPartition:
        """Create a partition whose first replica leads, with all replicas in sync."""
        partition = TopicPartition(topic, 0)
        assigned = tuple(BrokerId(broker_id) for broker_id in replicas)
        description = TopicDescription(
            topic, uuid.uuid4().hex, {0: assigned}, {0: uuid.uuid4().hex}, configs=dict(configs or {})
        )
        self.topics[topic] = await self.store.create_topic(description)
        live = await self.store.live_brokers()
        entries = tuple(IsrEntry(broker_id, live[broker_id].broker_epoch) for broker_id in assigned)
        state = LeaderAndIsr(assigned[0], LeaderEpoch(0), entries, min_isr=min_isr, controller_epoch=self._term.epoch)
        await self._write(partition, state, expected_version=-1)
        await self.tell(partition)
        return partition

    async def elect(self, partition: TopicPartition, leader: int, *, without: Sequence[int] = ()) -> None:
        """Elect another leader, in the next epoch, from ZooKeeper's state now; send commands to live brokers."""
        found = await self.refresh(partition)
        isr = tuple(entry for entry in found.state.isr if entry.broker_id not in without)
        state = replace(
            found.state, leader=BrokerId(leader), leader_epoch=LeaderEpoch(found.state.leader_epoch + 1), isr=isr
        )
        await self._write(partition, state, expected_version=found.version)
        await self.tell(partition)

    async def refresh(self, partition: TopicPartition) -> VersionedState:
        """The present content of the node."""
        self.states[partition] = (await self.store.states([partition], sync=True))[partition]
        return self.states[partition]

    async def wait_for_isr(self, partition: TopicPartition, *expected: int) -> None:
        """Wait until the leader has written that these are in sync."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.refresh(partition)
                if set(found.state.isr_ids) == set(expected):
                    return
                await asyncio.sleep(0.05)

    async def wait_until_gone(self, broker_id: int) -> None:
        """Wait until ZooKeeper has ended the session of a broker."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if BrokerId(broker_id) not in await self.store.live_brokers():
                    return
                await asyncio.sleep(0.05)

    async def wait_until_registered(self, broker_id: int, *, broker_epoch: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = (await self.store.live_brokers()).get(BrokerId(broker_id))
                if found is not None and found.broker_epoch == broker_epoch:
                    return
                await asyncio.sleep(0.05)

    async def _write(self, partition: TopicPartition, state: LeaderAndIsr, *, expected_version: int) -> None:
        write = StateWrite(partition, self.identity(partition), state, expected_version)
        (result,) = await self.store.write_states(self._term, [write])
        assert result.outcome is WriteOutcome.WRITTEN, result
        self.states[partition] = VersionedState(state, result.version)

    def identity(self, partition: TopicPartition) -> ReplicaIdentity:
        topic = self.topics[partition.topic]
        return ReplicaIdentity(topic.topic_id, topic.incarnations[partition.partition])

    async def tell(self, partition: TopicPartition) -> None:
        """Send LeaderAndIsr to the partition's live replicas, and UpdateMetadata to all live brokers."""
        topic = self.topics[partition.topic]
        assigned = topic.partitions[partition.partition]
        found = self.states[partition]
        live = {
            broker_id: registration
            for broker_id, registration in (await self.store.live_brokers()).items()
            if self.brokers.processes[broker_id].running
        }
        command = PartitionCommand(partition, self.identity(partition), assigned, found.state, found.version)
        for broker_id in assigned:
            if broker_id in live:
                answer = await self._insist(
                    broker_id,
                    "LeaderAndIsr",
                    leader_and_isr_to_proto(
                        LeaderAndIsrCommand(
                            CONTROLLER_ID,
                            self._term.epoch,
                            live[broker_id].broker_epoch,
                            (command,),
                            brokers=tuple(live.values()),
                            topic_configs={partition.topic: topic.configs},
                        )
                    ),
                )
                assert not answer.errors, answer
        view = PartitionView(
            partition.partition,
            found.state.leader,
            found.state.leader_epoch,
            assigned,
            found.state.isr_ids,
            self.identity(partition).incarnation,
            partition_epoch=found.version,
        )
        topics = {
            topic.topic: TopicView(
                topic.topic, topic.topic_id, topic.created_zxid, topic.modified_zxid, {view.partition: view}
            )
        }
        metadata = ClusterView("", CONTROLLER_ID, self._term.epoch, brokers=live, topics=topics, complete=True)
        for broker_id, registration in live.items():
            await self._insist(
                broker_id,
                "UpdateMetadata",
                controller_service_pb2.UpdateMetadataRequest(
                    header=header_to_proto(CONTROLLER_ID, self._term.epoch, registration.broker_epoch),
                    metadata=view_to_proto(metadata),
                ),
            )

    async def _insist(self, broker_id: int, method: str, request: Any) -> Any:
        """A broker that has just registered may not know it yet."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return await self.control(broker_id, method, request)
                except grpc.aio.AioRpcError as error:
                    if ErrorCode.STALE_BROKER_EPOCH not in (error.details() or ""):
                        raise
                await asyncio.sleep(0.02)

    async def control(self, broker_id: int, method: str, request: Any) -> Any:
        async with open_channel(self.brokers.address(broker_id)) as channel:
            return await getattr(BrokerControlServiceStub(channel), method)(request, timeout=DEADLINE_S)


class Client:
    """Calls of one broker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = BrokerServiceStub(channel)

    async def produce(
        self, partition: TopicPartition, *requests: Sequence[bytes], acks: int = -1, timeout_ms: int = 10_000
    ) -> list[pb.PartitionProduceResult]:
        """Send one request for each list of batches, pipelined; returns the results in the order of the requests."""
        call = self.stub.Produce(timeout=DEADLINE_S)
        for number, batches in enumerate(requests):
            part = pb.PartitionProduce(
                topic=partition.topic, partition=partition.partition, current_leader_epoch=-1, batches=batches
            )
            await call.write(
                pb.ProduceRequest(correlation_id=number, acks=acks, timeout_ms=timeout_ms, partitions=[part])
            )
        await call.done_writing()
        found = {response.correlation_id: response.partitions[0] async for response in call}
        return [found[number] for number in range(len(requests))]

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, epoch: int = -1
    ) -> pb.PartitionFetchResult:
        part = pb.PartitionFetch(
            topic=partition.topic,
            partition=partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            max_bytes=4 << 20,
        )
        request = pb.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=8 << 20, partitions=[part])
        response = await self.stub.Fetch(request, timeout=DEADLINE_S)
        result: pb.PartitionFetchResult = response.partitions[0]
        return result

    async def fetch_until(self, partition: TopicPartition, end_offset: int) -> pb.PartitionFetchResult:
        """Wait until the high watermark has reached this offset, then return all records below it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.fetch(partition, 0, max_wait_ms=500)
                if found.high_watermark >= end_offset:
                    return found
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def client_of(brokers: Brokers, broker_id: int) -> AsyncIterator[Client]:
    async with open_channel(brokers.address(broker_id)) as channel:
        yield Client(channel)


@contextlib.asynccontextmanager
async def controller_of(brokers: Brokers) -> AsyncIterator[HandController]:
    store = ZooKeeperMetadataStore(brokers.connect, session_timeout_ms=6000, clock=SystemClock())
    await store.start()
    try:
        term = await store.elect_controller(CONTROLLER_ID, f"{HOST}:1")
        assert term is not None
        yield HandController(brokers, store, term)
    finally:
        await store.stop()
