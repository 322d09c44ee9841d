# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper for the contract suites, and the two clusters that the metadata store's suite runs on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.ports import StoreEvent
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.security.tls import ZooKeeperTls
from tidemark.zookeeper.store import MetadataStore, ZooKeeperMetadataStore

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper

HEARING_TIMEOUT_S = 20


class Ear:
    """Notifications that a store's listener received."""

    def __init__(self, store: MetadataStore) -> None:
        self._heard: asyncio.Queue[StoreEvent] = asyncio.Queue()
        store.listen(self._heard.put_nowait)

    async def hears(self, event: StoreEvent) -> None:
        """Returns once the store has notified it of `event`; fails after a timeout."""
        async with asyncio.timeout(HEARING_TIMEOUT_S):
            while await self._heard.get() is not event:
                pass


OUTAGE_SESSION_MS = 20_000
"""The timeout of a session that outlives a restart of ZooKeeper on a busy machine, since nothing renews it here."""


class Cluster(Protocol):
    """An ensemble that injects faults."""

    async def store(self, session_timeout_ms: int = 4000) -> MetadataStore:
        """A started store with a session of its own."""

    async def expire(self, store: MetadataStore) -> None:
        """Have the server end the store's session."""

    async def stop_serving(self) -> None:
        """Stop all servers."""

    async def serve_again(self) -> None:
        """Start the servers again, with all their data."""

    async def corrupt(self, path: str, data: bytes) -> None:
        """Write content that no store would write."""


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
    """A closed ZooKeeper: sessions need the certificate of a service, and every node has an ACL."""

    def __init__(self, process: ZooKeeperProcess, tls: ZooKeeperTls) -> None:
        self._process = process
        self._tls = tls
        self._chroot = f"/{uuid.uuid4().hex}"
        self._stores: list[ZooKeeperMetadataStore] = []

    async def store(self, session_timeout_ms: int = 4000) -> ZooKeeperMetadataStore:
        connect = self._process.connect + self._chroot
        store = ZooKeeperMetadataStore(connect, session_timeout_ms, SystemClock(), self._tls)
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: Any) -> None:
        """End the session of a store: a client with its id and password takes the session over, and closes it.

        A store that connects again before the close takes its session back; then the client tries again.
        """
        client = store._session._client
        while store._session._client is client:
            thief = self._client(client_id=client.client_id)
            await asyncio.to_thread(thief.start)
            await asyncio.to_thread(thief.stop)
            await asyncio.to_thread(thief.close)
            for _ in range(20):
                if store._session._client is client:
                    await asyncio.sleep(0.1)

    async def stop_serving(self) -> None:
        self._process.kill()

    async def serve_again(self) -> None:
        await asyncio.to_thread(self._process.start)

    async def corrupt(self, path: str, data: bytes) -> None:
        client = self._client(self._chroot)
        await asyncio.to_thread(client.start)
        await asyncio.to_thread(client.set, path, data)
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)

    async def close(self) -> None:
        for store in self._stores:
            await store.stop()

    def _client(self, chroot: str = "", **options: Any) -> KazooClient:
        return KazooClient(self._process.connect + chroot, timeout=4, handler=self._tls.handler(), **options)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper on plain text, for tests of sessions."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("certs"), "shop")


@pytest.fixture(scope="session")
def secure_zookeeper(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper that accepts sessions with a certificate only."""
    files = authority.issue_zookeeper("1", ("127.0.0.1",))
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"), tls=files) as process:
        yield process


@pytest.fixture(scope="session")
def service_tls(authority: Authority) -> ZooKeeperTls:
    return ZooKeeperTls(authority.issue_service(Role.BROKER, "1", ("127.0.0.1",)))


@pytest.fixture(params=["fake", "zookeeper"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    made: FakeCluster | RealCluster
    if request.param == "fake":
        made = FakeCluster()
    else:
        process: ZooKeeperProcess = request.getfixturevalue("secure_zookeeper")
        if not process.running:
            process.start()
        made = RealCluster(process, request.getfixturevalue("service_tls"))
    yield made
    await made.close()
