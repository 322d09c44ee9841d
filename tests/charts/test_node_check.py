# SPDX-License-Identifier: Apache-2.0
"""Pods that no node could take are refused with a sentence, from the nodes and pods that `lookup` would return."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import helm_python
import pytest

from tests.charts.rendering import NAME, NAMESPACE, Render, one

HARD = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
BROKERS = "StatefulSet/tide-tidemark-broker"
CONTROLLERS = "Deployment/tide-tidemark-controller"
ENSEMBLE = "StatefulSet/tide-zookeeper"
SKIP = "nodeCheck: false skips this check"


def node(*taints: dict[str, str], cordoned: bool = False, **labels: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"taints": list(taints)} if taints else {}
    return {"metadata": {"labels": labels}, "spec": spec | ({"unschedulable": True} if cordoned else {})}


def live(replicas: int, anti_affinity: dict[str, Any] | None = None) -> dict[str, Any]:
    affinity = {"affinity": {"podAntiAffinity": anti_affinity}} if anti_affinity else {}
    return {"spec": {"replicas": replicas, "template": {"spec": affinity}}}


THREE = [node(), node(), node()]
CONTROL_PLANE = node({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})
PREFERRED = node({"key": "busy", "effect": "PreferNoSchedule"})
DEDICATED = node({"key": "tidemark", "value": "yes", "effect": "NoSchedule"})


REFUSED: dict[str, tuple[dict[str, Any], list[dict[str, Any]] | None, dict[str, Any], str]] = {
    "more brokers than nodes": (
        {"broker": {"replicas": 4, "antiAffinity": "hard"}},
        THREE,
        {},
        "broker.antiAffinity is hard and broker.replicas is 4, but 3 of 3 nodes can take such a pod",
    ),
    "a node that the pods do not tolerate": (
        {"broker": {"antiAffinity": "hard"}},
        [node(), PREFERRED, CONTROL_PLANE, node(cordoned=True)],
        {},
        "broker.replicas is 3, but 2 of 4 nodes can take such a pod",
    ),
    "a taint with another value": (
        {
            "broker": {
                "antiAffinity": "hard",
                "tolerations": [{"key": "tidemark", "value": "no", "effect": "NoSchedule"}],
            }
        },
        [node(), node(), DEDICATED],
        {},
        "2 of 3 nodes",
    ),
    "a node selector": (
        {"controller": {"replicas": 2, "antiAffinity": "hard", "nodeSelector": {"disk": "ssd"}}},
        [node(disk="ssd"), node(disk="hdd"), node()],
        {},
        "controller.replicas is 2, but 1 of 3 nodes",
    ),
    "more servers of the ensemble than nodes": (
        {"zookeeper": {"replicas": 5, "antiAffinity": "hard"}},
        THREE,
        {},
        "zookeeper.antiAffinity is hard and zookeeper.replicas is 5",
    ),
    "more brokers and softer in one upgrade": (
        {"broker": {"replicas": 4}},
        THREE,
        {BROKERS: live(3, HARD)},
        "upgrade twice, first with broker.replicas: 3 and then with 4",
    ),
    "softer with pods that are Pending": (
        {"broker": {"replicas": 5}},
        THREE,
        {BROKERS: live(5, HARD)},
        "upgrade twice, first with broker.replicas: 3 and then with 5",
    ),
    "more brokers and softer, nodes unknown": (
        {"broker": {"replicas": 4}, "rack": {"source": "none"}},
        None,
        {BROKERS: live(3, HARD)},
        "upgrade twice, first with broker.replicas: 3 and then with 4",
    ),
    "more servers and softer": (
        {"zookeeper": {"replicas": 5}},
        THREE,
        {ENSEMBLE: live(3, HARD)},
        "zookeeper.antiAffinity changes from hard to soft",
    ),
    "nodes are read on request": (
        {"broker": {"replicas": 4, "antiAffinity": "hard"}, "rack": {"source": "none"}, "nodeCheck": True},
        THREE,
        {},
        "3 of 3 nodes",
    ),
}

ACCEPTED: dict[str, tuple[dict[str, Any], list[dict[str, Any]] | None, dict[str, Any]]] = {
    "a node for each pod": ({"broker": {"antiAffinity": "hard"}}, THREE, {}),
    "soft anti-affinity": ({"broker": {"replicas": 4}}, THREE, {}),
    "pods that share nodes already": ({"broker": {"replicas": 4}}, THREE, {BROKERS: live(4)}),
    "softer with a node for each pod": ({"broker": {"replicas": 4}}, [*THREE, node()], {BROKERS: live(3, HARD)}),
    "softer, nodes unknown": ({"rack": {"source": "none"}}, None, {BROKERS: live(3, HARD)}),
    "nodes that the installer may not read": (
        {"broker": {"replicas": 4, "antiAffinity": "hard"}, "rack": {"source": "pod"}},
        THREE,
        {},
    ),
    "an autoscaler": ({"broker": {"replicas": 4, "antiAffinity": "hard"}, "nodeCheck": False}, THREE, {}),
    "affinity of one's own": (
        {"broker": {"replicas": 4, "antiAffinity": "hard", "affinity": {"podAffinity": {}}}},
        THREE,
        {},
    ),
    "a tolerated taint": (
        {"broker": {"antiAffinity": "hard", "tolerations": [{"key": "tidemark", "operator": "Exists"}]}},
        [node(), node(), DEDICATED],
        {},
    ),
    "any taint": (
        {"broker": {"antiAffinity": "hard", "tolerations": [{"operator": "Exists"}]}},
        [node(), CONTROL_PLANE, DEDICATED],
        {},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pods_that_would_stay_pending_are_refused(case: str, render: Render) -> None:
    values, nodes, objects, sentence = REFUSED[case]
    with pytest.raises(helm_python.HelmError) as caught:
        render(values, nodes, objects)
    assert sentence in str(caught.value)
    assert SKIP in str(caught.value)


@pytest.mark.parametrize("case", ACCEPTED)
def test_pods_that_have_a_node_are_accepted(case: str, render: Render) -> None:
    values, nodes, objects = ACCEPTED[case]
    assert one(render(values, nodes, objects), "StatefulSet", "tide-tidemark-broker")


@pytest.mark.parametrize(
    ("values", "objects", "read"),
    [
        ({}, {}, False),
        ({"broker": {"replicas": 4}}, {BROKERS: live(3)}, False),
        ({"admin": {"antiAffinity": "hard"}}, {}, True),
        ({}, {BROKERS: live(3, HARD)}, True),
        ({"admin": {"antiAffinity": "hard"}, "rack": {"source": "none"}}, {}, False),
    ],
)
def test_nodes_are_read_only_where_a_pod_needs_its_own(
    values: dict[str, Any], objects: dict[str, Any], read: bool, chart: Path, render: Render
) -> None:
    """An account that may not list nodes fails at the read."""
    render(values, THREE, objects)
    lookup = chart / "templates" / "_lookup.tpl"
    refused = re.sub(r"(tidemark.nodes\" -}}).*?({{- end)", r'\1{{ fail "nodes is forbidden" }}\2', lookup.read_text())
    lookup.write_text(refused)
    with helm_python.Chart.load(chart) as loaded, contextlib.ExitStack() as stack:
        if read:
            stack.enter_context(pytest.raises(helm_python.HelmError, match="nodes is forbidden"))
        loaded.render(values, name=NAME, namespace=NAMESPACE)


@pytest.mark.parametrize(("before", "surge"), [(live(3), 1), (live(3, HARD), 0)])
def test_a_softer_deployment_needs_no_extra_node_for_its_upgrade(
    before: dict[str, Any], surge: int, render: Render
) -> None:
    found = render({"controller": {"replicas": 3}}, THREE, {CONTROLLERS: before})
    update = one(found, "Deployment", "tide-tidemark-controller")["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": surge, "maxUnavailable": 1 - surge}
