# SPDX-License-Identifier: Apache-2.0
"""The values of one replica for metrics. A read takes a few microseconds, so a scrape reads thousands in slices."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.core.replication.context import LONG_AGO_MS
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import Replica
from tidemark.model import BrokerId, Offset, TopicPartition


class FollowerFigures(NamedTuple):
    """One follower in the view of its leader.

    Attributes:
        lag_records: number of records that the follower lacks; a lower bound if the follower has not fetched in this
            leader epoch.
        from_offset: first offset that the follower lacks.
        lag_ms: time since the follower was caught up (heartbeats count), or since the leadership began.
        adding: a reassignment adds the follower, which is not in sync yet.
    """

    broker_id: BrokerId
    lag_records: int
    from_offset: Offset
    lag_ms: int
    adding: bool


class LeaderFigures(NamedTuple):
    """Figures of a leader and its followers.

    Attributes:
        uncommitted_ms: time for which the high watermark has not moved while the log end was ahead; 0 if it is not.
        unstable_records: records between last stable offset and high watermark; 0 while the offset is unknown.
    """

    isr_count: int
    min_isr: int
    under_replicated: bool
    reassigning: bool
    preferred: bool
    uncommitted_ms: int
    followers: tuple[FollowerFigures, ...]
    unstable_records: int = 0


class ReplicaFigures(NamedTuple):
    """One replica. `fetch_lag_records`: of a follower, records below the leader's high watermark that it lacks."""

    partition: TopicPartition
    offline: bool
    leader_epoch: int
    replica_count: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    fetch_lag_records: int
    led: LeaderFigures | None


def figures_of(replica: Replica, me: BrokerId, now_ms: int) -> ReplicaFigures:
    """Sizes, offsets and role of a replica at `now_ms`, for metrics and DescribeLogDirs."""
    log, role = replica.log, replica.role
    led = _led(role, replica, me, now_ms) if isinstance(role, PartitionLeader) else None
    start, high_watermark, end = (
        (log.log_start_offset, log.high_watermark, log.log_end_offset) if log is not None else (0, 0, 0)
    )
    return ReplicaFigures(
        replica.partition,
        role is None and replica.failed,
        replica.leader_epoch,
        len(replica.assigned),
        start,
        high_watermark,
        end,
        role.offset_lag if isinstance(role, PartitionFollower) else 0,
        led,
    )


def _led(leader: PartitionLeader, replica: Replica, me: BrokerId, now_ms: int) -> LeaderFigures:
    log, state = leader.log, leader.state
    end, high_watermark, isr = log.log_end_offset, log.high_watermark, state.isr_ids
    adding = replica.command.adding_replicas if replica.command is not None else ()
    assigned, under_replicated = leader.assigned, False
    followers = []
    for broker_id in assigned:
        if broker_id == me:
            continue
        in_sync, added = broker_id in isr, broker_id in adding
        under_replicated |= not in_sync and not added
        progress = leader.followers.get(broker_id)
        since = leader.epoch_start_offset
        caught_up_ms = LONG_AGO_MS
        if progress is not None:
            caught_up_ms = progress.last_caught_up_ms(end)
            if progress.acknowledged:
                since = progress.log_end_offset
        lag_ms = now_ms - (leader.began_ms if caught_up_ms == LONG_AGO_MS else caught_up_ms)
        followers.append(FollowerFigures(broker_id, max(0, end - since), since, max(0, lag_ms), added and not in_sync))
    return LeaderFigures(
        len(isr),
        state.min_isr,
        under_replicated,
        bool(adding),
        bool(assigned) and assigned[0] == me,
        max(0, now_ms - log.uncommitted_since_ms) if end > high_watermark else 0,
        tuple(followers),
        0 if high_watermark == log.log_start_offset else _unstable(leader, high_watermark),
    )


def _unstable(leader: PartitionLeader, high_watermark: Offset) -> int:
    stable = leader.last_stable_offset
    return 0 if stable is None else high_watermark - stable
