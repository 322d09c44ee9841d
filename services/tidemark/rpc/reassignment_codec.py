# SPDX-License-Identifier: Apache-2.0
"""Moves of replicas, their progress and what was refused: proto <-> model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.core.reassignment.progress import (
    EndedReassignment,
    ReassignmentOutcome,
    ReassignmentPhase,
    ReassignmentProgress,
)
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import BrokerId, PartitionReassignment, Refusal
from tidemark.rpc import errors
from tidemark.rpc.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import admin_reassignments_pb2 as pb

_UNKNOWN: Final = -1

_PHASES: Final = {
    ReassignmentPhase.QUEUED: pb.REASSIGNMENT_PHASE_QUEUED,
    ReassignmentPhase.COPYING: pb.REASSIGNMENT_PHASE_COPYING,
    ReassignmentPhase.FINISHING: pb.REASSIGNMENT_PHASE_FINISHING,
    ReassignmentPhase.CANCELLING: pb.REASSIGNMENT_PHASE_CANCELLING,
}
_PHASES_BACK: Final = {number: phase for phase, number in _PHASES.items()}

_STATES: Final = {
    ReplicaState.NEW: pb.MOVED_REPLICA_STATE_NEW,
    ReplicaState.ONLINE: pb.MOVED_REPLICA_STATE_ONLINE,
    ReplicaState.OFFLINE: pb.MOVED_REPLICA_STATE_OFFLINE,
    ReplicaState.NON_EXISTENT: pb.MOVED_REPLICA_STATE_NON_EXISTENT,
}
_STATES_BACK: Final = {number: state for state, number in _STATES.items()}


def move_to_proto(move: PartitionReassignment) -> pb.ReplicaMove:
    """Where a partition shall go; throttle and request id are the request's."""
    return pb.ReplicaMove(partition=ref_to_proto(move.partition), replicas=move.replicas, log_dirs=move.log_dirs)


def move_from_proto(message: pb.ReplicaMove) -> PartitionReassignment:
    """Where a partition shall go."""
    return PartitionReassignment(ref_from_proto(message.partition), _brokers(message.replicas), tuple(message.log_dirs))


def outcome_to_proto(outcome: ReassignmentOutcome) -> pb.ReassignmentResult:
    """What became of one move or cancellation."""
    return pb.ReassignmentResult(
        partition=ref_to_proto(outcome.partition),
        error=None if outcome.error is None else errors.to_proto(outcome.error),
        replicas_before=outcome.before,
        cancelled=outcome.cancelled,
    )


def outcome_from_proto(message: pb.ReassignmentResult) -> ReassignmentOutcome:
    """What became of one move or cancellation."""
    return ReassignmentOutcome(
        partition=ref_from_proto(message.partition),
        before=_brokers(message.replicas_before),
        cancelled=message.cancelled,
        error=errors.from_proto(message.error) if message.HasField("error") else None,
    )


def progress_to_proto(moved: ReassignmentProgress) -> pb.Reassignment:
    """How far a move is; what is not known is -1."""
    return pb.Reassignment(
        partition=ref_to_proto(moved.partition),
        original_replicas=moved.original,
        target_replicas=moved.target,
        assigned_replicas=moved.assigned,
        adding_replicas=moved.adding,
        removing_replicas=moved.removing,
        replicas=[
            pb.MovedReplica(broker_id=broker, state=_STATES[state], size_bytes=moved.sizes_bytes.get(broker, _UNKNOWN))
            for broker, state in sorted(moved.replicas.items())
        ],
        phase=_PHASES[moved.phase],
        bytes_done=_known(moved.bytes_done),
        bytes_total=_known(moved.bytes_total),
        rate_bytes_per_s=_known(moved.rate_bytes_per_s),
        eta_ms=_UNKNOWN if moved.eta_s is None else round(1000 * moved.eta_s),
        throttle_bytes_per_s=moved.throttle_bytes_per_s,
        waiting_for=moved.waiting_for,
        request_id=moved.request_id,
        log_dirs={int(broker): directory for broker, directory in moved.log_dirs.items()},
    )


def progress_from_proto(message: pb.Reassignment) -> ReassignmentProgress:
    """How far a move is; a phase or state of a later version is taken for the nearest one we know."""
    return ReassignmentProgress(
        partition=ref_from_proto(message.partition),
        original=_brokers(message.original_replicas),
        target=_brokers(message.target_replicas),
        assigned=_brokers(message.assigned_replicas),
        adding=_brokers(message.adding_replicas),
        removing=_brokers(message.removing_replicas),
        replicas={
            BrokerId(one.broker_id): _STATES_BACK.get(one.state, ReplicaState.OFFLINE) for one in message.replicas
        },
        phase=_PHASES_BACK.get(message.phase, ReassignmentPhase.COPYING),
        sizes_bytes={BrokerId(one.broker_id): one.size_bytes for one in message.replicas if one.size_bytes >= 0},
        bytes_done=_or_none(message.bytes_done),
        bytes_total=_or_none(message.bytes_total),
        rate_bytes_per_s=_or_none(message.rate_bytes_per_s),
        eta_s=None if message.eta_ms < 0 else message.eta_ms / 1000,
        throttle_bytes_per_s=message.throttle_bytes_per_s,
        waiting_for=message.waiting_for,
        request_id=message.request_id,
        log_dirs={BrokerId(broker): directory for broker, directory in message.log_dirs.items()},
    )


def ended_to_proto(ended: EndedReassignment) -> pb.EndedReassignment:
    """A move that is wanted no more."""
    return pb.EndedReassignment(
        partition=ref_to_proto(ended.partition),
        replicas=ended.replicas,
        error=None if ended.error is None else errors.to_proto(ended.error),
    )


def ended_from_proto(message: pb.EndedReassignment) -> EndedReassignment:
    """A move that is wanted no more."""
    return EndedReassignment(
        partition=ref_from_proto(message.partition),
        replicas=_brokers(message.replicas),
        error=errors.from_proto(message.error) if message.HasField("error") else None,
    )


def refusal_to_proto(refusal: Refusal) -> pb.ReassignmentRefusal:
    """Something asked for through ZooKeeper that was refused."""
    return pb.ReassignmentRefusal(
        kind=refusal.kind,
        partition=None if refusal.partition is None else ref_to_proto(refusal.partition),
        error=errors.to_proto(refusal.error),
        request_id=refusal.request_id,
        refused_at_ms=refusal.at_ms,
    )


def refusal_from_proto(message: pb.ReassignmentRefusal) -> Refusal:
    """Something asked for through ZooKeeper that was refused."""
    return Refusal(
        kind=message.kind,
        partition=ref_from_proto(message.partition) if message.HasField("partition") else None,
        error=errors.from_proto(message.error),
        request_id=message.request_id,
        at_ms=message.refused_at_ms,
    )


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in ids)


def _known(number: float | None) -> int:
    return _UNKNOWN if number is None else round(number)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
