# SPDX-License-Identifier: Apache-2.0
"""Defects in the handling of a replica whose disk has lost records below its high watermark (rule T5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidemark.broker.logs.log_repairs import LogRepairs
from tidemark.broker.logs.repair_sources import RepairSources
from tidemark.core.controller import leader_election
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.storage.log.segment_repair import DamagedRange, Patch
from tidemark.storage.recovery import log_loader

from tests.simulation.disks.machine_logs import MachineLogs
from tests.simulation.recipes import FLIPPED, FLIPPED_FILES, FLIPPED_SINGLE, FLIPPED_UNCOMMITTED, ROTTEN, ROTTEN_UNCLEAN

REFETCHING = replace(
    ROTTEN,
    name="refetching",
    min_isr=2,
    election_wait_ms=0,
    faults=22,
    weights={"rot": 8, "crash_all": 6, "crash": 8, "cut": 5, "isolate": 4},
)
"""Below m the last members stay eligible, and one of them has lost records."""
IDLE = replace(
    ROTTEN_UNCLEAN,
    name="idle",
    min_isr=2,
    produces=6,
    idempotent=0,
    weights={"rot": 8, "crash_all": 4, "crash": 4, "depose": 2},
)
"""A replica is complete, and no new record arrives that would show this."""


DIVERGED = replace(
    FLIPPED_SINGLE,
    name="flipped-diverged",
    faults=26,
    weights={"flip_alive": 8, "isolate": 8, "cut": 4, "depose": 4, "crash": 3},
)
"""A deposed leader holds other batches at the offsets of damaged ones."""


def leads_though_damaged(monkeypatch: Any) -> None:
    """A replica does not report that its log lost records."""
    opened = ReplicaLog.__init__

    def init(self: ReplicaLog, *arguments: Any) -> None:
        opened(self, *arguments)
        self.damaged = None

    monkeypatch.setattr(ReplicaLog, "__init__", init)


def heals_with_any_leader(monkeypatch: Any) -> None:
    """A replica is complete as soon as it is reconciled with a leader; the controller never learns of the damage."""

    def heal(self: PartitionFollower) -> None:
        if self.log.damaged is not None:
            self.log.end_damage(self.log.log_end_offset)

    monkeypatch.setattr(PartitionFollower, "_maybe_end_damage", heal)
    monkeypatch.setattr(PartitionState, "_found_damaged", lambda self, *found: False)


def heals_when_the_high_watermark_moves(monkeypatch: Any) -> None:
    """A replica is complete when its high watermark reaches the leader's, as far as the replica knows that offset."""

    def advance(self: PartitionFollower) -> None:
        log, before = self.log, self.log.high_watermark
        original(self)
        moved = log.high_watermark > before
        if moved and log.damaged is not None and log.log_end_offset >= self.leader_high_watermark:
            log.end_damage(log.log_end_offset)

    original = PartitionFollower._advance_high_watermark
    monkeypatch.setattr(PartitionFollower, "_advance_high_watermark", advance)
    monkeypatch.setattr(PartitionFollower, "_maybe_end_damage", lambda self: None)


def keeps_its_healing_to_itself(monkeypatch: Any) -> None:
    """No component clears the damage mark of the disk when a replica is complete again."""
    monkeypatch.setattr(MachineLogs, "_do_end_damage", lambda self, effect: None)


def takes_damage_for_a_torn_tail(monkeypatch: Any) -> None:
    """A start truncates a log at a damaged batch, and does not search for valid batches after it."""
    monkeypatch.setattr(log_loader, "end_of_valid_batches", lambda *_, **__: None)


def repairs_nothing(monkeypatch: Any) -> None:
    """The broker finds and counts damaged batches, and does not repair them."""

    async def replace(self: LogRepairs, *found: Sequence[object]) -> int:
        return len(found[-1])

    monkeypatch.setattr(LogRepairs, "_replace", replace)


def repairs_with_any_epoch(monkeypatch: Any) -> None:
    """A repair takes a batch of the right offset, with any leader epoch."""
    patch = RepairSources.patch

    async def blind(self: RepairSources, damaged: DamagedRange) -> Patch:
        self._log = self._log._replace(epochs=LeaderEpochs())
        return await patch(self, damaged)

    monkeypatch.setattr(RepairSources, "patch", blind)


def leads_on_with_damage(monkeypatch: Any) -> None:
    """A leader whose newest batch is damaged stays the leader, and no follower can fetch past that batch."""
    monkeypatch.setattr(PartitionLeader, "on_damaged", lambda self, now_ms, repairable: None)


def gives_way_to_in_sync_replicas_only(monkeypatch: Any) -> None:
    """A leader that is alone in sync and has a damaged batch stays, though an eligible replica lives."""
    monkeypatch.setattr(
        leader_election, "_eligible_successor", lambda partition, brokers, isr, elr: (isr, elr, partition.state.leader)
    )


RULES = {
    leads_though_damaged: ("T5", ROTTEN),
    heals_with_any_leader: ("T5", REFETCHING),
    heals_when_the_high_watermark_moves: ("T5", IDLE),
    keeps_its_healing_to_itself: ("T5", IDLE),
    takes_damage_for_a_torn_tail: ("T5", FLIPPED_FILES),
    repairs_nothing: ("T6", FLIPPED),
    repairs_with_any_epoch: ("T6", DIVERGED),
    leads_on_with_damage: ("T6", FLIPPED_UNCOMMITTED),
    gives_way_to_in_sync_replicas_only: ("T6", FLIPPED_UNCOMMITTED),
}
"""Each defect with the rule it breaks and the kind of world that shows it."""
