"""Known ways to get replication wrong, put into the core for one test each; the invariants must catch every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.core import isr as isr_rules
from tidemark.core.isr import Committed, IsrState, PendingExpand
from tidemark.core.messages import EpochEnd
from tidemark.core.partition_follower import PartitionFollower
from tidemark.core.partition_leader import PartitionLeader
from tidemark.core.producer_state import ProducerStates
from tidemark.model import BrokerId, Offset

Patch = Callable[[Any], None]


def truncate_to_the_high_watermark(monkeypatch: Any) -> None:
    """Seed 003's first protocol: cut at the own high watermark instead of by epochs (against E2)."""

    def on_epoch_end(self: PartitionFollower, answer: EpochEnd) -> None:
        self.ask_again = False
        self._cut(self.log.high_watermark, answer.leader_epoch)

    monkeypatch.setattr(PartitionFollower, "on_epoch_end", on_epoch_end)


def no_truncation_at_all(monkeypatch: Any) -> None:
    """Fetch without reconciling, and take whatever comes (against E2, E4)."""
    monkeypatch.setattr(PartitionFollower, "_ask", PartitionFollower._fetch)
    monkeypatch.setattr("tidemark.core.broker_streams.diverging_end", lambda *_: None)


def change_in_flight_does_not_hold(monkeypatch: Any) -> None:
    """The high watermark goes by what was hoped for: without those who are leaving, or not yet in (against R3)."""

    def holding(isr: IsrState) -> frozenset[BrokerId]:
        if isinstance(isr, Committed | PendingExpand):
            return frozenset(isr.confirmed.state.isr_ids)
        return frozenset(isr.proposed.isr_ids)

    monkeypatch.setattr(isr_rules, "holding_high_watermark", holding)


def commits_below_min_isr(monkeypatch: Any) -> None:
    """The high watermark advances whatever the size of the ISR (against R4)."""
    monkeypatch.setattr(isr_rules, "confirmed_enough", lambda isr: True)


def skips_who_has_not_acknowledged(monkeypatch: Any) -> None:
    """A member that has not fetched in this epoch does not hold the high watermark (against R3)."""

    def isr_moved(self: PartitionLeader) -> None:
        original(self)
        for remote in self._holding:
            if not remote.acknowledged:
                remote.acknowledged = True
                remote.log_end_offset = Offset(1 << 60)

    original = PartitionLeader._isr_moved
    monkeypatch.setattr(PartitionLeader, "_isr_moved", isr_moved)


def states_a_stale_high_watermark(monkeypatch: Any) -> None:
    """A new leader states the high watermark it happened to know (against E6)."""
    monkeypatch.setattr(PartitionLeader, "may_state_high_watermark", property(lambda self: True))


def takes_in_who_lags(monkeypatch: Any) -> None:
    """Anybody who fetches joins the ISR (against R8)."""
    monkeypatch.setattr(PartitionLeader, "_may_join", lambda self, remote, sending: True)


def forgets_producers(monkeypatch: Any) -> None:
    """Duplicates are not recognised (against P2)."""
    monkeypatch.setattr(ProducerStates, "check", lambda self, envelope: None)


def goes_on_after_a_conflict(monkeypatch: Any) -> None:
    """A leader whose ISR write met another's takes its own for written (against R9)."""

    def failed(self: PartitionLeader, *, unknown: bool) -> None:
        self.on_isr_written(self.partition_epoch + 1)

    monkeypatch.setattr(PartitionLeader, "on_isr_write_failed", failed)


MUTANTS: tuple[Patch, ...] = (
    truncate_to_the_high_watermark,
    no_truncation_at_all,
    change_in_flight_does_not_hold,
    commits_below_min_isr,
    skips_who_has_not_acknowledged,
    states_a_stale_high_watermark,
    takes_in_who_lags,
    forgets_producers,
    goes_on_after_a_conflict,
)
