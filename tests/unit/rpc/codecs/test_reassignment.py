# SPDX-License-Identifier: Apache-2.0
"""Reassignments and their progress survive a round trip."""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.reassignment.progress import (
    EndedReassignment,
    ReassignmentOutcome,
    ReassignmentPhase,
    ReassignmentProgress,
)
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, Refusal, TidemarkError, TopicPartition
from tidemark.rpc.codecs import reassignment as codec

T2 = TopicPartition("test", 2)
ONE, TWO, THREE = (BrokerId(broker) for broker in (1, 2, 3))
MOVED = ReassignmentProgress(
    partition=T2,
    original=(ONE, TWO),
    target=(THREE, ONE),
    assigned=(THREE, ONE, TWO),
    adding=(THREE,),
    removing=(TWO,),
    replicas={ONE: ReplicaState.ONLINE, TWO: ReplicaState.OFFLINE, THREE: ReplicaState.NEW},
    phase=ReassignmentPhase.COPYING,
    sizes_bytes={ONE: 10, THREE: 4},
    bytes_done=4,
    bytes_total=10,
    rate_bytes_per_s=2,
    eta_s=3.0,
    throttle_bytes_per_s=5,
    waiting_for="the moon",
    request_id="r",
    log_dirs={THREE: "/data/3"},
)


def test_progress_survives_a_round_trip() -> None:
    assert codec.progress_from_proto(codec.progress_to_proto(MOVED)) == MOVED
    for phase in ReassignmentPhase:
        moved = replace(MOVED, phase=phase)
        assert codec.progress_from_proto(codec.progress_to_proto(moved)).phase is phase


def test_unknown_figures_stay_unknown() -> None:
    moved = replace(MOVED, bytes_done=None, bytes_total=None, rate_bytes_per_s=None, eta_s=None, sizes_bytes={})
    assert codec.progress_from_proto(codec.progress_to_proto(moved)) == moved


def test_requests_outcomes_endings_and_refusals_survive_a_round_trip() -> None:
    move = PartitionReassignment(T2, (TWO, ONE), ("any", "any"))
    assert codec.move_from_proto(codec.move_to_proto(move)) == move
    error = TidemarkError(ErrorCode.DUPLICATE_REPLICA, "twice", {"broker": "1"})
    for outcome in (ReassignmentOutcome(T2, (ONE, TWO)), ReassignmentOutcome(T2, cancelled=True, error=error)):
        back = codec.outcome_from_proto(codec.outcome_to_proto(outcome))
        assert (back.partition, back.before, back.cancelled) == (T2, outcome.before, outcome.cancelled)
        assert repr(back.error) == repr(outcome.error)
    ended = codec.ended_from_proto(codec.ended_to_proto(EndedReassignment(T2, (ONE,), error)))
    assert (ended.partition, ended.replicas, ended.error and ended.error.code) == (T2, (ONE,), error.code)
    for partition in (T2, None):
        refusal = codec.refusal_from_proto(codec.refusal_to_proto(Refusal("reassign", partition, error, "r", 7)))
        assert (refusal.kind, refusal.partition, refusal.request_id, refusal.at_ms) == ("reassign", partition, "r", 7)
        assert refusal.error.metadata == {"broker": "1"}
