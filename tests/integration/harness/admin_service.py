# SPDX-License-Identifier: Apache-2.0
"""The admin service as a process, and a stand-in for the controller that creates and deletes topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.local.ports import HOST, HeldPorts
from tidemark.local.process import ServiceProcess
from tidemark.model import (
    FEATURES,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import ControllerTerm, StateWrite, StoreEvent
from tidemark.rpc.channel import open_channel
from tidemark.zookeeper.store import MetadataStore

READY_TIMEOUT_S = 20
RETRY_S = 0.05


class StandInController:
    """Initialises leaders of new topics and deletes the topics that are to be deleted, while `working`.

    Args:
        store: started.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._hints: asyncio.Queue[StoreEvent] = asyncio.Queue()
        store.listen(self._hints.put_nowait)
        self._term: ControllerTerm | None = None
        self._task: asyncio.Task[None] | None = None

    async def register_brokers(self, count: int) -> None:
        """Register brokers 0, 1, ... as live ones; their nodes belong to the store's session."""
        await self._store.create_cluster_id()
        for index in range(count):
            registration = BrokerRegistration(
                BrokerId(index),
                HOST,
                19192 + index,
                directory_ids=(f"directory-{index}",),
                boot_id="boot",
                features=FEATURES,
            )
            await self._store.register_broker(registration, clean=True, locked_directory_ids=frozenset())

    async def work(self) -> None:
        """Become the active controller, if not active yet, and begin."""
        self._term = self._term or await self._store.elect_controller(BrokerId(100), f"{HOST}:19193")
        assert self._term is not None
        self._task = asyncio.create_task(self._work(self._term))

    async def rest(self) -> None:
        """Stop working, but remain the active controller."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self, term: ControllerTerm) -> None:
        while True:
            try:
                await self._carry_out(term)
            except TidemarkError as error:
                if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                    raise
                await asyncio.sleep(RETRY_S)  # a controller, too, waits until ZooKeeper is back
                continue
            await self._hints.get()

    async def _carry_out(self, term: ControllerTerm) -> None:
        topics = await self._store.topics(watch=True)
        deletions = await self._store.requested_deletions(watch=True)
        for topic in topics.values():
            if topic.topic in deletions:
                await self._store.delete_topic(term, topic)
            else:
                await self._store.write_states(term, _states_of(topic))


def _states_of(topic: TopicDescription) -> list[StateWrite]:
    return [
        StateWrite(
            partition=TopicPartition(topic.topic, index),
            identity=ReplicaIdentity(topic.topic_id, topic.incarnations[index]),
            state=LeaderAndIsr(
                leader=replicas[0],
                leader_epoch=LeaderEpoch(0),
                isr=tuple(IsrEntry(broker, BrokerEpoch(0)) for broker in replicas),
                min_isr=min(int(topic.configs.get("min.insync.replicas", "2")), len(replicas)),
                controller_epoch=ControllerEpoch(1),
            ),
            expected_version=-1,
        )
        for index, replicas in topic.partitions.items()
    ]


@contextlib.asynccontextmanager
async def admin_process(
    zookeeper_connect: str, directory: Path, *flags: str, serving: bool = True
) -> AsyncIterator[tuple[str, str, ServiceProcess]]:
    """Addresses of the service and of its metrics, and the process, whose health is checked."""
    ports = HeldPorts()
    address = f"{HOST}:{ports.take('admin')}"
    metrics_address = f"{HOST}:{ports.take('admin metrics')}"
    arguments = [
        f"--zookeeper.connect={zookeeper_connect}",
        f"--listeners={address}",
        f"--metrics.listeners={metrics_address}",
        *flags,
    ]
    ports.hand_over()
    process = ServiceProcess("admin", "tidemark.admin", arguments, log=directory / "admin.log", environment={})
    process.start()
    try:
        await _until_it_says(serving, address, process)
        yield address, metrics_address, process
    finally:
        process.kill()
        ports.release()


async def _until_it_says(serving: bool, address: str, process: ServiceProcess) -> None:
    wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(READY_TIMEOUT_S), open_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await health.Check(
                    health_pb2.HealthCheckRequest(service="readiness"), wait_for_ready=True, timeout=2
                )
                if answer.status == wanted:
                    return
            assert process.running, process.log.read_text()
            await asyncio.sleep(0.05)
