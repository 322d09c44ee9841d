# SPDX-License-Identifier: Apache-2.0
"""The topics: searched by name, filtered by state, sorted, in pages; sizes and rates of the topics on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidemark.console.page import Asked, View
from tidemark.console.pages.cluster import log_dirs_of, topics_of
from tidemark.console.pages.paging import one_of, part_of, searched
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.internal_topics import INTERNAL_TOPICS
from tidemark.rpc.broker_log_dirs import BrokerLogDirs

SIZES_UP_TO: Final = 2_000
"""With more partitions on a page the sizes are omitted: their answer would take too long."""
_STATES: Final = ("all", "out-of-sync", "offline")
_SORTS: Final[Mapping[str, Callable[[TopicView], tuple[object, ...]]]] = {
    "name": lambda view: (view.topic,),
    "partitions": lambda view: (-len(view.partitions), view.topic),
    "out-of-sync": lambda view: (-out_of_sync(view), view.topic),
}


async def load(asked: Asked) -> View:
    """The page `/topics?q=TEXT&state=STATE&sort=ORDER&page=NUMBER`."""
    topics = await topics_of(asked)
    text = searched(asked.query)
    state, sort = one_of(asked.query, "state", _STATES), one_of(asked.query, "sort", tuple(_SORTS))
    found = [view for view in topics.values() if text.lower() in view.topic.lower() and _has_state(view, state)]
    part = part_of(sorted(found, key=_SORTS[sort]), asked.query)
    sizes = await _sizes(asked, part.rows)
    data = {
        "topics": [{**_facts(view), **sizes.get(view.topic, {})} for view in part.rows],
        "q": text,
        "state": state,
        "states": list(_STATES),
        "sort": sort,
        "sorts": list(_SORTS),
        "topic_count": len(topics),
        **part.facts(),
    }
    return View("Topics", "tidemark topic list", data)


def out_of_sync(view: TopicView) -> int:
    """Number of partitions with fewer in-sync than assigned replicas."""
    return sum(len(one.in_sync_replicas) < len(one.assigned_replicas) for one in view.partitions.values())


def without_leader(view: TopicView) -> int:
    """Number of partitions without a leader."""
    return sum(one.leader < 0 for one in view.partitions.values())


def first_partition(view: TopicView) -> PartitionView | None:
    """The partition with the lowest index; its replication factor is the topic's."""
    return view.partitions[min(view.partitions)] if view.partitions else None


def _has_state(view: TopicView, state: str) -> bool:
    if state == "out-of-sync":
        return out_of_sync(view) > 0
    return state == "all" or without_leader(view) > 0


def _facts(view: TopicView) -> dict[str, object]:
    first = first_partition(view)
    return {
        "topic": view.topic,
        "partition_count": len(view.partitions),
        "replication_factor": 0 if first is None else len(first.assigned_replicas),
        "out_of_sync": out_of_sync(view),
        "offline": without_leader(view),
        "schema_version": view.schema_version,
        "internal": view.topic in INTERNAL_TOPICS,
        "configs": dict(sorted(view.configs.items())),
        "error": None if view.error is None else view.error.message,
    }


async def _sizes(asked: Asked, views: Sequence[TopicView]) -> Mapping[str, dict[str, object]]:
    """Size of all replicas, and bytes per second at the leaders, by topic."""
    count = sum(len(view.partitions) for view in views)
    if not 0 < count <= SIZES_UP_TO:
        return {}
    answer = await log_dirs_of(asked, topics=[view.topic for view in views])
    return sums_by_topic(answer.value or [])


def sums_by_topic(dirs: Iterable[BrokerLogDirs]) -> dict[str, dict[str, object]]:
    """Sums over the replicas of each topic, without copies of a move."""
    sizes: dict[str, int] = {}
    rates: dict[str, float] = {}
    for broker in dirs:
        for directory in broker.log_dirs:
            for one in directory.replicas:
                if not one.future:
                    name = one.partition.topic
                    sizes[name] = sizes.get(name, 0) + max(0, one.size_bytes)
                    rates[name] = rates.get(name, 0.0) + (one.bytes_in_per_s if one.leader else 0.0)
    return {name: {"size_bytes": sizes[name], "bytes_in_per_s": rates[name]} for name in sizes}
