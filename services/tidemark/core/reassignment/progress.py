# SPDX-License-Identifier: Apache-2.0
"""How far a move of replicas is, and what it waits for, read off ZooKeeper and the sizes of logs (rule M1).

Pure. Rates, and for how long nothing came, need two looks: whoever looks adds them (`with_rate`).
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
"""So long without a byte is worth a reason."""

_AT_THE_THROTTLE: Final = 0.8


class ReassignmentPhase(StrEnum):
    """How far a move is."""

    QUEUED = "queued"  # wanted, not begun
    COPYING = "copying"  # members of the target are not in sync yet
    FINISHING = "finishing"  # all of them are: leader and the replicas that go are settled
    CANCELLING = "cancelling"  # it goes back


@dataclass(frozen=True, slots=True)
class ReassignmentProgress:
    """One move that is wanted or under way.

    Attributes:
        original: OAR.
        target: RAR; of a move that was given up, OAR.
        assigned: AR.
        adding: RAR - OAR.
        removing: OAR - RAR.
        replicas: state of every replica that was, is or will be assigned.
        sizes_bytes: of those whose brokers told.
        bytes_done: what the replicas that are added have; None: not known.
        bytes_total: what they need; None: not known.
        rate_bytes_per_s: what they get; None: not known yet.
        eta_s: at this rate; None: not known.
        throttle_bytes_per_s: 0 for no limit.
        waiting_for: why nothing moves, or slowly; "" where it goes on as it should.
        request_id: "" for a node that was written by hand.
        log_dirs: path or uuid of the directory named for a replica of the target; "any" one is not listed.
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
    """A move that is wanted no more: the replicas now (none where the partition is gone), and why it was undone."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentOutcome:
    """What became of one move, or cancellation, that was asked for; `before`: the replicas when it was asked for."""

    partition: TopicPartition
    before: tuple[BrokerId, ...] = ()
    cancelled: bool = False
    error: TidemarkError | None = None


class Sight(NamedTuple):
    """What is known of the cluster around a move."""

    live: frozenset[BrokerId]
    controller_active: bool
    others_under_way: bool


def progress_of(
    move: PartitionReassignment,
    topic: TopicDescription | None,
    state: LeaderAndIsr | None,
    sizes_bytes: Mapping[BrokerId, int],
    sight: Sight,
) -> ReassignmentProgress:
    """How far it is now.

    Args:
        move: as it is wanted.
        topic: None: there is no such topic.
        state: of the partition; None: it has none yet.
        sizes_bytes: of its replicas, by broker.
        sight: of the cluster.
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
        waiting_for=_obstacle(moved, state, sight),
        log_dirs={} if move.cancel else named_log_dirs(move),
    )


def with_rate(
    moved: ReassignmentProgress, rate_bytes_per_s: float | None, silent_s: float, *, throttle_used: float
) -> ReassignmentProgress:
    """With what two looks tell.

    Args:
        moved: the second look.
        rate_bytes_per_s: between them; None: there was no first one.
        silent_s: for how long no byte came.
        throttle_used: the part of its throttle that this move and those that share it use; 0 without one.
    """
    eta_s = None
    if rate_bytes_per_s and moved.bytes_done is not None and moved.bytes_total is not None:
        eta_s = max(0, moved.bytes_total - moved.bytes_done) / rate_bytes_per_s
    why = moved.waiting_for
    if not why and moved.phase is ReassignmentPhase.QUEUED and silent_s >= STALLED_AFTER_S:
        why = f"the controller has not begun it for {silent_s:.0f} s: look at its log"
    elif not why and moved.phase is ReassignmentPhase.COPYING:
        if silent_s >= STALLED_AFTER_S and moved.bytes_done is not None:
            late = [broker for broker, state in moved.replicas.items() if state is ReplicaState.NEW]
            why = f"nothing was copied for {silent_s:.0f} s: look at the log of {_brokers(late)}"
        elif throttle_used >= _AT_THE_THROTTLE:
            why = f"it copies as fast as its throttle allows, {moved.throttle_bytes_per_s} bytes/s"
    return replace(moved, rate_bytes_per_s=rate_bytes_per_s, eta_s=eta_s, waiting_for=why)


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
        waiting_for="there is no such partition: the controller refuses it, or it was deleted meanwhile",
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
    """What the added replicas have and need; each needs what the leader has, and has no more than that of it."""
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


def _obstacle(moved: ReassignmentProgress, state: LeaderAndIsr | None, sight: Sight) -> str:
    """What keeps it from going on, as far as one look tells; "": nothing."""
    if not sight.controller_active:
        return "no controller is active: start one"
    away = [broker for broker in moved.target if broker not in sight.live]
    if away:
        cure = "start it" if len(away) == 1 else "start them"
        cure += "" if moved.phase is ReassignmentPhase.CANCELLING else ", or cancel the move"
        return f"{_brokers(away)}, where it goes, {'is' if len(away) == 1 else 'are'} not live: {cure}"
    if state is None or state.leader == NO_LEADER:
        return "nobody leads the partition, so there is nothing to copy from: start its replicas, or see tidemark elect"
    if state.leader not in sight.live:
        return f"its leader, broker {state.leader}, is away: another one will be elected, or start it"
    if moved.phase is ReassignmentPhase.QUEUED and sight.others_under_way:
        return "it waits for a free slot: others are copied first"
    return ""


def _brokers(brokers: Iterable[BrokerId]) -> str:
    listed = [str(broker) for broker in brokers]
    return f"broker{'' if len(listed) == 1 else 's'} {', '.join(listed)}"
