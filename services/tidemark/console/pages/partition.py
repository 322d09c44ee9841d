# SPDX-License-Identifier: Apache-2.0
"""One partition: leader, ISR with its last changes, offsets, and every replica with its directory, lag and size."""

from __future__ import annotations

from typing import Final

from tidemark.console.page import Asked, Refused, View
from tidemark.console.pages.cluster import cluster_of, log_dirs_of
from tidemark.console.pages.paging import whole
from tidemark.console.pages.topic import leader_on_disk, partition_facts, replicas_by_partition, topic_of
from tidemark.core.cluster_view import PartitionView
from tidemark.core.isr_change_reasons import change_json, merged
from tidemark.model import TopicPartition
from tidemark.rpc.log_dirs import ReplicaOnDisk

ISR_CHANGES_MAX: Final = 20
"""Each of several leaders has its own list."""


async def load(asked: Asked) -> View:
    """The page `/topics/{topic}/{partition}`."""
    index = whole(asked.path["partition"], "the partition")
    view = await topic_of(asked)
    one = view.partitions.get(index)
    if one is None:
        raise Refused(404, f"Topic {view.topic} has no partition {index}: it has {len(view.partitions)} partitions.")
    cluster = await cluster_of(asked)
    dirs = await log_dirs_of(asked, partitions=[TopicPartition(view.topic, index)], include_isr_changes=True)
    on_disk = replicas_by_partition(dirs.value or []).get(index, [])
    leader = leader_on_disk(on_disk)
    changes = merged(change for _, _, replica in on_disk for change in replica.isr_changes)
    isr = asked.sighted(("isr", view.topic, view.topic_id, index), tuple(sorted(one.in_sync_replicas)))
    led = asked.sighted(("leader", view.topic, view.topic_id, index), one.leader)
    data = {
        "topic": view.topic,
        **partition_facts(one),
        "incarnation": one.incarnation,
        "isr_since_ms": isr.since_ms,
        "isr_before": isr.before,
        "leader_since_ms": led.since_ms,
        "leader_before": led.before,
        "log_start_offset": None if leader is None else leader.log_start_offset,
        "high_watermark": None if leader is None else leader.high_watermark,
        "log_end_offset": None if leader is None else leader.log_end_offset,
        "bytes_in_per_s": None if leader is None else leader.bytes_in_per_s,
        "isr_changes": [change_json(change) for change in changes[:ISR_CHANGES_MAX]],
        "replica_states": _replicas(one, on_disk, leader, live=set(cluster.view.brokers)),
    }
    command = f"tidemark topic describe {view.topic} --partition {index}"
    return View(f"Partition {view.topic}:{index}", command, data)


def _replicas(
    one: PartitionView,
    on_disk: list[tuple[int, str, ReplicaOnDisk]],
    leader: ReplicaOnDisk | None,
    *,
    live: set[int],
) -> list[dict[str, object]]:
    rows = []
    known = {broker for broker, _, _ in on_disk}
    for broker, path, replica in sorted(on_disk, key=lambda found: (found[2].future, found[0])):
        lag = None if leader is None or replica.offline else max(0, leader.log_end_offset - replica.log_end_offset)
        rows.append(
            {
                **_standing(one, broker, live),
                "log_dir": path,
                "log_start_offset": replica.log_start_offset,
                "log_end_offset": replica.log_end_offset,
                "high_watermark": replica.high_watermark,
                "lag": lag,
                "size_bytes": max(0, replica.size_bytes),
                "offline": replica.offline,
                "future": replica.future,
            }
        )
    return rows + [_standing(one, broker, live) for broker in one.assigned_replicas if broker not in known]


def _standing(one: PartitionView, broker: int, live: set[int]) -> dict[str, object]:
    return {
        "broker_id": broker,
        "live": broker in live,
        "leader": broker == one.leader,
        "in_sync": broker in one.in_sync_replicas,
        "assigned": broker in one.assigned_replicas,
    }
