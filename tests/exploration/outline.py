# SPDX-License-Identifier: Apache-2.0
"""A form of states that two walks can compare, though their numbers differ."""

from __future__ import annotations

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.state import DEAD, State
from tests.exploration.walking.search import Report, Search
from tests.exploration.walking.walk import Walk

SECONDS_MAX = 300.0

Outline = tuple[object, ...]


def outline(cluster: Cluster, state: State) -> Outline:
    """The part that the invariants read, under names that do not depend on the brokers' names."""
    brokers, disks = cluster.brokers, cluster.disks
    node = brokers.values[state.node].state
    each = []
    for place, core in enumerate(state.cores):
        view = brokers.views[core] if core != DEAD else None
        role = (view.high_watermark, -1 if view.leader_epoch is None else view.leader_epoch) if view else (-1, -2)
        name = BROKERS[place]
        stands = (name == node.leader, name in node.isr_ids, name in [entry.broker_id for entry in node.elr])
        each.append((role, disks[state.disks[place]].records, stands))
    return (*sorted(each), node.leader_epoch, state.committed)


def outlines(walk: Walk | Search) -> tuple[Report, set[Outline]]:
    """The report of a complete walk, and the outlines that it reached; once for all states with the same parts."""
    seen: set[Outline] = set()
    parts: set[Outline] = set()

    def visit(state: State) -> None:
        mine = (state.cores, state.disks, state.node, state.committed)
        if mine not in parts:
            parts.add(mine)
            seen.add(outline(walk.cluster, state))

    return walk.run(seconds=SECONDS_MAX, visit=visit), seen


def walked(walk: Walk | Search) -> tuple[Report, set[Outline]]:
    """The same result for a walk that ends by itself."""
    report, seen = outlines(walk)
    assert report.complete, f"stopped at {report.states} states, {report.depth} deep: {report.violation}"
    return report, seen
