# SPDX-License-Identifier: Apache-2.0
"""A local cluster in which every process reaches the others, and ZooKeeper, through proxies that can be troubled."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from pathlib import Path
from types import TracebackType

from tidemark.local.cluster import LocalCluster

from tests.chaos.arena_names import BROKERS, CONTROLLERS, ZOOKEEPER
from tests.chaos.disks import Disks
from tests.chaos.proxy import HOST, Network

_EAGER = {
    "advertised.check.timeout.ms": "0",  # a cut network is no wrong address
    "controlled.shutdown.max.wait.ms": "3000",
    "log.cleaner.backoff.ms": "300",
    "log.retention.check.interval.ms": "300",
    "log.scrub.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
}
"""What takes minutes elsewhere happens within a round."""

START_S = 30.0
STOP_S = 15.0


class Arena:
    """Three brokers, two controllers, an admin service, ZooKeeper, and the network between them."""

    def __init__(self, directory: Path, disks: Disks, slowness: float = 1.0) -> None:
        self.disks = disks
        self.slowness = slowness
        """Of this machine; every bound on liveness is this much longer."""
        self.network = Network(self._pids)
        self.guests: dict[str, int] = {}
        """Processes beside the cluster's that the network knows by name."""
        self.directory = directory
        self._ports: dict[str, int] = {}
        self._cluster: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        """The cluster, once started."""
        assert self._cluster is not None, "not started"
        return self._cluster

    @property
    def bootstrap(self) -> str:
        """The brokers as clients reach them."""
        return ",".join(f"{HOST}:{self._ports[name]}" for name in BROKERS)

    def __enter__(self) -> Arena:
        self.network.__enter__()
        try:
            for name in (*BROKERS, *CONTROLLERS):
                self._ports[name] = self.network.add(name, lambda name=name: self._port_of(name))  # type: ignore[misc]
            self._ports[ZOOKEEPER] = self.network.add(ZOOKEEPER, lambda: self.cluster.zookeeper.port)
            everybody = {"zookeeper.connect": f"{HOST}:{self._ports[ZOOKEEPER]}"}
            settings = {kind: dict(everybody) for kind in ("broker", "controller", "admin")}
            settings["broker"] |= _EAGER
            for name in (*BROKERS, *CONTROLLERS):
                settings[name] = {"advertised.listeners": f"{HOST}:{self._ports[name]}"}
            for name in BROKERS:
                settings[name]["log.dirs"] = self.disks.log_dirs(name)
            self._cluster = LocalCluster(
                self.directory,
                settings=settings,
                environment=self.disks.environment,
                launchers=self.disks.launchers,
            )
            self._cluster.start(START_S * self.slowness)
        except BaseException:
            self.network.__exit__()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.cluster.stop(STOP_S * self.slowness)
            else:
                self.note_state(self.directory / "when-the-round-failed")
        finally:
            self.cluster.kill_all()
            self.network.__exit__()

    def note_state(self, directory: Path) -> None:
        """What every process says of itself now, as evidence."""
        directory.mkdir()
        for name in self.cluster.names:
            try:
                with urllib.request.urlopen(f"http://{self.cluster.metrics_address(name)}/metrics", timeout=5) as told:
                    state = told.read()
            except (OSError, HTTPException) as error:
                state = str(error).encode()
            (directory / f"{name}.metrics").write_bytes(state)

    def _port_of(self, name: str) -> int:
        return int(self.cluster.address(name).rpartition(":")[2])

    def _pids(self) -> dict[str, int]:
        running = (name for name in self.cluster.names if self.cluster.process(name).running)
        return {**{name: self.cluster.process(name).pid for name in running}, **self.guests}
