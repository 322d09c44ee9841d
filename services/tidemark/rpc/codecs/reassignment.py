# SPDX-License-Identifier: Apache-2.0
"""Reassignments: requests, outcomes, progress, endings and refusals: proto <-> model."""

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
from tidemark.rpc.codecs.message import ERROR, LIST, OPTIONAL_ERROR, PARTITION, Codec, Field
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto
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


_REQUEST: Final = Codec(
    PartitionReassignment,
    pb.ReplicaMove,
    omitted=("throttle_bytes_per_s", "cancel", "request_id"),  # progress and errors of the whole request
    partition=PARTITION,
    replicas=LIST,
    log_dirs=LIST,
)
move_to_proto: Final = _REQUEST.to_proto
move_from_proto: Final = _REQUEST.from_proto

_OUTCOME: Final = Codec(
    ReassignmentOutcome,
    pb.ReassignmentResult,
    partition=PARTITION,
    before=LIST._replace(names=("replicas_before",)),
    error=OPTIONAL_ERROR,
)
outcome_to_proto: Final = _OUTCOME.to_proto
outcome_from_proto: Final = _OUTCOME.from_proto

_ENDED: Final = Codec(EndedReassignment, pb.EndedReassignment, partition=PARTITION, replicas=LIST, error=OPTIONAL_ERROR)
ended_to_proto: Final = _ENDED.to_proto
ended_from_proto: Final = _ENDED.from_proto

_REFUSAL: Final = Codec(
    Refusal,
    pb.ReassignmentRefusal,
    partition=PARTITION._replace(is_optional=True),
    error=ERROR,
    at_ms=Field(names=("refused_at_ms",)),
)
refusal_to_proto: Final = _REFUSAL.to_proto
refusal_from_proto: Final = _REFUSAL.from_proto


def progress_to_proto(moved: ReassignmentProgress) -> pb.Reassignment:
    """Encode the progress of a reassignment; unknown figures are -1."""
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
    """Decode the progress of a reassignment; an unknown phase or state is decoded as the most similar known value."""
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


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in ids)


def _known(number: float | None) -> int:
    return _UNKNOWN if number is None else round(number)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
