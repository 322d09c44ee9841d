# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper for the contract suites, and the two clusters that the metadata store's suite runs on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.ports import StoreEvent
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.store import SessionMetadataStore, ZooKeeperMetadataStore

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper

HEARING_TIMEOUT_S = 20


class Ear:
    """What a store's listener was told."""

    def __init__(self, store: SessionMetadataStore) -> None:
        self._heard: asyncio.Queue[StoreEvent] = asyncio.Queue()
        store.listen(self._heard.put_nowait)

    async def hears(self, event: StoreEvent) -> None:
        """Returns when it has been told of `event`; fails when that takes too long."""
        async with asyncio.timeout(HEARING_TIMEOUT_S):
            while await self._heard.get() is not event:
                pass


class Cluster(Protocol):
    """An ensemble that can be put into trouble."""

    async def store(self, session_timeout_ms: int = 4000) -> SessionMetadataStore:
        """A started store with a session of its own."""

    async def expire(self, store: SessionMetadataStore) -> None:
        """Have the server end the store's session."""

    async def stop_serving(self) -> None:
        """No server can be reached."""

    async def serve_again(self) -> None:
        """Servers answer again, with all their data."""

    async def corrupt(self, path: str, data: bytes) -> None:
        """Put something there that no store would write."""


class FakeCluster:
    def __init__(self) -> None:
        self._ensemble = FakeZooKeeper(SystemClock())
        self._stores: list[FakeMetadataStore] = []

    async def store(self, session_timeout_ms: int = 4000) -> FakeMetadataStore:
        store = self._ensemble.store(session_timeout_ms)
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        store.session.expire()

    async def stop_serving(self) -> None:
        for store in self._stores:
            store.session.suspend()

    async def serve_again(self) -> None:
        for store in self._stores:
            store.session.resume()

    async def corrupt(self, path: str, data: bytes) -> None:
        self._ensemble.corrupt(path, data)

    async def close(self) -> None:
        for store in self._stores:
            await store.stop()


class RealCluster:
    def __init__(self, process: ZooKeeperProcess) -> None:
        self._process = process
        self._chroot = f"/{uuid.uuid4().hex}"
        self._stores: list[ZooKeeperMetadataStore] = []

    async def store(self, session_timeout_ms: int = 4000) -> ZooKeeperMetadataStore:
        store = ZooKeeperMetadataStore(self._process.connect + self._chroot, session_timeout_ms, SystemClock())
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        # Whoever has its id and password takes a session over; closing it ends it for its owner.
        thief = KazooClient(self._process.connect, client_id=store._session._client.client_id, timeout=4)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)
        await asyncio.to_thread(thief.close)

    async def stop_serving(self) -> None:
        self._process.kill()

    async def serve_again(self) -> None:
        await asyncio.to_thread(self._process.start)

    async def corrupt(self, path: str, data: bytes) -> None:
        client = KazooClient(self._process.connect + self._chroot, timeout=4)
        await asyncio.to_thread(client.start)
        await asyncio.to_thread(client.set, path, data)
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)

    async def close(self) -> None:
        for store in self._stores:
            await store.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(params=["fake", "zookeeper"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    made: FakeCluster | RealCluster
    if request.param == "fake":
        made = FakeCluster()
    else:
        process: ZooKeeperProcess = request.getfixturevalue("zookeeper")
        if not process.running:
            process.start()
        made = RealCluster(process)
    yield made
    await made.close()
