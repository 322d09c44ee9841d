# SPDX-License-Identifier: Apache-2.0
"""A cluster with data moves from plain text to TLS by restarts of single services, and loses no record."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.client import AdminClient, TidemarkError
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.cluster import ADMIN, LocalCluster
from tidemark.local.ports import HOST, HeldPorts
from tidemark.rpc.security.paths import SETTINGS

from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.harness.waiting import wait_for

PARTITIONS, TOPIC = 12, "moving"
OPEN = (Listener.PLAIN, Listener.INTERNAL, Listener.MTLS)
STEPS = {
    "used": OPEN,
    "open": (Listener.INTERNAL, Listener.MTLS, Listener.PLAIN),
    "closed": (Listener.INTERNAL, Listener.MTLS),
}
"""The listeners of each step, the one first that services use."""


class Moving:
    """A cluster that began in plain text; each step changes the flags of the next start of every service."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory / "cluster", brokers=2, controllers=1)
        self._plain: dict[str, list[str]] = {}
        self._ports = HeldPorts()
        for name in self.cluster.names:
            for listener in (*Listener, "health"):
                self._ports.take(f"{name} {listener}")
        self._authority = Authority.create(directory / "certs", "shop")
        self.client = self._authority.issue_client("alice")

    def address(self, name: str, listener: Listener) -> str:
        if listener is Listener.PLAIN:
            return self.cluster.address(name)
        return f"{HOST}:{self._ports[f'{name} {listener}']}"

    def move(self, step: str) -> None:
        """Restart each service with the listeners of the step, each one when the one before is ready."""
        for name in self.cluster.names:
            kind, _, number = name.partition("-")
            files = self._authority.issue_service(Role(kind), number or "admin", (HOST,))
            flags = dict(zip(SETTINGS, files, strict=True))
            flags["listeners"] = self._addresses(name, step)
            flags["health.listeners"] = probed = f"{HOST}:{self._ports[f'{name} health']}"
            if kind == "broker":
                flags["admin.address"] = self._addresses(ADMIN, step)
            self.cluster.terminate(name)
            process = self.cluster.process(name)
            plain = self._plain.setdefault(name, process._command)
            process._command = [*plain, *chain.from_iterable((f"--{key}", str(flags[key])) for key in flags)]
            process.start()
            wait_for(partial(self._ready, probed), f"{name} is ready in step {step}")
            wait_for(partial(self.in_sync, step), f"all replicas in sync after {name} in step {step}", 20)

    def _addresses(self, name: str, step: str) -> str:
        wanted = [one for one in STEPS[step] if one is not Listener.MTLS or not name.startswith("controller")]
        return ",".join(f"{listener}://{self.address(name, listener)}" for listener in wanted)

    def in_sync(self, step: str) -> bool:
        """Whether every replica is in its ISR, even while services of two steps call one another."""
        plain = self.cluster.address(ADMIN) if step == "used" else ""
        try:
            with AdminClient(
                admin=plain or self.address(ADMIN, Listener.MTLS), tls=None if plain else self.client
            ) as one:
                (view,) = one.describe_topics([TOPIC])
        except TidemarkError:
            return False
        return {len(each.in_sync_replicas) for each in view.partitions.values()} == {2}

    def _ready(self, address: str) -> bool:
        with grpc.insecure_channel(address) as channel:
            try:
                request = health_pb2.HealthCheckRequest(service="readiness")
                answer: Any = health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def release(self) -> None:
        self._ports.release()


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    try:
        with made.cluster:
            yield made
    finally:
        made.release()


def test_a_plain_cluster_moves_to_tls_under_load(moving: Moving) -> None:
    cluster = moving.cluster
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2, configs={"min.insync.replicas": "1"})
    bootstrap = ",".join(moving.address(f"broker-{number}", Listener.MTLS) for number in range(2))
    with NumbersLoad(cluster.bootstrap, TOPIC, PARTITIONS) as plain:
        moving.move("used")
        moving.move("open")
    plain.assert_nothing_lost_or_twice()
    before = max(plain.acknowledged) + 1
    with NumbersLoad(bootstrap, TOPIC, PARTITIONS, moving.client) as load:
        moving.move("closed")
    assert load.failure is None
    assert len(load.acknowledged) > PARTITIONS
    read = load.read()
    kept = {where: number for number, where in plain.acknowledged.items()}
    kept |= {where: number for number, where in load.acknowledged.items()}
    assert len(kept) == before + len(load.acknowledged)
    assert {where: read.get(where) for where in kept} == kept
