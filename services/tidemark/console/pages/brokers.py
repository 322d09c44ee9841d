# SPDX-License-Identifier: Apache-2.0
"""The brokers: live or not, leaders and replicas, disks, restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.client.health import away_brokers
from tidemark.console.page import Asked, View
from tidemark.console.pages.cluster import cluster_of, log_dirs_of, obstacles_of, topics_of
from tidemark.console.queries.shared import Answer
from tidemark.core.cluster_view import TopicView
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.model import BrokerRegistration, TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs

RESTARTS_UP_TO: Final = 500
"""With more partitions the list of brokers does not ask about restarts: each answer reads all partitions' states."""


@dataclass(slots=True)
class Held:
    """The partitions of each broker: counts of leaders, of replicas, and the partitions in which it is not in sync."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    behind: dict[int, list[TopicPartition]] = field(default_factory=dict)


def held_by(topics: Iterable[TopicView]) -> Held:
    """Count the replicas of all brokers."""
    held = Held()
    assignments: Counter[tuple[int, ...]] = Counter()
    for topic in topics:
        for one in topic.partitions.values():
            held.leaders[one.leader] += 1
            assignments[one.assigned_replicas] += 1
            if one.in_sync_replicas != one.assigned_replicas:
                for broker in set(one.assigned_replicas).difference(one.in_sync_replicas):
                    held.behind.setdefault(broker, []).append(TopicPartition(topic.topic, one.partition))
    for replicas, count in assignments.items():  # thousands of partitions share a few assignments
        for replica in replicas:
            held.replicas[replica] += count
    return held


async def load(asked: Asked) -> View:
    """The page `/brokers`."""
    cluster = await cluster_of(asked)
    topics = await topics_of(asked)
    held = held_by(topics.values())
    dirs = await log_dirs_of(asked, partitions=any_partition(topics))
    by_broker = {one.broker_id: one for one in dirs.value or []}
    rows = []
    for broker_id, broker in sorted(cluster.view.brokers.items()):
        row = {**broker_facts(broker, held, by_broker.get(broker_id)), "live": True}
        asked.sighted(("away", broker_id), False)
        if cluster.partition_count <= RESTARTS_UP_TO:
            row["restart"] = restart_facts(await obstacles_of(asked, broker_id))
        row["draining"] = broker_id in cluster.draining_brokers
        rows.append(row)
    for broker_id in away_brokers(cluster.view.brokers, topics.values()):
        seen = asked.sighted(("away", broker_id), True)
        away = {"broker_id": broker_id, "live": False, "since_ms": seen.since_ms, "may_be_longer": seen.before is None}
        rows.append({**away, **_counts(broker_id, held), "draining": broker_id in cluster.draining_brokers})
    return View("Brokers", "tidemark cluster describe", {"brokers": rows})


def any_partition(topics: Mapping[str, TopicView]) -> tuple[TopicPartition, ...]:
    """One partition, so that a question about disks does not list every replica; empty if there is no topic."""
    return tuple(TopicPartition(name, next(iter(view.partitions))) for name, view in topics.items() if view.partitions)[
        :1
    ]


def broker_facts(broker: BrokerRegistration, held: Held, dirs: BrokerLogDirs | None) -> dict[str, object]:
    """Facts about a live broker, as data for the page."""
    return {
        "broker_id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "broker_epoch": broker.broker_epoch,
        **_counts(broker.broker_id, held),
        "log_dirs": dir_facts(dirs),
        "log_dirs_error": None if dirs is None or dirs.error is None else dirs.error.message,
    }


def dir_facts(dirs: BrokerLogDirs | None) -> list[dict[str, object]]:
    """Log directories as data; sizes that are not known are None."""
    return [
        {
            "path": one.path,
            "directory_id": one.directory_id,
            "total_bytes": one.total_bytes if one.total_bytes >= 0 else None,
            "free_bytes": one.free_bytes if one.free_bytes >= 0 else None,
            "used_percent": round(100 * (1 - one.free_bytes / one.total_bytes)) if one.total_bytes > 0 else None,
            "error": None if one.error is None else one.error.message,
        }
        for one in (dirs.log_dirs if dirs is not None else ())
    ]


def restart_facts(answer: Answer[list[RestartObstacle]]) -> dict[str, object] | None:
    """Whether a restart is safe, as data; None: not known yet."""
    if answer.value is None:
        return None
    return {
        "safe": not answer.value,
        "read_at_ms": answer.read_at_ms,
        "waiting_helps": any(one.may_pass for one in answer.value),
        "obstacles": [
            {"reason": str(one.reason), "message": one.message, "partition_count": len(one.partitions)}
            for one in answer.value
        ],
    }


def _counts(broker_id: int, held: Held) -> dict[str, object]:
    behind = held.behind.get(broker_id, [])
    return {
        "leaders": held.leaders[broker_id],
        "replicas": held.replicas[broker_id],
        "out_of_sync": len(behind),
    }
