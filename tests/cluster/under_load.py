# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a release under load: two pods lost, a drained node, an upgrade, more and fewer brokers, no CPU."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from tests.cluster.kube import wait_for
from tests.cluster.world import RELEASE, World, is_ready, no_record_lost, pause_s_max

_BROKER: Final = f"{RELEASE}-broker"
_BACK_S: Final = 240.0
_DRAIN_S: Final = 300.0
_TWO_PODS_PAUSE_S_MAX: Final = 5.0
"""Two brokers that stop at the same moment paused producers for 4.8 to 16 s."""
_STARVED_S: Final = 60.0
_BURNERS_PER_CORE: Final = 8
_COMPONENTS: Final = ("broker", "controller", "admin", "console", "zookeeper")
_BURN: Final = "while True: pass"
_SYNC: Final = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
"""
_SRVR: Final = "exec 3<>/dev/tcp/127.0.0.1/2181 && printf srvr >&3 && cat <&3"


def two_pods_are_deleted_at_once(world: World) -> str:
    """Two of three broker pods are deleted at the same time; they stop one after the other, and no record is lost."""
    names = [f"{_BROKER}-1", f"{_BROKER}-2"]
    before = {name: pod["metadata"]["uid"] for name, pod in world.broker_pods().items()}
    live: list[int] = []

    def are_back() -> bool:
        live.append(len(world.cli_json("cluster", "describe")["brokers"]))
        now = world.broker_pods()
        return all(
            name in now and now[name]["metadata"]["uid"] != before[name] and is_ready(now[name]) for name in names
        )

    with world.load() as load:
        world.cluster.kubectl("delete", "pod", *names, "--wait=false")
        took_s = wait_for("both pods ready again", _BACK_S, are_back)
        report = load.end()
    world.wait_until_in_sync()
    kept = no_record_lost(report)
    assert min(live) == 2, f"numbers of live brokers over time: {live}; {kept}; {report['longest_waits']}"
    limit_s = pause_s_max(_TWO_PODS_PAUSE_S_MAX)
    assert report["longest_wait_s"] <= limit_s, f"{kept}; of {limit_s:.1f} s {report['longest_waits']}"
    world.numbers["two broker pods deleted at once, longest pause"] = f"{report['longest_wait_s']:.2f} s; {kept}"
    return f"ready after {took_s:.0f} s; {kept}; longest pause {report['longest_wait_s']:.2f} s"


def node_is_drained(world: World) -> str:
    """Kubernetes evicts the pods of a drained node within their disruption budgets, and no record is lost."""
    node = "node-2"
    selector = f"--pod-selector=app.kubernetes.io/instance={RELEASE}"
    with world.load() as load:
        try:
            world.cluster.kubectl(
                "drain", node, selector, "--ignore-daemonsets", "--delete-emptydir-data", timeout_s=_DRAIN_S
            )
            left = world.cluster.objects("pods", "-l", f"app.kubernetes.io/instance={RELEASE}")["items"]
            assert not [pod["metadata"]["name"] for pod in left if pod["spec"].get("nodeName") == node]
        finally:
            world.cluster.kubectl("uncordon", node)
        world.wait_until_ready(3, _BACK_S)
        report = load.end()
    world.wait_until_in_sync()
    kept = no_record_lost(report)
    world.numbers["drained node, longest pause"] = f"{report['longest_wait_s']:.2f} s; {kept}"
    return f"{kept}; longest pause {report['longest_wait_s']:.2f} s"


def whole_release_is_upgraded(world: World) -> str:
    """One upgrade restarts every pod of the release under load, and no record is lost."""
    before = _uids(world)
    now = f"at{time.time():.0f}"
    restarted = {f"{component}__podAnnotations__upgraded": now for component in _COMPONENTS}
    with world.load() as load:
        world.upgrade(**restarted)
        report = load.end()
    kept = no_record_lost(report)
    assert not before & _uids(world), "not all pods were restarted"
    world.wait_until_in_sync()
    world.numbers["upgrade of every pod, longest pause"] = f"{report['longest_wait_s']:.2f} s; {kept}"
    return f"{len(before)} pods; {kept}; longest pause {report['longest_wait_s']:.2f} s"


def brokers_come_and_go_under_one_load(world: World) -> str:
    """Three brokers become four and three again while producers write, and no record is lost."""
    with world.load() as load:
        world.upgrade(broker__replicas="4")
        world.cli("cluster", "add-brokers", "3", "--yes", timeout_s=300)
        assert world.replicas("load").get(3, 0) > 0, world.replicas("load")
        world.cli("cluster", "remove-brokers", "3", "--yes", timeout_s=300)
        assert 3 not in world.replicas("load"), world.replicas("load")
        world.upgrade(broker__replicas="3")
        report = load.end()
    wait_for("three pods", _BACK_S, lambda: len(world.broker_pods()) == 3)
    kept = no_record_lost(report)
    world.numbers["scale 3, 4, 3 under load, longest pause"] = f"{report['longest_wait_s']:.2f} s; {kept}"
    return f"{kept}; longest pause {report['longest_wait_s']:.2f} s"


def starved_cluster_loses_nothing(world: World) -> str:
    """While other processes take CPU and disk for a minute, no record is lost; then all replicas are in sync."""
    elections = _elections(world)
    with world.load() as load:
        with _burning():
            time.sleep(_STARVED_S)  # a fixed time, not a wait for a state
        world.wait_until_ready(3, _BACK_S)
        world.wait_until_in_sync(_BACK_S)
        report = load.end()
    kept = no_record_lost(report)
    elections = _elections(world) - elections
    world.numbers["starved cluster"] = f"{kept}; {elections} elections of the ensemble"
    return f"{kept}; longest pause {report['longest_wait_s']:.2f} s; the ensemble elected {elections} times"


def _uids(world: World) -> set[str]:
    """The uids of all pods of the release that run; pods of finished Jobs stay as they are."""
    running = "--field-selector=status.phase=Running"
    pods = world.cluster.objects("pods", "-l", f"app.kubernetes.io/instance={RELEASE}", running)["items"]
    return {pod["metadata"]["uid"] for pod in pods}


def _elections(world: World) -> int:
    """The epoch of the ensemble, which each election raises: the upper half of the last transaction id.

    A server that has lost its quorum serves no request for some seconds, and its answer has no transaction id.
    """
    found: list[int] = []

    def ask() -> bool:
        said = world.cluster.kubectl("exec", f"{RELEASE}-zookeeper-1", "-c", "zookeeper", "--", "bash", "-c", _SRVR)
        found[:] = [int(line.partition(":")[2], 16) for line in said.splitlines() if line.startswith("Zxid:")]
        return bool(found)

    wait_for("an answer of ZooKeeper", _BACK_S, ask)
    return found[0] >> 32


@contextlib.contextmanager
def _burning() -> Iterator[None]:
    """Take CPU and disk of this machine from the cluster: half of the processes compute, the others write and sync."""
    count = _BURNERS_PER_CORE * (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        for number in range(count):
            program = [_BURN] if number % 2 else [_SYNC, f"{directory}/{number}"]
            process = subprocess.Popen([sys.executable, "-c", *program])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
