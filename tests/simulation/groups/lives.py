# SPDX-License-Identifier: Apache-2.0
"""Lives of simulated groups, and known defects in the code of groups that they must show.

python -m tests.simulation.groups.lives --seeds 1000 [--first 0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tidemark.core.groups import heartbeat, offsets
from tidemark.core.groups.pending_changes import PendingChanges
from tidemark.core.groups.reconciliation import next_assignment
from tidemark.core.groups.state import NO_PARTITIONS, CurrentAssignment, MemberState, Turn

from tests.simulation.coordination.lives import Life, live_out
from tests.simulation.groups.world import GroupWorld, draw

WORLDS_MAX = 250


def live(seed: int) -> Life:
    """The world of that seed, run to its end or the first failure."""
    return live_out("groups", GroupWorld(seed, draw(seed)))


def gives_partitions_that_are_not_revoked(monkeypatch: Any) -> None:
    """The coordinator assigns a partition to another member before its revocation is confirmed."""

    def impatient(holding: CurrentAssignment, *arguments: Any, **named: Any) -> CurrentAssignment:
        found = next_assignment(holding, *arguments, **named)
        return replace(found, revoking=NO_PARTITIONS) if found.state is MemberState.UNREVOKED else found

    monkeypatch.setattr(heartbeat, "next_assignment", impatient)


def accepts_commits_of_evicted_members(monkeypatch: Any) -> None:
    """No coordinator checks the member or the epoch of a commit."""
    monkeypatch.setattr(offsets, "check_committer", lambda *_: None)
    monkeypatch.setattr(offsets, "_refusal", lambda *_: None)


def carries_out_commits_as_they_come(monkeypatch: Any) -> None:
    """No coordinator checks which of a client's commits is the later one."""
    monkeypatch.setattr(Turn, "is_done_by", lambda *_: False)


def accepts_late_heartbeats(monkeypatch: Any) -> None:
    """The coordinator accepts the partitions that a member states, though it has assigned more since."""
    monkeypatch.setattr(heartbeat, "_is_late", lambda *_: False)


def raises_the_epoch_last(monkeypatch: Any) -> None:
    """The records of a change keep the order in which the coordinator made them."""
    monkeypatch.setattr(PendingChanges, "records", property(lambda self: tuple(self._changes.values())))


class GroupMutant(NamedTuple):
    """A defect, the step of docs/groups.md that it breaks, and the invariant that shows it."""

    patch: Callable[[Any], None]
    rule: str
    caught_by: str
    shown_by: int = 0
    """The first seed that shows the defect."""

    @property
    def name(self) -> str:
        return self.patch.__name__


GROUP_MUTANTS = (
    GroupMutant(gives_partitions_that_are_not_revoked, "G4", "ONE-OWNER"),
    GroupMutant(accepts_commits_of_evicted_members, "G7", "COMMITS-KEPT"),
    GroupMutant(carries_out_commits_as_they_come, "G7", "COMMITS-KEPT"),
    GroupMutant(accepts_late_heartbeats, "G2", "ONE-OWNER", shown_by=69),
    GroupMutant(raises_the_epoch_last, "G8", "SETTLED", shown_by=187),
)


def catch(mutant: GroupMutant) -> Life | None:
    """The first world that shows it, the recorded one before all others; None if no world shows it."""
    seeds: Iterable[int] = (mutant.shown_by, *range(WORLDS_MAX))  # another order of events may need another world
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant.patch(monkeypatch)
        return next((life for life in map(live, seeds) if life.broken is not None), None)


def main(arguments: list[str]) -> int:
    """Exit status 1 and a story at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    return soak(options.first, options.seeds)


def soak(first: int, count: int) -> int:
    """Exit status 1 and a story at the first failure."""
    reads = commits = 0
    for seed in range(first, first + count):
        life = live(seed)
        if life.broken is not None:
            sys.stdout.write(life.story + "\n")
            return 1
        reads, commits = reads + life.world.reads, commits + life.world.commits
    sys.stdout.write(f"{count} groups, {reads} records read, {commits} commits: all is well\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
