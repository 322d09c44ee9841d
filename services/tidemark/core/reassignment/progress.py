# SPDX-License-Identifier: Apache-2.0
"""The progress of a reassignment and its obstacle, from ZooKeeper and log sizes (rule M1). Pure.

A rate needs two samples: the caller adds it with `with_rate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.core.reassignment.request import named_log_dirs
from tidemark.core.reassignment.status import ReplicaState, status
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    PartitionReassignment,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)

STALLED_AFTER_S: Final = 10.0
"""After this time without a byte copied, a reassignment gets a reason."""

_THROTTLED_FROM: Final = 0.8
"""Part of the throttle in use from which the throttle counts as the limit."""


class ReassignmentPhase(StrEnum):
    """Phases of a reassignment, as operators see them."""

    QUEUED = "queued"  # requested, not begun
    COPYING = "copying"  # members of the target are not in sync yet
    # all members of the target are in sync: the leader is elected, and removed replicas are deleted
    FINISHING = "finishing"
    CANCELLING = "cancelling"  # the target is OAR


@dataclass(frozen=True, slots=True)
class ReassignmentProgress:
    """One reassignment that is requested or has begun.

    Attributes:
        original: OAR.
        target: RAR; of a cancelled reassignment, OAR.
        assigned: AR.
        adding: RAR - OAR.
        removing: OAR - RAR.
        replicas: state of every replica that was, is or will be assigned.
        sizes_bytes: log sizes by broker, of brokers that reported them.
        bytes_done: copied to the added replicas; None: not known.
        bytes_total: to copy to the added replicas; None: not known.
        rate_bytes_per_s: rate of copying; None: not known yet.
        eta_s: time left at this rate; None: not known.
        throttle_bytes_per_s: limit of the copying; 0: no limit.
        waiting_for: why no bytes are copied, or few; "": there is no obstacle.
        request_id: "" for an entry that was written manually.
        log_dirs: path or uuid of the log directory named for a replica of the target; "any" is not listed.
    """

    partition: TopicPartition
    original: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    assigned: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    replicas: Mapping[BrokerId, ReplicaState]
    phase: ReassignmentPhase
    sizes_bytes: Mapping[BrokerId, int] = field(default_factory=dict)
    bytes_done: int | None = None
    bytes_total: int | None = None
    rate_bytes_per_s: float | None = None
    eta_s: float | None = None
    throttle_bytes_per_s: int = 0
    waiting_for: str = ""
    request_id: str = ""
    log_dirs: Mapping[BrokerId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndedReassignment:
    """A reassignment that has ended: the replicas now (empty: the partition was deleted); `error`: why it was
    refused.
    """

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentOutcome:
    """The answer to one requested reassignment or cancellation; `before`: the replicas at the time of the request."""

    partition: TopicPartition
    before: tuple[BrokerId, ...] = ()
    cancelled: bool = False
    error: TidemarkError | None = None


class ClusterFacts(NamedTuple):
    """The cluster around a reassignment; `others_under_way`: reassignments of other partitions have begun."""

    live: frozenset[BrokerId]
    controller_active: bool
    others_under_way: bool


def progress_of(
    move: PartitionReassignment,
    topic: TopicDescription | None,
    state: LeaderAndIsr | None,
    sizes_bytes: Mapping[BrokerId, int],
    cluster: ClusterFacts,
) -> ReassignmentProgress:
    """The present progress, without a rate.

    Args:
        move: the entry.
        topic: the topic; None: the topic does not exist.
        state: leaderAndISR; None: the node does not exist yet.
        sizes_bytes: sizes in bytes of its replicas, by broker.
        cluster: the live brokers and the controller.
    """
    index = move.partition.partition
    if topic is None or index not in topic.partitions:
        return _nowhere(move)
    under_way = status(topic, index, state)
    assigned = topic.partitions[index]
    if under_way is None:
        moved = _queued(move, assigned, () if state is None else state.isr_ids)
    else:
        phase = ReassignmentPhase.FINISHING
        if move.cancel or under_way.cancelled:
            phase = ReassignmentPhase.CANCELLING
        elif under_way.waiting_for:
            phase = ReassignmentPhase.COPYING
        moved = ReassignmentProgress(
            partition=move.partition,
            original=under_way.original,
            target=under_way.original if move.cancel else under_way.target,
            assigned=assigned,
            adding=under_way.adding,
            removing=under_way.removing,
            replicas=under_way.replicas,
            phase=phase,
            throttle_bytes_per_s=move.throttle_bytes_per_s,
            request_id=move.request_id,
        )
    done, total = _bytes(moved, state, sizes_bytes)
    return replace(
        moved,
        sizes_bytes=dict(sizes_bytes),
        bytes_done=done,
        bytes_total=total,
        waiting_for=_obstacle(moved, state, cluster),
        log_dirs={} if move.cancel else named_log_dirs(move),
    )


def with_rate(
    moved: ReassignmentProgress, rate_bytes_per_s: float | None, silent_s: float, *, throttle_used: float
) -> ReassignmentProgress:
    """Add a rate, the time left and the reason for a slow copy.

    Args:
        moved: the second sample.
        rate_bytes_per_s: between two samples; None: there is only one sample.
        silent_s: time without a byte copied.
        throttle_used: the part of the throttle that the reassignments under this throttle use; 0: no throttle.
    """
    eta_s = None
    if (
        rate_bytes_per_s is not None
        and rate_bytes_per_s >= 1
        and moved.bytes_done is not None
        and moved.bytes_total is not None
    ):
        eta_s = max(0, moved.bytes_total - moved.bytes_done) / rate_bytes_per_s
    why = moved.waiting_for
    if not why and moved.phase is ReassignmentPhase.QUEUED and silent_s >= STALLED_AFTER_S:
        why = f"the controller has not begun it for {silent_s:.0f} s: see its log"
    elif not why and _moves_only_between_disks(moved) and silent_s >= STALLED_AFTER_S:
        late = sorted(moved.log_dirs)
        why = f"no copy has begun in the named log directory for {silent_s:.0f} s: see the log of {_brokers(late)}"
    elif not why and moved.phase is ReassignmentPhase.COPYING:
        if silent_s >= STALLED_AFTER_S and moved.bytes_done is not None:
            late = [broker for broker, state in moved.replicas.items() if state is ReplicaState.NEW]
            why = f"nothing was copied for {silent_s:.0f} s: see the log of {_brokers(late)}"
        elif throttle_used >= _THROTTLED_FROM:
            why = f"it copies as fast as its throttle allows, {moved.throttle_bytes_per_s} bytes/s"
    return replace(moved, rate_bytes_per_s=rate_bytes_per_s, eta_s=eta_s, waiting_for=why)


def _moves_only_between_disks(moved: ReassignmentProgress) -> bool:
    """Whether the replicas stay on their brokers; the reassignment ends when each copy has begun."""
    return moved.phase is ReassignmentPhase.FINISHING and moved.original == moved.target and bool(moved.log_dirs)


def _nowhere(move: PartitionReassignment) -> ReassignmentProgress:
    return ReassignmentProgress(
        partition=move.partition,
        original=(),
        target=move.replicas,
        assigned=(),
        adding=move.replicas,
        removing=(),
        replicas=dict.fromkeys(move.replicas, ReplicaState.NON_EXISTENT),
        phase=ReassignmentPhase.QUEUED,
        throttle_bytes_per_s=move.throttle_bytes_per_s,
        waiting_for="the partition does not exist: the controller will refuse the reassignment",
        request_id=move.request_id,
    )


def _queued(
    move: PartitionReassignment, assigned: tuple[BrokerId, ...], in_sync: tuple[BrokerId, ...]
) -> ReassignmentProgress:
    states = {broker: ReplicaState.ONLINE if broker in in_sync else ReplicaState.OFFLINE for broker in assigned}
    adding = tuple(broker for broker in move.replicas if broker not in assigned)
    settled = assigned == move.replicas or move.cancel
    return ReassignmentProgress(
        partition=move.partition,
        original=assigned,
        target=assigned if move.cancel else move.replicas,
        assigned=assigned,
        adding=() if move.cancel else adding,
        removing=() if move.cancel else tuple(broker for broker in assigned if broker not in move.replicas),
        replicas=states | ({} if move.cancel else dict.fromkeys(adding, ReplicaState.NON_EXISTENT)),
        phase=ReassignmentPhase.FINISHING if settled else ReassignmentPhase.QUEUED,
        throttle_bytes_per_s=move.throttle_bytes_per_s,
        request_id=move.request_id,
    )


def _bytes(
    moved: ReassignmentProgress, state: LeaderAndIsr | None, sizes_bytes: Mapping[BrokerId, int]
) -> tuple[int | None, int | None]:
    """Bytes copied and bytes to copy; each added replica needs a copy of the leader's log."""
    if not moved.adding:
        return 0, 0
    leader = NO_LEADER if state is None else state.leader
    whole = sizes_bytes.get(leader)
    if whole is None or moved.phase is ReassignmentPhase.CANCELLING:
        return None, None
    done = 0
    for broker in moved.adding:
        if moved.replicas.get(broker) is ReplicaState.ONLINE:
            done += whole
        else:
            done += min(sizes_bytes.get(broker, 0), whole)
    return done, whole * len(moved.adding)


def _obstacle(moved: ReassignmentProgress, state: LeaderAndIsr | None, cluster: ClusterFacts) -> str:
    """The obstacle, if one sample shows it; "": no obstacle."""
    if not cluster.controller_active:
        return "no controller is active: start one"
    away = [broker for broker in moved.target if broker not in cluster.live]
    if away:
        cure = "start it" if len(away) == 1 else "start them"
        cure += "" if moved.phase is ReassignmentPhase.CANCELLING else ", or cancel the reassignment"
        return f"{_brokers(away)} of the target {'is' if len(away) == 1 else 'are'} not live: {cure}"
    if state is None or state.leader == NO_LEADER:
        return "the partition has no leader to copy from: start its replicas, or see tidemark elect"
    if state.leader not in cluster.live:
        return f"the leader, broker {state.leader}, is not live: wait for an election, or start it"
    if moved.phase is ReassignmentPhase.QUEUED and cluster.others_under_way:
        return "waits for a free slot: other reassignments are copied first"
    return ""


def _brokers(brokers: Iterable[BrokerId]) -> str:
    listed = [str(broker) for broker in brokers]
    return f"broker{'' if len(listed) == 1 else 's'} {', '.join(listed)}"
