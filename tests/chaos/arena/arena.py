# SPDX-License-Identifier: Apache-2.0
"""A local cluster in which every process reaches the others, and ZooKeeper, through proxies that inject faults."""

from __future__ import annotations

import os
import time
import urllib.request
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from tidemark.client import AdminClient, TlsFiles
from tidemark.core.security.listeners import Listener
from tidemark.local.certificates import Authority
from tidemark.local.cluster import ADMIN, CERTIFICATES, LocalCluster
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark.rpc.security.token_source import VARIABLE

from tests.chaos.arena.access import OPERATOR, RULES, settings
from tests.chaos.arena.disks import Disks
from tests.chaos.arena.names import BROKERS, CONTROLLERS, ZOOKEEPER
from tests.chaos.arena.proxy import HOST, Network

_EAGER = {
    "advertised.check.timeout.ms": "0",  # a cut network looks like a wrong address, and is not one
    "controlled.shutdown.max.wait.ms": "3000",
    "log.cleaner.backoff.ms": "300",
    "log.retention.check.interval.ms": "300",
    "log.scrub.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""These settings shorten waits that take minutes elsewhere, so that they end within a round."""

START_S = 90.0  # other parts of the suite may start processes at the same time
RULES_S = 30.0
STOP_S = 15.0


class Arena:
    """Three brokers, two controllers, an admin service, ZooKeeper, and the network between them.

    Args:
        secure: TLS on every listener and for ZooKeeper, and access rules. Clients of this process, and those that it
            starts, then take the certificate of a user from the environment, unless they get `with_token`.
    """

    def __init__(self, directory: Path, disks: Disks, slowness: float = 1.0, *, secure: bool = False) -> None:
        self.disks = disks
        self.slowness = slowness
        """Slowness of this machine, 1 for the reference machine.

        Every bound on liveness is multiplied by this factor.
        """
        self.network = Network(self._pids)
        self.guests: dict[str, int] = {}
        """Processes outside of the cluster that the network knows by name."""
        self.directory = directory
        self.secure = secure
        self._listeners = (Listener.INTERNAL, Listener.MTLS, Listener.TOKEN) if secure else (Listener.ONLY,)
        self._ports: dict[tuple[str, Listener], int] = {}
        self._cluster: LocalCluster | None = None
        self._held = ExitStack()

    @property
    def cluster(self) -> LocalCluster:
        """The cluster, once started."""
        assert self._cluster is not None, "not started"
        return self._cluster

    @property
    def bootstrap(self) -> str:
        """The brokers as clients reach them, with a certificate if the round is secure."""
        return self._addresses(Listener.MTLS if self.secure else Listener.ONLY)

    @property
    def token_bootstrap(self) -> str:
        """The brokers for clients with a token; those of `bootstrap` if the round is not secure."""
        return self._addresses(Listener.TOKEN if self.secure else Listener.ONLY)

    @property
    def with_token(self) -> dict[str, Any]:
        """Arguments of a client in this process that uses `token_bootstrap`."""
        if not self.secure:
            return {}
        return {"tls": TlsFiles(self.cluster.client_files.ca), "token_file": self.cluster.token_file}

    @property
    def token_environment(self) -> dict[str, str]:
        """Variables of a process whose clients use `token_bootstrap`."""
        if not self.secure:
            return {}
        return {FILE_VARIABLES.certificate: "", FILE_VARIABLES.key: "", VARIABLE: str(self.cluster.token_file)}

    def __enter__(self) -> Arena:
        self.network.__enter__()
        try:
            for name in BROKERS:
                for listener in self._listeners:
                    self._add_proxy(name, listener)
            for name in CONTROLLERS:
                self._add_proxy(name, self._listeners[0])
            zookeeper = self.network.add(ZOOKEEPER, lambda: self.cluster.zookeeper.port)
            self._cluster = LocalCluster(
                self.directory,
                settings=self._settings(f"{HOST}:{zookeeper}"),
                environment=self.disks.environment,
                launchers=self.disks.launchers,
                secure=self.secure,
            )
            self._cluster.start(START_S * self.slowness)
            if self.secure:
                self._let_users_in()
        except BaseException:
            self._end()
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
            self._end()

    def _end(self) -> None:
        if self._cluster is not None:
            self._cluster.kill_all()
        self._held.close()
        self.network.__exit__()

    def _settings(self, zookeeper: str) -> dict[str, dict[str, str]]:
        everybody = {"zookeeper.connect": zookeeper}
        made = {kind: dict(everybody) for kind in ("broker", "controller", "admin")}
        made["broker"] |= _EAGER
        if self.secure:
            for kind in ("broker", "admin"):
                made[kind] |= settings(self.slowness)
        for name in BROKERS:
            made[name] = {
                "log.dirs": self.disks.log_dirs(name),
                "advertised.listeners": self._advertised(name, *self._listeners),
            }
        for name in CONTROLLERS:
            made[name] = {"advertised.listeners": self._advertised(name, self._listeners[0])}
        return made

    def _advertised(self, name: str, *listeners: Listener) -> str:
        addresses = {listener: f"{HOST}:{self._ports[name, listener]}" for listener in listeners}
        if not self.secure:
            return addresses[Listener.ONLY]
        return ",".join(f"{listener}://{address}" for listener, address in addresses.items())

    def _let_users_in(self) -> None:
        """Give this process a user's certificate, and have every process read the rights of the users."""
        environment = dict(zip(FILE_VARIABLES, self.cluster.client_files, strict=True))
        self._held.enter_context(patch.dict(os.environ, environment))
        operator = Authority.load(self.directory / CERTIFICATES).issue_client(OPERATOR)
        with AdminClient(admin=self.cluster.admin_address, tls=operator) as admin:
            wanted = admin.alter_acls(add=RULES).generation
        until_s = time.monotonic() + RULES_S * self.slowness
        while any(self._rules_at(name) < wanted for name in (*BROKERS, ADMIN)):
            assert time.monotonic() < until_s, "the access rules are not in effect"
            time.sleep(0.05)

    def _rules_at(self, name: str) -> float:
        """The generation of the access rules that a process uses."""
        lines = self._metrics(name).decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("tidemark_acl_rules_generation "))

    def note_state(self, directory: Path) -> None:
        """Write the state that every process reports now into `directory`, as evidence."""
        directory.mkdir()
        for name in self.cluster.names:
            try:
                state = self._metrics(name)
            except (OSError, HTTPException) as error:
                state = str(error).encode()
            (directory / f"{name}.metrics").write_bytes(state)

    def _metrics(self, name: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.cluster.metrics_address(name)}/metrics", timeout=5) as told:
            return bytes(told.read())

    def _add_proxy(self, name: str, listener: Listener) -> None:
        def target() -> int:
            of_clients = listener in (Listener.MTLS, Listener.TOKEN)
            cluster = self.cluster
            address = cluster.client_address(name, listener) if of_clients else cluster.address(name)
            return int(address.rpartition(":")[2])

        self._ports[name, listener] = self.network.add(name, target)

    def _addresses(self, listener: Listener) -> str:
        return ",".join(f"{HOST}:{self._ports[name, listener]}" for name in BROKERS)

    def _pids(self) -> dict[str, int]:
        running = (name for name in self.cluster.names if self.cluster.process(name).running)
        return {**{name: self.cluster.process(name).pid for name in running}, **self.guests}
