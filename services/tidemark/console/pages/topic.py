# SPDX-License-Identifier: Apache-2.0
"""One topic: its partitions in pages, its settings with their sources, and its newest schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidemark.console.page import Asked, Refused, View
from tidemark.console.pages.cluster import SLOW_LIFE_MS, log_dirs_of
from tidemark.console.pages.config_rows import config_rows
from tidemark.console.pages.paging import one_of, part_of
from tidemark.console.pages.topics import first_partition, out_of_sync, without_leader
from tidemark.console.queries.shared import is_denial
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.type_names import SPARK, column_text
from tidemark.core.topic_name import check_topic_name
from tidemark.model import TidemarkError, TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs
from tidemark.rpc.log_dirs import ReplicaOnDisk

_STATES: Final = ("all", "out-of-sync", "offline")


async def load(asked: Asked) -> View:
    """The page `/topics/{topic}?state=STATE&page=NUMBER`."""
    view = await topic_of(asked)
    state = one_of(asked.query, "state", _STATES)
    part = part_of([one for _, one in sorted(view.partitions.items()) if _has_state(one, state)], asked.query)
    dirs = await log_dirs_of(asked, partitions=[TopicPartition(view.topic, one.partition) for one in part.rows])
    replicas = replicas_by_partition(dirs.value or [])
    resource = ConfigResource(ConfigKind.TOPIC, view.topic)
    configs = await asked.see_admin(
        "configs", lambda admin: admin.describe_configs([resource]), key=resource, life_ms=SLOW_LIFE_MS
    )
    first = first_partition(view)
    data = {
        "topic": view.topic,
        "topic_id": view.topic_id,
        "partition_count": len(view.partitions),
        "replication_factor": 0 if first is None else len(first.assigned_replicas),
        "out_of_sync": out_of_sync(view),
        "offline": without_leader(view),
        "state": state,
        "states": list(_STATES),
        "partitions": [{**partition_facts(one), **_on_disk(replicas.get(one.partition, []))} for one in part.rows],
        "configs": config_rows((configs.value or {}).get(resource, [])),
        "schema": await _schema(asked, view),
        **part.facts(),
    }
    return View(f"Topic {view.topic}", f"tidemark topic describe {view.topic}", data)


async def topic_of(asked: Asked) -> TopicView:
    """The topic that the address names; raises `Refused` if the topic does not exist."""
    name = asked.path["topic"]
    try:
        check_topic_name(name)
    except TidemarkError as error:
        raise Refused(404, error.message, error=error) from None
    (view,) = await asked.need_admin("topic", lambda admin: admin.describe_topics([name]), key=name)
    if view.error is not None:
        status = 403 if is_denial(view.error) else 404
        raise Refused(status, view.error.message, error=view.error)
    return view


def partition_facts(one: PartitionView) -> dict[str, object]:
    """A partition as data; the leader is -1 if there is none."""
    return {
        "partition": one.partition,
        "leader": one.leader,
        "leader_epoch": one.leader_epoch,
        "preferred": one.assigned_replicas[0] if one.assigned_replicas else -1,
        "replicas": list(one.assigned_replicas),
        "isr": list(one.in_sync_replicas),
        "out_of_sync": sorted(set(one.assigned_replicas).difference(one.in_sync_replicas)),
        "elr": list(one.eligible_leader_replicas),
        "lineage": one.lineage,
        "state_unreadable": one.state_unreadable,
    }


def replicas_by_partition(dirs: Iterable[BrokerLogDirs]) -> Mapping[int, list[tuple[int, str, ReplicaOnDisk]]]:
    """Broker, directory and replica of each replica on disk, by partition index; of one topic."""
    found: dict[int, list[tuple[int, str, ReplicaOnDisk]]] = {}
    for broker in dirs:
        for directory in broker.log_dirs:
            for one in directory.replicas:
                found.setdefault(one.partition.partition, []).append((broker.broker_id, directory.path, one))
    return found


def leader_on_disk(replicas: Iterable[tuple[int, str, ReplicaOnDisk]]) -> ReplicaOnDisk | None:
    """The leader's replica among the replicas on disk."""
    return next((one for _, _, one in replicas if one.leader and not one.future), None)


def _on_disk(replicas: list[tuple[int, str, ReplicaOnDisk]]) -> dict[str, object]:
    leader = leader_on_disk(replicas)
    if leader is None:
        return {}
    return {
        "log_start_offset": leader.log_start_offset,
        "high_watermark": leader.high_watermark,
        "log_end_offset": leader.log_end_offset,
        "size_bytes": max(0, leader.size_bytes),
        "bytes_in_per_s": leader.bytes_in_per_s,
    }


def _has_state(one: PartitionView, state: str) -> bool:
    if state == "offline":
        return one.leader < 0
    return state == "all" or len(one.in_sync_replicas) < len(one.assigned_replicas)


async def _schema(asked: Asked, view: TopicView) -> dict[str, object] | None:
    if not view.schema_version:
        return None
    answer = await asked.see_admin(
        "schemas", lambda admin: admin.describe_topic_schemas(view.topic), key=view.topic, life_ms=SLOW_LIFE_MS
    )
    if answer.value is None or not answer.value.versions:
        return None
    newest = answer.value.versions[-1]
    return {
        **columns_of(newest.schema),
        "version": view.schema_version,
        "created_at_ms": newest.created_at_ms,
        "compatibility": answer.value.compatibility,
    }


def columns_of(schema: TopicSchema) -> dict[str, object]:
    """Columns, key and event time of a schema."""
    event_time = schema.event_time_column
    return {
        "columns": [column_text(column, SPARK) for column in schema.columns],
        "key": [column.name for column in schema.key_columns],
        "event_time": None if event_time is None else event_time.name,
    }
