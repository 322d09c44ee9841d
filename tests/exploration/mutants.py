# SPDX-License-Identifier: Apache-2.0
"""Known defects of replication, each of which the explorer must find in a small scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
from tidemark.core.controller.log_comparison import _Survey
from tidemark.core.messages import EpochEnd
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader import isr as isr_rules
from tidemark.core.replication.leader.isr import Committed, IsrState, PendingExpand
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import BrokerId

from tests.exploration.model.state import Scope
from tests.simulation.mutants.cut_tails import elects_the_first_to_come_back


def truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower truncates its log to the high watermark that it knows, without epochs (against E2)."""

    def on_epoch_end(self: PartitionFollower, answer: EpochEnd) -> None:
        self.ask_again = False
        self._truncate(self.log.high_watermark, answer.leader_epoch)

    patch.setattr(PartitionFollower, "on_epoch_end", on_epoch_end)


def never_truncates(patch: pytest.MonkeyPatch) -> None:
    """A follower fetches from its log end without reconciliation, and its leader does not check (against E2, E4)."""
    patch.setattr(PartitionFollower, "_ask", PartitionFollower._fetch)
    patch.setattr("tidemark.core.replication.streams.diverging_end", lambda *_: None)


def change_in_flight_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """The high watermark follows the ISR that the leader hopes for while its change is in flight (against R3)."""

    def holding(isr: IsrState) -> frozenset[BrokerId]:
        hoped = isr.confirmed.state if isinstance(isr, Committed | PendingExpand) else isr.proposed
        return frozenset(hoped.isr_ids)

    patch.setattr(isr_rules, "maximal_isr", holding)


def commits_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    """The high watermark advances with an ISR of any size (against R4)."""
    patch.setattr(isr_rules, "confirmed_enough", lambda isr: True)


def states_any_known_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new leader states its high watermark before it has reached the start of its epoch (against E6)."""
    patch.setattr(PartitionLeader, "may_state_high_watermark", property(lambda self: True))


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
    Mutant(change_in_flight_holds_nothing_back, Scope(batches=1, lags=1), "STRONG-ISR"),
    Mutant(commits_below_min_isr, Scope(batches=1, crashes=1, lags=1), "STRONG-ELR"),
    Mutant(states_any_known_high_watermark, Scope(batches=1, crashes=1), "HW-MONOTONIC"),
    Mutant(takes_its_own_write_for_done, Scope(batches=1, lags=1, lost_answers=1), "STRONG-ISR"),
)


def reports_no_cut_tail(patch: pytest.MonkeyPatch) -> None:
    """A broker that cut a torn tail off at its start takes the log for whole (against T7)."""
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
