# SPDX-License-Identifier: Apache-2.0
"""Disks that lose stored records, or refuse calls: the fault happens, is found, and is repaired."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.recipes import RECIPES
from tests.simulation.replay import OtherProcess
from tests.simulation.sound_worlds import sound_worlds
from tests.simulation.world import PARTITION

WORLDS = 16
FLIPPED = ("flipped", "flipped-single", "flipped-uncommitted", "flipped-files")
REFUSING = ("errors", "errors-group-commit", "errors-files")


@pytest.mark.parametrize("name", FLIPPED)
def test_flipped_bits_are_found_by_starts_fetches_and_the_scrubber_and_repaired(
    name: str, elsewhere: OtherProcess
) -> None:
    counts: Counter[str] = Counter()
    told = []
    for world in sound_worlds(name, WORLDS, elsewhere):
        counts.update(world.counts)
        told += [sentence for _, sentence in world.story]
        logs = [(name, log) for machine in world.machines.values() for name, log in machine.logs.items()]
        # An offline partition waits for an operator before its damaged replica is replaced.
        waiting = {PARTITION} if world.offline_at_the_end else set()
        assert {name for name, log in logs if log.flipped} <= waiting
    rare = {
        "flips refused by consumers": 10,
        "ranges repaired": 5,
    }
    if name == "flipped-uncommitted":
        rare |= {"damaged leaders": 5}
    else:
        rare |= {"flips found": 3}  # starts find them
    if name == "flipped":
        rare |= {"flips refused": 1, "leaders asked to check": 1}  # followers refuse them
    assert counts["flips"] >= WORLDS - 2, counts
    assert [what for what, least in rare.items() if counts[what] < least] == [], counts
    assert sum("replica_damaged" in sentence for sentence in told) >= counts["flips found"]


@pytest.mark.parametrize("name", REFUSING)
def test_a_disk_that_refuses_a_sync_or_a_read_takes_its_replicas_offline(name: str, elsewhere: OtherProcess) -> None:
    counts: Counter[str] = Counter()
    for world in sound_worlds(name, WORLDS, elsewhere):
        counts.update(world.counts)
    expected = ["checkpoint refused", "read refused", "log failed"]
    if RECIPES[name].group_commit:
        expected.append("flush refused")
    assert [one for one in expected if not counts[one]] == [], counts
