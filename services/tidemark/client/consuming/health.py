# SPDX-License-Identifier: Apache-2.0
"""Counters of a consumer and the health of its partitions, which an application can export."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.preferred_replica import PreferredReplicas
from tidemark.client.metadata.cluster import Cluster, Leader
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

_log = logging.getLogger("tidemark.client")

_WITHOUT_LEADER: Final = "no leader is known: an election is running, or all replicas are offline"


class ConsumerMetrics(NamedTuple):
    """Counts since the start of the consumer, and its current buffer and lag.

    Attributes:
        given_records: records returned to the application.
        read_ahead_bytes: bytes of fetched records that were not returned yet.
        lag: records between positions and high watermarks of all assigned partitions with a known lag.
        unknown_lag: assigned partitions whose lag is not known yet.
        follower_bytes: bytes read from followers in the consumer's rack.
        throttled_s: sum of the waits that brokers requested, because of quotas.
    """

    given_records: int
    read_ahead_bytes: int
    lag: int
    unknown_lag: int
    follower_bytes: int = 0
    throttled_s: float = 0.0


class PartitionHealth(NamedTuple):
    """The health of an assigned partition.

    Attributes:
        state: "reading", "caught up", "paused", "reconciling", "suspended", "without leader", "not answered",
            "failed", or "unknown topic" (partition -1).
        detail: a sentence that names the leader, or the problem and the next step.
        position: offset of the next record to return.
        lag: high watermark - position; -1 before the first fetch.
        read_ahead_bytes: bytes of fetched records that were not returned yet.
        reads_from: id of the broker to fetch from, the leader or a follower in the consumer's rack; -1 for none.
    """

    state: str
    detail: str
    position: int
    lag: int
    read_ahead_bytes: int
    reads_from: int = -1


def lag_of(cursor: Cursor) -> int:
    """Return the number of records not returned yet; -1 before the first fetch."""
    return -1 if cursor.high_watermark < 0 else max(0, cursor.high_watermark - cursor.position)


def before(health: PartitionHealth, offsets: int) -> PartitionHealth:
    """Return the health at a position that is this number of offsets lower."""
    state = "reading" if offsets and health.state == "caught up" else health.state
    lag = health.lag + offsets if health.lag >= 0 else health.lag
    return health._replace(state=state, position=health.position - offsets, lag=lag)


def health_of(
    cursors: Mapping[TopicPartition, Cursor], cluster: Cluster, nearest: PreferredReplicas, *, suspended: bool
) -> dict[TopicPartition, PartitionHealth]:
    """Return the health of each assigned partition, in order."""
    return {
        where: PartitionHealth(
            *_state(cursor, cluster, nearest.replica(where), suspended),
            cursor.position,
            lag_of(cursor),
            cursor.buffered_bytes,
            _reads_from(where, cluster, nearest),
        )
        for where, cursor in sorted(cursors.items())
    }


def unknown_topics(topics: Iterable[str], cluster: Cluster) -> dict[TopicPartition, PartitionHealth]:
    """Return the health of each subscribed topic that brokers do not know, as partition -1."""
    return {
        TopicPartition(topic, -1): PartitionHealth("unknown topic", f"{error.message}; read once it exists", -1, -1, 0)
        for topic in sorted(topics)
        if (error := cluster.missing(topic)) is not None
    }


def waiting_for(partitions: Iterable[TopicPartition], cluster: Cluster) -> dict[TopicPartition, PartitionHealth]:
    """Return the health of assigned partitions that are not read, because no leader has stated their start yet."""
    return {where: PartitionHealth(*_waits(cluster.leader(where)), -1, -1, 0, -1) for where in partitions}


def _waits(leader: Leader | None) -> tuple[str, str]:
    if leader is None:
        return "without leader", _WITHOUT_LEADER
    return "not answered", f"broker {leader.broker_id} at {leader.address} has not stated the offset to begin at yet"


def _reads_from(where: TopicPartition, cluster: Cluster, nearest: PreferredReplicas) -> int:
    leader, replica = cluster.leader(where), nearest.replica(where)
    if replica is not None:
        return replica
    return -1 if leader is None else leader.broker_id


def _state(cursor: Cursor, cluster: Cluster, replica: int | None, suspended: bool) -> tuple[str, str]:
    leader = cluster.leader(cursor.partition)
    if cursor.error is not None:
        return "failed", cursor.error.message
    if cursor.withheld:
        return "reconciling", "the group has assigned or revoked it: a callback runs, or records are processed"
    if suspended:
        return "suspended", "the coordinator has not answered for a session timeout: other members may read it"
    if cursor.paused:
        return "paused", "by the application"
    if leader is None:
        return "without leader", _WITHOUT_LEADER
    if leader.topic_id != cursor.topic_id:
        return "reconciling", "the topic was deleted and created again: the group will assign the new topic"
    place = f"broker {leader.broker_id} at {leader.address} leads in epoch {leader.leader_epoch}"
    if replica is not None:
        place += f"; broker {replica}, in this consumer's rack, is read from"
    if cursor.refusal is not None:
        return "not answered", f"{place}; the fetch is retried: {cursor.refusal.message}"
    return ("caught up" if lag_of(cursor) == 0 else "reading"), place


def total_lag(cursors: Iterable[Cursor]) -> tuple[int, int]:
    """Return the sum of known lags, and the number of unknown lags."""
    lags = [lag_of(cursor) for cursor in cursors]
    return sum(lag for lag in lags if lag > 0), sum(lag < 0 for lag in lags)


async def log_missing(cluster: Cluster, topics: Iterable[str], timeout_s: float) -> None:
    """Log the subscribed topics that do not exist; `unknown_topics` has them too."""
    for topic in sorted(topics):
        try:
            await cluster.topic(topic, timeout_s=timeout_s)
        except TidemarkError as error:
            rarely = logging.WARNING if error.code is ErrorCode.UNKNOWN_TOPIC else logging.DEBUG
            _log.log(rarely, "subscribed to %s, which is read once it exists: %s", topic, error)
