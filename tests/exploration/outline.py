# SPDX-License-Identifier: Apache-2.0
"""What of states can be compared between two walks, whose numbers differ."""

from __future__ import annotations

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.state import DEAD, State
from tests.exploration.walking.search import Report, Search
from tests.exploration.walking.walk import Walk

SECONDS_MAX = 300.0

Outline = tuple[object, ...]


def outline(cluster: Cluster, state: State) -> Outline:
    """What the invariants look at, whatever the brokers' names."""
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


def walked(walk: Walk | Search) -> tuple[Report, set[Outline]]:
    """All of it: the report, and the outlines that were come to."""
    seen: set[Outline] = set()
    report = walk.run(seconds=SECONDS_MAX, visit=lambda state: seen.add(outline(walk.cluster, state)))
    assert report.complete, f"stopped at {report.states} states, {report.depth} deep: {report.violation}"
    return report, seen
