# SPDX-License-Identifier: Apache-2.0
"""Two controller processes on a real ZooKeeper; brokers are gRPC servers here that note the commands they get."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.replication.controller_hints import GrpcControllerHints
from tidemark.broker.replication.isr_store import IsrStore
from tidemark.core.replication.effects import ReportLogFailed, ResignLeadership
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ServiceProcess
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    LeaderEpoch,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.clock import SystemClock
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import (
    BrokerControlServiceServicer,
    add_BrokerControlServiceServicer_to_server,
)
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.children import resume, suspend
from tests.fakes.grpc_server import make_server

SESSION_TIMEOUT_MS = 6000
DEADLINE_S = 30.0


class FakeBroker(BrokerControlServiceServicer):
    """Accepts every command, and notes it."""

    def __init__(self, broker_id: int, connect: str) -> None:
        self.broker_id = BrokerId(broker_id)
        self.store = ZooKeeperMetadataStore(connect, SESSION_TIMEOUT_MS, SystemClock())
        self.broker_epoch = -1
        self.leaders: dict[str, tuple[int, int]] = {}
        self.shown: dict[str, int] = {}
        self.told_all_by: set[int] = set()
        self.suspected: set[int] = set()
        service = Service(add_BrokerControlServiceServicer_to_server, self, "tidemark.v1.BrokerControlService")
        self.server: GrpcServer = make_server(HOST, 0, [service])

    async def start(self) -> None:
        await self.server.start()
        await self.store.start()
        registration = BrokerRegistration(
            self.broker_id, HOST, self.server.port, directory_ids=(uuid.uuid4().hex,), boot_id="boot"
        )
        await self.store.create_cluster_id()
        self.broker_epoch = await self.store.register_broker(registration, clean=True, locked_directory_ids=frozenset())

    async def stop(self) -> None:
        await self.server.stop(0)
        await self.store.stop()

    async def LeaderAndIsr(self, request: pb.LeaderAndIsrRequest, context: object) -> pb.LeaderAndIsrResponse:  # noqa: N802
        for topic in request.topics:
            for one in topic.partitions:
                self.leaders[f"{topic.topic}-{one.partition}"] = (one.leader, one.leader_epoch)
        if request.complete:
            self.told_all_by.add(request.header.controller_epoch)
        self.suspected = set(request.suspected)
        return pb.LeaderAndIsrResponse()

    async def StopReplica(self, request: pb.StopReplicaRequest, context: object) -> pb.StopReplicaResponse:  # noqa: N802
        return pb.StopReplicaResponse()

    async def UpdateMetadata(self, request: pb.UpdateMetadataRequest, context: object) -> pb.UpdateMetadataResponse:  # noqa: N802
        for topic in request.metadata.topics:
            for one in topic.partitions:
                self.shown[f"{topic.topic}-{one.partition}"] = one.leader
        return pb.UpdateMetadataResponse()

    async def Heartbeat(self, requests: Any, context: object) -> AsyncIterator[pb.HeartbeatResponse]:  # noqa: N802
        async for request in requests:
            yield pb.HeartbeatResponse(sequence=request.sequence, broker_epoch=self.broker_epoch)


class Cluster:
    """Two controllers, some fake brokers, one store of the test's own."""

    def __init__(self, directory: Path, zookeeper: ZooKeeperProcess) -> None:
        self.connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
        self.store = ZooKeeperMetadataStore(self.connect, SESSION_TIMEOUT_MS, SystemClock())
        self.brokers: dict[int, FakeBroker] = {}
        self._ports = HeldPorts()
        self.controllers = {index: self._controller(directory, index) for index in (100, 101)}
        self._ports.hand_over()

    def _controller(self, directory: Path, controller_id: int) -> ServiceProcess:
        flags = {
            "controller.id": str(controller_id),
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": "3000",
            "listeners": f"{HOST}:{self._ports.take(str(controller_id))}",
            "metrics.listeners": f"{HOST}:{self._ports.take(f'{controller_id} metrics')}",
            "log.format": "text",
        }
        arguments = [text for name, value in flags.items() for text in (f"--{name}", value)]
        return ServiceProcess(
            f"controller-{controller_id}",
            "tidemark.controller",
            arguments,
            log=directory / f"controller-{controller_id}.log",
            environment={"PYTHONPATH": str(Path(__file__).parents[3] / "services")},
        )

    async def start(self, *brokers: int) -> None:
        await self.store.start()
        for broker in brokers:
            self.brokers[broker] = FakeBroker(broker, self.connect)
            await self.brokers[broker].start()
        for process in self.controllers.values():
            process.start()
        await until(lambda: all(broker.told_all_by for broker in self.brokers.values()))

    async def stop(self) -> None:
        for process in self.controllers.values():
            process.kill()
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        await self.store.stop()
        self._ports.release()

    async def active(self) -> int:
        found = await self.store.controller()
        return -1 if found is None else found.controller_id

    async def create_topic(self, name: str, *replicas: int, min_isr: int = 2) -> TopicPartition:
        await self.store.create_topic(
            TopicDescription(
                name,
                uuid.uuid4().hex,
                {0: tuple(BrokerId(one) for one in replicas)},
                {0: uuid.uuid4().hex},
                configs={"min.insync.replicas": str(min_isr)},
            )
        )
        return TopicPartition(name, 0)

    async def identity(self, partition: TopicPartition) -> ReplicaIdentity:
        topic = (await self.store.topics([partition.topic]))[partition.topic]
        return ReplicaIdentity(topic.topic_id, topic.incarnations[partition.partition])

    async def state(self, partition: TopicPartition) -> VersionedState:
        return (await self.store.states([partition], sync=True))[partition]


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> float:
    """Wait for it; seconds it took."""
    began_s = time.monotonic()
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - other processes make the condition true
            await asyncio.sleep(0.01)
    return time.monotonic() - began_s


