# SPDX-License-Identifier: Apache-2.0
"""A console over a cluster in memory, and a browser without a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from tidemark.client.aio.admin.results import ClusterDescription
from tidemark.client.aio.admin.topic_schemas import TopicSchemas
from tidemark.client.outputs.shape import Shape
from tidemark.console.app import Console
from tidemark.console.identity import Identity
from tidemark.console.metrics import ConsoleMetrics
from tidemark.console.queries import records
from tidemark.console.queries.record_scan import Where
from tidemark.console.queries.records import Asking, Found
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.isr_change_reasons import IsrChange
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.model import (
    BrokerRegistration,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    UncleanElection,
    unknown_topic,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk
from tidemark.runtime.configuration.entries import ConfigEntry, ConfigSource
from tidemark.runtime.metrics import Metrics

from tests.unit.console.record_log import FakeLog


def topic(
    name: str, partitions: int = 1, *, isr: tuple[int, ...] = (0, 1, 2), leader: int = 0, **more: Any
) -> TopicView:
    views = {index: PartitionView(index, leader, 3, (0, 1, 2), isr) for index in range(partitions)}
    return TopicView(name, f"id of {name}", partitions=views, **more)


class FakeCluster:
    """Answers as the admin service does.

    Attributes:
        isr_changes: of each partition, by the broker that noted them.
        calls: names of the methods called, in order.
        failure: raised by every call.
        failures: raised by the calls of a method.
        hangs: calls wait for it.
        called: set by each call.
    """

    def __init__(self) -> None:
        self.live = [0, 1, 2]
        self.host = "localhost"
        self.controller = 100
        self.topics: dict[str, TopicView] = {}
        self.obstacles: list[RestartObstacle] = []
        self.configs: list[ConfigEntry] = []
        self.elections: list[UncleanElection] = []
        self.isr_changes: dict[int, list[IsrChange]] = {}
        self.calls: list[str] = []
        self.failure: Exception | None = None
        self.failures: dict[str, Exception] = {}
        self.hangs: asyncio.Event | None = None
        self.called = asyncio.Event()
        self.tokens: list[str] = []
        self.log = FakeLog()

    def add(self, *views: TopicView) -> None:
        self.topics |= {view.topic: view for view in views}

    async def describe_cluster(self) -> ClusterDescription:
        brokers = {one: BrokerRegistration(one, self.host, 9000 + one, rack=f"r{one}") for one in self.live}
        partitions = [one for view in self.topics.values() for one in view.partitions.values()]
        behind = sum(len(one.in_sync_replicas) < len(one.assigned_replicas) for one in partitions)
        offline = sum(one.leader < 0 for one in partitions)
        view = ClusterView("a cluster", self.controller, 1, "localhost:9194", brokers)
        return ClusterDescription(view, len(self.topics), len(partitions), behind, 0, offline)

    async def describe_topics(self, names: Any = ()) -> list[TopicView]:
        wanted = names or sorted(self.topics)
        return [self.topics.get(name) or TopicView(name, "", error=unknown_topic(name)) for name in wanted]

    async def describe_log_dirs(
        self, brokers: Any = (), *, topics: Any = (), partitions: Any = (), include_isr_changes: bool = False
    ) -> list[BrokerLogDirs]:
        wanted = [
            *partitions,
            *(TopicPartition(name, index) for name in topics for index in self.topics[name].partitions),
        ]
        return [
            BrokerLogDirs(
                broker,
                (
                    LogDirectoryContent(
                        "d", "/data", 1000, 400, None, self._replicas(broker, wanted, include_isr_changes)
                    ),
                ),
            )
            for broker in self.live
        ]

    def _replicas(self, broker: int, wanted: list[TopicPartition], changes: bool) -> tuple[ReplicaOnDisk, ...]:
        same = ReplicaIdentity("t", "i")
        lag = 5 if broker == 2 else 0
        return tuple(
            ReplicaOnDisk(
                one,
                same,
                2048,
                Offset(0),
                Offset(12 - lag),
                Offset(10),
                broker == 0,
                lag,
                50.0,
                False,
                isr_changes=tuple(self.isr_changes.get(broker, ())) if changes else (),
            )
            for one in wanted
        )

    async def describe_configs(self, resources: Any, keys: Any = ()) -> Any:
        return dict.fromkeys(resources, self.configs)

    async def obstacles_to_restart(self, broker: int) -> list[RestartObstacle]:
        return self.obstacles

    async def list_unclean_elections(self, topics: Any = ()) -> list[UncleanElection]:
        return self.elections

    async def find(self, asking: Asking) -> Found:
        return records.find(self.log, asking, lambda: 0.0)

    async def download(self, asking: Asking, shape: Shape) -> bytes:
        return records.download(self.log, asking, shape, lambda: 0.0)

    async def record(self, where: Where, offset: int, *, has_schema: bool) -> Any:
        return records.record(self.log, where, offset, has_schema=has_schema)

    async def describe_topic_schemas(self, name: str) -> TopicSchemas:
        return TopicSchemas("", (), "backward")


class FakeClients:
    """Takes the place of `Clients`: every client is the cluster in memory."""

    def __init__(self, cluster: FakeCluster, *, secure: bool = False) -> None:
        self.cluster = cluster
        self.secure = secure

    async def call(self, identity: Identity, kind: Any, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        recorder = _Recorder(self.cluster)
        self.cluster.tokens.append(identity.token)
        return await ask(recorder)

    async def close_idle(self) -> None:
        pass

    async def close(self) -> None:
        pass


class _Recorder:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def method(*arguments: Any, **options: Any) -> Any:
            self._cluster.calls.append(name)
            self._cluster.called.set()
            if self._cluster.hangs is not None:
                await self._cluster.hangs.wait()
            failure = self._cluster.failures.get(name, self._cluster.failure)
            if failure is not None:
                raise failure
            return await getattr(self._cluster, name)(*arguments, **options)

        return method


class Clock:
    """A clock in milliseconds since 1970 that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.configs = [
        ConfigEntry("retention.ms", "5", ConfigSource.TOPIC, "int", "ms", "topic", "Age", "0 and up", "7"),
        ConfigEntry("segment.ms", "9", ConfigSource.DEFAULT, "int", "ms", "topic", "Roll", "1 and up", "9"),
    ]
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secure() -> bool:
    """Whether users need a token; tests parametrize it."""
    return False


@pytest.fixture
def write() -> bool:
    """The setting console.write; tests parametrize it."""
    return False


@pytest.fixture
async def console(cluster: FakeCluster, clock: Clock, secure: bool, write: bool) -> Console:
    clients: Any = FakeClients(cluster, secure=secure)
    metrics = ConsoleMetrics(Metrics())
    return Console(clients, hosts=("console.example",), write=write, metrics=metrics, now_ms=clock)


@pytest.fixture
async def browser(console: Console) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(console.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9195") as client:
        yield client


JSON = {"Accept": "application/json"}


def refused(code: Any, sentence: str = "it is refused") -> TidemarkError:
    return TidemarkError(code, sentence)
