# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos.nodes`: disconnect a node, and print how long producers outside waited.

    sudo -E python -m tests.chaos.nodes                      # one round of each kind
    sudo -E python -m tests.chaos.nodes controller+zookeeper --rounds 3 --keep

Every node has a broker, a controller and a ZooKeeper server, with the settings of the charts. A third of the partitions
is led on each. Needs root, and no other use of 10.231.77.0/24.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tidemark.client import AdminClient, TidemarkError
from tidemark.local.process import ServiceProcess

from tests.chaos.nodes.ensemble import Ensemble
from tests.chaos.nodes.network import NodeNetwork, node_address

NODES: Final = 3
KINDS: Final = ("leader", "controller", "zookeeper", "controller+zookeeper")
"""Processes of the node that is cut off: leaders only, the active controller, the ZooKeeper leader, or both."""
_PARTITIONS: Final = 30
_READY_S: Final = 40.0
_CUT_S: Final = 25.0
_OUTSIDE: Final = node_address(254)
_LOAD: Final = Path(__file__).parents[2] / "cluster" / "load.py"


class NodesCluster:
    """Services on nodes; the admin service is outside, so that it is never cut off."""

    def __init__(self, network: NodeNetwork, directory: Path, zookeeper: dict[str, str], flags: dict[str, str]) -> None:
        self._network = network
        self._directory = directory
        self._flags = flags
        self.ensemble = Ensemble(network, directory, NODES, zookeeper)
        self._services: list[ServiceProcess] = []
        self.bootstrap = ",".join(f"{node_address(node)}:9192" for node in range(1, NODES + 1))

    def start(self, kind: str) -> int:
        """Start all processes; returns the node to disconnect for this kind."""
        self.ensemble.start()
        leader = self.ensemble.leader()
        others = [node for node in range(1, NODES + 1) if node != leader]
        victim = leader if "zookeeper" in kind else others[0]
        active = victim if "controller" in kind else next(node for node in others if node != victim)
        for node in [active, *(node for node in range(1, NODES + 1) if node != active)]:
            self._start(
                node, "controller", {"controller.id": str(100 + node), "listeners": f"{node_address(node)}:9193"}
            )
            if node == active:
                self._wait_for_log(f"controller-{active}", "elected")
        self._start(0, "admin", {"listeners": f"{_OUTSIDE}:9194"})
        for node in range(1, NODES + 1):
            data = self._directory / f"data-{node}"
            data.mkdir()
            flags = {"broker.id": str(node), "log.dirs": str(data), "admin.address": f"{_OUTSIDE}:9194"}
            self._start(node, "broker", flags | {"listeners": f"{node_address(node)}:9192"})
        with AdminClient(admin=f"{_OUTSIDE}:9194") as admin:
            deadline_s = time.monotonic() + _READY_S
            while not _has_all_brokers(admin):
                assert time.monotonic() < deadline_s, "brokers do not register"
                time.sleep(0.1)
        return victim

    def stop(self) -> None:
        """Kill all processes."""
        for service in self._services:
            service.kill()
        self.ensemble.stop()

    def log(self, name: str) -> Path:
        return self._directory / "logs" / f"{name}.log"

    def _start(self, node: int, kind: str, flags: dict[str, str]) -> None:
        port = {"controller": 9293, "broker": 9292, "admin": 9294}[kind]
        host = node_address(node) if node else _OUTSIDE
        everywhere = {"zookeeper.connect": self.ensemble.connect, "metrics.listeners": f"{host}:{port}"}
        flags = everywhere | flags | (self._flags if kind == "broker" else {})
        service = ServiceProcess(
            f"{kind}-{node}",
            f"tidemark.{kind}",
            [part for key, value in flags.items() for part in (f"--{key}", value)],
            log=self.log(f"{kind}-{node}"),
            environment={},
            launcher=self._network.launcher(node) if node else (),
        )
        service.start()
        self._services.append(service)

    def _wait_for_log(self, name: str, word: str) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not (self.log(name).exists() and word in self.log(name).read_text(encoding="utf-8")):
            assert time.monotonic() < deadline_s, f"{name} does not say {word!r}"
            time.sleep(0.05)


def _has_all_brokers(admin: AdminClient) -> bool:
    with contextlib.suppress(TidemarkError):
        return len(admin.describe_cluster().view.brokers) == NODES
    return False


def one_round(kind: str, directory: Path, zookeeper: dict[str, str], flags: dict[str, str]) -> dict[str, Any]:
    """Start a cluster and a load, cut a node off, and return the figures of the load."""
    with NodeNetwork(NODES) as network:
        cluster = NodesCluster(network, directory, zookeeper, flags)
        try:
            victim = cluster.start(kind)
            with AdminClient(admin=f"{_OUTSIDE}:9194") as admin:
                admin.create_topic(
                    "load", partitions=_PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
                )
            report = _under_load(cluster, network, victim, directory)
        finally:
            cluster.stop()
    return report | {"kind": kind, "victim": victim}


def _under_load(cluster: NodesCluster, network: NodeNetwork, victim: int, directory: Path) -> dict[str, Any]:
    stop = directory / "stop"
    environment = os.environ | {"TIDEMARK_BOOTSTRAP": cluster.bootstrap}
    command = [sys.executable, str(_LOAD), "load", str(stop)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        assert load.stdout.readline().strip() == "loading"
        time.sleep(2.0)
        cut_at = time.strftime("%H:%M:%S", time.gmtime()) + f"{time.time() % 1:.2f}"[1:]
        network.cut_off(victim)
        time.sleep(_CUT_S)
        network.reconnect(victim)
        time.sleep(8.0)
        stop.touch()
        report: dict[str, Any] = json.loads(load.stdout.read().splitlines()[-1])
    return report | {"cut_at": cut_at}


def main() -> None:
    """Run `python -m tests.chaos.nodes`, as the module states."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.nodes", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=" ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--zookeeper", action="append", default=[], metavar="KEY=VALUE", help="a line of zoo.cfg")
    parser.add_argument("--broker", action="append", default=[], metavar="KEY=VALUE", help="a setting of brokers")
    parser.add_argument("--keep", action="store_true", help="leave the logs, and say where")
    given = parser.parse_args()
    for kind in given.kinds * given.rounds:
        directory = Path(tempfile.mkdtemp(prefix="tidemark-nodes-"))
        try:
            report = one_round(
                kind,
                directory,
                dict(one.split("=", 1) for one in given.zookeeper),
                dict(one.split("=", 1) for one in given.broker),
            )
        finally:
            if not given.keep:
                shutil.rmtree(directory)
        where = f"; {directory}" if given.keep else ""
        sys.stdout.write(
            f"{kind}: node {report['victim']} cut at {report['cut_at']}: "
            f"longest pause {report['longest_wait_s']:.2f} s, "
            f"{report['acknowledged']} acknowledged, {len(report['failed'])} failed, {report['lost']} lost{where}\n"
        )
        sys.stdout.write(f"  {report['longest_waits']}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