@asynccontextmanager
async def started(directory: Path, zookeeper: ZooKeeperProcess, *brokers: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, zookeeper)
    try:
        await cluster.start(*brokers)
        yield cluster
    finally:
        await cluster.stop()


@pytest.mark.alone
async def test_a_new_topic_has_a_leader_within_a_second_and_all_brokers_know(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    async with started(tmp_path, zookeeper, 0, 1, 2) as cluster:
        partition = await cluster.create_topic("flights", 0, 1)
        everybody = cluster.brokers.values()
        assert await until(lambda: all(one.shown.get("flights-0") == 0 for one in everybody)) < 1.0
        await until(lambda: cluster.brokers[1].leaders.get("flights-0") == (0, 0))
        assert "flights-0" not in cluster.brokers[2].leaders
        assert (await cluster.state(partition)).state.isr_ids == (0, 1)


async def test_a_malformed_topic_node_does_not_stop_the_controller(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    async with started(tmp_path, zookeeper, 0, 1) as cluster:
        client = KazooClient(cluster.connect)
        await asyncio.to_thread(client.start)
        try:
            await asyncio.to_thread(client.create, "/brokers/topics/broken", b"{no json")
        finally:
            await asyncio.to_thread(client.stop)
            await asyncio.to_thread(client.close)
        await cluster.create_topic("flights", 0, 1)
        await until(lambda: cluster.brokers[1].shown.get("flights-0") == 0)
        process = cluster.controllers[await cluster.active()]
        assert "broken" in process.log.read_text()


async def test_the_standby_of_a_killed_controller_updates_every_broker(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    async with started(tmp_path, zookeeper, 0, 1, 2) as cluster:
        await cluster.create_topic("flights", 0, 1)
        await until(lambda: cluster.brokers[1].leaders.get("flights-0") == (0, 0))
        first = await cluster.active()
        cluster.controllers[first].kill()
        await until(lambda: all(len(one.told_all_by) == 2 for one in cluster.brokers.values()))
        assert await cluster.active() not in (first, -1)
        await cluster.create_topic("later", 1, 2)
        await until(lambda: cluster.brokers[0].shown.get("later-0") == 1)
        assert cluster.brokers[0].leaders["flights-0"] == (0, 0)


@pytest.mark.alone
async def test_a_broker_that_listens_no_more_loses_its_leaderships_long_before_its_session_ends(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    async with started(tmp_path, zookeeper, 0, 1, 2) as cluster:
        partition = await cluster.create_topic("flights", 0, 1, 2)
        await until(lambda: cluster.brokers[2].leaders.get("flights-0") == (0, 0))
        await cluster.brokers[0].server.stop(0)
        assert await until(lambda: cluster.brokers[1].leaders.get("flights-0") == (1, 1)) < 2.0
        assert (await cluster.state(partition)).state.isr_ids == (1, 2)
        assert BrokerId(0) in await cluster.store.live_brokers()
        assert cluster.brokers[1].suspected == {0}


@pytest.mark.alone
async def test_a_leader_that_gives_up_is_relieved_and_stays_in_sync(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    async with started(tmp_path, zookeeper, 0, 1, 2) as cluster:
        partition = await cluster.create_topic("flights", 0, 1, 2)
        await until(lambda: cluster.brokers[2].leaders.get("flights-0") == (0, 0))
        failures: list[BaseException] = []
        epoch = OwnEpoch(BrokerEpoch(cluster.brokers[0].broker_epoch))
        leader = IsrStore(
            cluster.brokers[0].store,
            GrpcControllerHints(BrokerId(0), await cluster.store.cluster_id(), cluster.brokers[0].store, epoch),
            AsyncioScheduler(),
            lambda event: None,
            failures.append,
        )
        leader.resign(ResignLeadership(partition, await cluster.identity(partition), LeaderEpoch(0)))
        assert await until(lambda: cluster.brokers[0].leaders.get("flights-0") == (1, 1)) < 2.0
        assert (await cluster.state(partition)).state.isr_ids == (0, 1, 2)
        await leader.stop()
        assert failures == []


async def test_damage_invalidates_earlier_registrations_and_a_failed_log_all(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    async with started(tmp_path, zookeeper, 0, 1, 2) as cluster:
        damaged = await cluster.create_topic("damaged", 0, 1, 2)
        failed = await cluster.create_topic("failed", 0, 1, 2)
        await until(lambda: cluster.brokers[2].leaders.get("failed-0") == (0, 0))
        failures: list[BaseException] = []
        epoch = OwnEpoch(BrokerEpoch(cluster.brokers[1].broker_epoch))
        follower = IsrStore(
            cluster.brokers[1].store,
            GrpcControllerHints(BrokerId(1), await cluster.store.cluster_id(), cluster.brokers[1].store, epoch),
            AsyncioScheduler(),
            lambda event: None,
            failures.append,
        )
        follower.report_failed(ReportLogFailed(damaged, await cluster.identity(damaged), LeaderEpoch(0), damaged=True))
        follower.report_failed(ReportLogFailed(failed, await cluster.identity(failed), LeaderEpoch(0)))
        for _ in range(500):
            if (await cluster.state(failed)).state.isr_ids == (0, 2):
                break
            await asyncio.sleep(0.02)
        assert (await cluster.state(failed)).state.isr_ids == (0, 2)
        assert (await cluster.state(damaged)).state.isr_ids == (0, 1, 2)
        await follower.stop()
        assert failures == []


async def test_a_controller_that_starts_before_zookeeper_answers_waits_for_it(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    cluster = Cluster(tmp_path, zookeeper)
    process = cluster.controllers[100]
    suspend(zookeeper.pid)
    try:
        process.start()
        await until(lambda: process.log.exists() and "waiting for ZooKeeper" in process.log.read_text())
    finally:
        resume(zookeeper.pid)
    try:
        await until(lambda: '"elected"' in process.log.read_text() or " elected" in process.log.read_text())
        assert process.running
    finally:
        await cluster.stop()


@pytest.mark.alone
async def test_a_stopping_controller_resigns_at_once(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    async with started(tmp_path, zookeeper, 0, 1) as cluster:
        first = await cluster.active()
        cluster.controllers[first].signal(signal.SIGTERM)
        assert await until(lambda: all(len(one.told_all_by) == 2 for one in cluster.brokers.values())) < 2.5
        assert await cluster.active() not in (first, -1)
        assert await asyncio.to_thread(cluster.controllers[first].wait, DEADLINE_S)
        assert cluster.controllers[first].exit_status == 0
