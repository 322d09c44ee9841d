# SPDX-License-Identifier: Apache-2.0
"""Counters of a consumer and the health of its partitions, for an application to export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.preferred_replica import NearestReplicas
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import TopicPartition


class ConsumerMetrics(NamedTuple):
    """`given_records`: to the application since the start; `read_ahead_bytes`: that it has not asked for yet; `lag`:
    records of all that is assigned, as far as known; `unknown_lag`: partitions whose lag is not known yet;
    `follower_bytes`: read since the start from replicas in the consumer's rack that do not lead."""

    given_records: int
    read_ahead_bytes: int
    lag: int
    unknown_lag: int
    follower_bytes: int = 0


class PartitionHealth(NamedTuple):
    """What a partition waits for.

    Attributes:
        state: "reading", "caught up", "paused", "being handed over", "suspended", "without leader", "not answered" or
            "failed".
        detail: a sentence; who leads, or what is wrong and what to do.
        lag: high watermark - position; -1 while nothing of the partition was fetched.
        reads_from: id of the broker that is asked for it, the leader or a replica in the consumer's rack; -1 for none.
    """

    state: str
    detail: str
    position: int
    lag: int
    read_ahead_bytes: int
    reads_from: int = -1


def lag_of(cursor: Cursor) -> int:
    """Records that the application was not given yet, -1 while nothing was fetched."""
    return -1 if cursor.high_watermark < 0 else max(0, cursor.high_watermark - cursor.position)


def health_of(
    cursors: Mapping[TopicPartition, Cursor], cluster: Cluster, nearest: NearestReplicas, *, suspended: bool
) -> dict[TopicPartition, PartitionHealth]:
    """Of each that is assigned, in order."""
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


def _reads_from(where: TopicPartition, cluster: Cluster, nearest: NearestReplicas) -> int:
    leader, replica = cluster.leader(where), nearest.replica(where)
    if replica is not None:
        return replica
    return -1 if leader is None else leader.broker_id


def _state(cursor: Cursor, cluster: Cluster, replica: int | None, suspended: bool) -> tuple[str, str]:
    leader = cluster.leader(cursor.partition)
    if cursor.error is not None:
        return "failed", cursor.error.message
    if cursor.withheld:
        return "being handed over", "the application is awaited: it still works on what it was given"
    if suspended:
        return "suspended", "the coordinator of the group has not answered for a session: others may read it by now"
    if cursor.paused:
        return "paused", "by the application"
    if leader is None:
        return "without leader", "no leader that can be reached is known: it is elected, or all its replicas are away"
    place = f"broker {leader.broker_id} at {leader.address} leads in epoch {leader.leader_epoch}"
    if replica is not None:
        place += f"; broker {replica}, in this consumer's rack, is read from"
    if cursor.refusal is not None:
        return "not answered", f"{place}; it is asked again: {cursor.refusal.message}"
    return ("caught up" if lag_of(cursor) == 0 else "reading"), place


def total_lag(cursors: Iterable[Cursor]) -> tuple[int, int]:
    """The sum of what is known, and of how many it is not."""
    lags = [lag_of(cursor) for cursor in cursors]
    return sum(lag for lag in lags if lag > 0), sum(lag < 0 for lag in lags)
