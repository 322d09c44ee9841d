# SPDX-License-Identifier: Apache-2.0
"""Known defects of replication, each of which the explorer must find in a small scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from tidemark.core.controller.log_comparison import _Survey
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog

from tests.exploration.model.state import Scope
from tests.simulation.mutants.catalogue import (
    change_in_flight_does_not_hold,
    commits_below_min_isr,
    never_truncates,
    states_a_stale_high_watermark,
    truncates_to_the_high_watermark,
)
from tests.simulation.mutants.cut_tails import elects_the_first_to_come_back


def takes_its_own_write_for_done(patch: pytest.MonkeyPatch) -> None:
    """After a conflict or a lost answer a leader continues as if its ISR were written (against R9)."""

    def failed(self: PartitionLeader, *, unknown: bool) -> None:
        self.on_isr_written(self.partition_epoch + 1)

    patch.setattr(PartitionLeader, "on_isr_write_failed", failed)


class Mutant(NamedTuple):
    """A defect, and a scope that shows it within seconds."""

    patch: Callable[[pytest.MonkeyPatch], None]
    scope: Scope
    guarantee: str


MUTANTS: Final = (
    Mutant(truncates_to_the_high_watermark, Scope(batches=1, crashes=1), "STRONG-ISR"),
    Mutant(never_truncates, Scope(batches=2, suspicions=1, acks=1), "STRONG-ISR"),
    Mutant(change_in_flight_does_not_hold, Scope(batches=1, lags=1), "STRONG-ISR"),
    Mutant(commits_below_min_isr, Scope(batches=1, crashes=1, lags=1), "STRONG-ELR"),
    Mutant(states_a_stale_high_watermark, Scope(batches=1, crashes=1), "HW-MONOTONIC"),
    Mutant(takes_its_own_write_for_done, Scope(batches=1, lags=1, lost_answers=1), "STRONG-ISR"),
)


def reports_no_cut_tail(patch: pytest.MonkeyPatch) -> None:
    """A broker that cut a torn tail off at its start treats the log as complete (against T7)."""
    opened = ReplicaLog.__init__

    def init(self: ReplicaLog, *arguments: Any) -> None:
        opened(self, *arguments)
        self.damaged, self.cut = None, False

    patch.setattr(ReplicaLog, "__init__", init)


def ends_the_wait_with_the_first_answer(patch: pytest.MonkeyPatch) -> None:
    """The controller elects among the replicas that have answered, without waiting for the others (against T7)."""
    patch.setattr(_Survey, "ready", lambda self, now_ms: self.answered)


CUT_MUTANTS: Final = (
    Mutant(reports_no_cut_tail, Scope(batches=1, cuts=1), "STRONG-ISR"),
    Mutant(elects_the_first_to_come_back, Scope(batches=1, cuts=1), "STRONG-ISR"),
    Mutant(elects_the_first_to_come_back, Scope(batches=1, cuts=1, unnoticed=True), "STRONG-ISR"),
    Mutant(ends_the_wait_with_the_first_answer, Scope(batches=1, cuts=1, unnoticed=True), "STRONG-ISR"),
)
"""Mutants that crashes of all brokers show (see `Scope.cuts`)."""
