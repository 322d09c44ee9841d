"""Seeded worlds in which machines lose power, some or all at once: a group-commit topic loses nothing acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark.core.partition_leader import PartitionLeader
from tidemark.core.replica_log import ReplicaLog

from tests.simulation.group_commit import GroupCommitWorld
from tests.simulation.worlds import live_through

WORLDS = 30
MUTANT_WORLDS_MAX = 60


@pytest.mark.parametrize("first_seed", range(0, 3 * WORLDS, WORLDS))
def test_every_invariant_holds_in_every_world(first_seed: int) -> None:
    lost = replies = 0
    for seed in range(first_seed, first_seed + WORLDS):
        world = GroupCommitWorld(seed, min_isr=1 + seed % 2)
        try:
            live_through(world, misfortunes=12)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        lost += world.records_lost
        replies += world.replies
    assert lost > 0, "no machine lost anything, so nothing was shown"
    assert replies > 0


def goes_by_what_is_written(monkeypatch: Any) -> None:
    """The high watermark of a group-commit topic goes by log ends (against R3)."""
    monkeypatch.setattr(ReplicaLog, "counts_flushes", lambda self, group_commit: None)


def forgets_its_own_disk(monkeypatch: Any) -> None:
    """A leader counts its followers' flushes, and its own page cache (against R3)."""
    monkeypatch.setattr(ReplicaLog, "safe_offset", property(lambda self: self.log_end_offset))


def takes_in_who_has_not_flushed(monkeypatch: Any) -> None:
    """Who has written everything joins (against R8)."""
    monkeypatch.setattr(PartitionLeader, "_is_flushed", lambda self, remote: True)


@pytest.mark.parametrize(
    "mutant",
    [
        goes_by_what_is_written,
        forgets_its_own_disk,
        takes_in_who_has_not_flushed,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_a_mutant_is_caught(mutant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MUTANT_WORLDS_MAX):
        try:
            live_through(GroupCommitWorld(seed, min_isr=1 + seed % 2), misfortunes=12)
        except AssertionError:
            return
    pytest.fail(f"{MUTANT_WORLDS_MAX} worlds did not show that {mutant.__name__} is wrong")
