# SPDX-License-Identifier: Apache-2.0
"""Scenarios of a release in use: upgrades, lost pods and nodes, more and fewer brokers, other volumes."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.cluster.basics import records_go_through, values_of
from tests.cluster.kube import wait_for
from tests.cluster.world import RELEASE, World, is_ready, is_starved, no_record_lost, pause_s_max

_BROKER: Final = f"{RELEASE}-broker"
_PARTITIONS: Final = 300
_SETTLED_S: Final = 20.0
"""Longer than sessions of an earlier ensemble can last."""
_PAUSE_S_MAX: Final = 2.0
_BACK_S: Final = 180.0
_CUT_S: Final = 30.0
"""Longer than a broker's ZooKeeper session, shorter than Kubernetes waits before it evicts pods of a lost node."""


def rolling_restart_loses_nothing(world: World) -> str:
    """A rolling restart of three brokers with 300 partitions loses no record and pauses no producer for 2 s."""
    before = _uids(world)
    with world.load() as load:
        begun_s = time.monotonic()
        world.upgrade(broker__podAnnotations__restarted=f"at{time.time():.0f}")
        rolled_s = time.monotonic() - begun_s
        report = load.end()
    kept = no_record_lost(report)
    after = _uids(world)
    assert not set(before.values()) & set(after.values()), f"not all were restarted: {before}, {after}"
    longest_s = report["longest_wait_s"]
    world.numbers["rolling restart, longest pause of a producer"] = f"{longest_s:.2f} s"
    world.numbers["rolling restart of three brokers, 300 partitions"] = f"{rolled_s:.0f} s; {kept}"
    limit_s = pause_s_max(_PAUSE_S_MAX)
    assert longest_s <= limit_s, f"{kept}; but of {limit_s:.1f} s the longest waits were {report['longest_waits']}"
    return f"{kept}; longest pause {longest_s:.2f} s; rolled in {rolled_s:.0f} s"


def deleted_pod_comes_back_with_its_volume(world: World) -> str:
    """A killed broker pod returns with its volume and rejoins its ISRs; no record is lost."""
    name = f"{_BROKER}-1"
    claims = _claims(world, name)
    before = _uids(world)[name]
    with world.load() as load:
        world.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        took_s = wait_for(f"{name} ready again", _BACK_S, lambda: _is_another(world, name, before))
        report = load.end()
    world.wait_until_in_sync()
    assert _claims(world, name) == claims
    return f"ready after {took_s:.0f} s; {no_record_lost(report)}; longest pause {report['longest_wait_s']:.2f} s"


def brokers_are_added(world: World) -> str:
    """Three brokers become five: `helm upgrade`, then `tidemark cluster add-brokers` moves replicas to them."""
    with world.load() as load:
        world.upgrade(broker__replicas="5")
        world.cli("cluster", "add-brokers", "3", "4", "--yes", timeout_s=300)
        kept = no_record_lost(load.end())
    share = world.replicas("load")
    assert all(share.get(broker, 0) > _PARTITIONS // 3 for broker in range(5)), share
    return f"{kept}; replicas of each broker: {share}"


def brokers_are_removed(world: World) -> str:
    """Five brokers become three: `tidemark cluster remove-brokers` drains two, then `helm upgrade` stops their pods."""
    with world.load() as load:
        world.cli("cluster", "remove-brokers", "3", "4", "--yes", timeout_s=300)
        share = world.replicas("load")
        assert not {3, 4} & set(share), share
        world.upgrade(broker__replicas="3")
        kept = no_record_lost(load.end())
    wait_for("three pods", 60, lambda: len(world.broker_pods()) == 3)
    return f"{kept}; replicas of each broker: {share}"


def node_is_cut_off(world: World) -> str:
    """A node with a broker and a ZooKeeper server is disconnected; the others continue, and the broker catches up."""
    with world.load() as load:
        world.cluster.cut_off(3)
        try:
            wait_for("its broker out of the ISRs", _BACK_S, lambda: _under_replicated(world) > 0)
            time.sleep(_CUT_S)  # a fixed time, not a wait for a state
        finally:
            world.cluster.reconnect(3)
        back_s = world.wait_until_in_sync(_BACK_S)
        report = load.end()
    world.wait_until_ready(3, _BACK_S)
    return f"{no_record_lost(report)}; longest pause {report['longest_wait_s']:.2f} s; in sync {back_s:.0f} s after"


def uninstall_leaves_the_volumes(world: World) -> str:
    """`helm uninstall` keeps the claims; a new install has the cluster and its records, and leaders that stay."""
    if "kept" not in world.topics():
        records_go_through(world)
    claims = _claims(world)
    identity = world.cli_json("cluster", "describe")["cluster_id"]
    values = values_of(world, "kept")
    found = []
    for in_order in (True, False):
        gone_s = world.uninstall(in_order=in_order)
        assert _claims(world) == claims
        begun_s = time.monotonic()
        world.install()
        took_s = time.monotonic() - begun_s
        seen = world.health_over_time(_SETTLED_S)
        unhealthy = [one for one in seen if one.offline or (one.under_replicated and not is_starved())]
        assert not unhealthy, f"partitions without a leader or a replica after the install: {unhealthy}"
        world.wait_until_in_sync()
        assert world.cli_json("cluster", "describe")["cluster_id"] == identity
        assert values_of(world, "kept") == values
        found.append(
            f"{'brokers first' if in_order else 'all at once'}: gone in {gone_s:.0f} s, ready in {took_s:.0f} s"
        )
    return f"{len(claims)} claims stayed with {len(values):,} records; {'; '.join(found)}"


def another_clusters_volume_is_refused(world: World) -> str:
    """A broker with a volume of another cluster refuses to start, and the termination message has the reason."""
    world.uninstall(in_order=False)
    ensemble = [claim for claim in _claims(world) if "zookeeper" in claim]
    world.cluster.kubectl("delete", "pvc", *ensemble)
    world.install_only()
    said: dict[str, str] = {}

    def refused() -> bool:
        said.update({name: message for name, pod in world.broker_pods().items() if (message := _last_words(pod))})
        return len(said) >= 3

    wait_for("three brokers that refuse", _BACK_S, refused)
    assert all("cluster" in message for message in said.values()), said
    return said[f"{_BROKER}-0"][:200]


def _uids(world: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.broker_pods().items()}


def _is_another(world: World, name: str, before: str) -> bool:
    """Whether a pod of this name is ready, with another uid than `before`."""
    pod = world.broker_pods().get(name)
    return pod is not None and pod["metadata"]["uid"] != before and is_ready(pod)


def _claims(world: World, pod: str = "") -> list[str]:
    claims = world.cluster.objects("pvc")["items"]
    return sorted(claim["metadata"]["name"] for claim in claims if pod in claim["metadata"]["name"])


def _under_replicated(world: World) -> int:
    count: int = world.cli_json("cluster", "describe")["under_replicated_count"]
    return count


def _last_words(pod: dict[str, Any]) -> str:
    """The termination message of a pod's container, of its present or previous run; empty: none."""
    for status in pod["status"].get("containerStatuses", []):
        for state in (status.get("state", {}), status.get("lastState", {})):
            if message := state.get("terminated", {}).get("message"):
                return str(message).strip()
    return ""
