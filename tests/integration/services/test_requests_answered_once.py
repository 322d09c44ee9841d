# SPDX-License-Identifier: Apache-2.0
"""Requests repeated after a kill of the admin process, on a real ZooKeeper; a stand-in plays the controller."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tidemark.admin.polling import poll
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.rpc.channel import open_channel
from tidemark.runtime.clock import SystemClock
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.integration.harness.admin_service import StandInController, admin_process

TIMEOUT_S = 20
CREATION = pb.CreateTopicRequest(topic="flights", partitions=2, replication_factor=3, request_id="deploy/7")
DELETION = pb.DeleteTopicRequest(topic="flights", request_id="deploy/8")


class World:
    """A ZooKeeper of its own, a stand-in for the controller, and admin processes one after another."""

    def __init__(self, connect: str, directory: Path, store: ZooKeeperMetadataStore) -> None:
        self.connect = connect
        self.store = store
        self.controller = StandInController(store)
        self._directory = directory
        self._starts = 0

    async def killed_during(self, method: str, request: object) -> None:
        """Have an admin process begin the request, and kill the process once the record of the request is stored."""
        directory, request_id = self._next_directory(), str(request.request_id)  # type: ignore[attr-defined]
        async with admin_process(self.connect, directory) as (address, _, process), open_channel(address) as channel:
            call = getattr(AdminServiceStub(channel), method)(request, timeout=TIMEOUT_S)
            assert await poll(lambda: self.store.kept_request(request_id), TIMEOUT_S) is not None
            process.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    async def answer(self, method: str, request: object) -> object:
        """The answer of an admin process that has not seen the request before."""
        directory = self._next_directory()
        async with admin_process(self.connect, directory) as (address, _, _), open_channel(address) as channel:
            return await getattr(AdminServiceStub(channel), method)(request, timeout=TIMEOUT_S)

    def _next_directory(self) -> Path:
        self._starts += 1
        directory = self._directory / f"admin-{self._starts}"
        directory.mkdir()
        return directory


@pytest.fixture
async def world(zookeeper: ZooKeeperProcess, tmp_path: Path) -> AsyncIterator[World]:
    connect = f"{zookeeper.connect}/{uuid.uuid4().hex}"
    store = ZooKeeperMetadataStore(connect, 6000, SystemClock())
    await store.start()
    world = World(connect, tmp_path, store)
    await world.controller.register_brokers(3)
    try:
        yield world
    finally:
        await world.controller.rest()
        await store.stop()


async def test_the_next_process_completes_a_killed_ones_request_with_the_same_answer(
    world: World,
) -> None:
    await world.killed_during("CreateTopic", CREATION)
    await world.controller.work()
    made = await world.answer("CreateTopic", CREATION)
    assert isinstance(made, pb.CreateTopicResponse)
    assert (await world.store.topics())["flights"].topic_id == made.topic.topic_id

    await world.controller.rest()
    await world.killed_during("DeleteTopic", DELETION)
    await world.controller.work()
    await world.answer("DeleteTopic", DELETION)  # the deletion was requested, or the next process requests it
    assert await world.store.topics() == {}

    second = pb.CreateTopicRequest(topic="flights", partitions=1, replication_factor=1)
    await world.answer("CreateTopic", second)
    assert await world.answer("DeleteTopic", DELETION) == pb.DeleteTopicResponse()
    assert await world.answer("CreateTopic", CREATION) == made
    (topic,) = (await world.store.topics()).values()
    assert len(topic.partitions) == 1, "neither was done again"
    assert topic.topic_id != made.topic.topic_id
