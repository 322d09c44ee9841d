# SPDX-License-Identifier: Apache-2.0
"""Known defects of reads from followers (rule K1, KIP-392), for `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.model import Offset

from tests.simulation.recipes import NEAR, NEAR_RETAINED, NEAR_UNCLEAN

FORKED = replace(
    NEAR_UNCLEAN,
    name="near-forks",
    duration_ms=6000,
    produces=120,
    faults=36,
    weights={"depose": 3, "isolate": 6, "crash": 5, "crash_all": 2, "elect_last_known": 3},
)
CUT_OFF = replace(
    NEAR_RETAINED,
    name="near-cut-off",
    retention_bytes=-1,
    duration_ms=4000,
    produces=12,
    idempotent=10,
    faults=40,
    read_ms=10,
    weights={"delete_records": 20, "isolate": 10, "depose": 3},
)
"""Few records are written, so a follower that was reset waits long for the next one, and consumers are at the end."""


def gives_uncommitted_records(monkeypatch: Any) -> None:
    """A follower returns all its records, above its high watermark too."""
    monkeypatch.setattr(PartitionFollower, "committed_offset", property(lambda self: self.log.log_end_offset))


def gives_records_committed_in_another_epoch(monkeypatch: Any) -> None:
    """A follower uses an earlier high watermark, of any lineage, with a log that is not truncated yet."""

    def committed(self: PartitionFollower) -> Offset:
        return Offset(min(self.log.log_end_offset, max(self.log.known_high_watermark, self.leader_high_watermark)))

    monkeypatch.setattr(PartitionFollower, "committed_offset", property(committed))
    monkeypatch.setattr(PartitionFollower, "reconciled", property(lambda self: True))
    monkeypatch.setattr(PartitionFollower, "in_contact", lambda *_: True)


def answers_while_its_log_is_cut(monkeypatch: Any) -> None:
    """A follower that has reconciled always answers, even while it resets its log."""
    monkeypatch.setattr(PartitionFollower, "in_contact", lambda *_: True)


RULES = {
    gives_uncommitted_records: ("K1", NEAR),
    gives_records_committed_in_another_epoch: ("K1", FORKED),
    answers_while_its_log_is_cut: ("K1, E3", CUT_OFF),
}
"""Each defect with the rule it breaks and the kind of world that shows it."""
