# SPDX-License-Identifier: Apache-2.0
"""Seeded lives of groups: every invariant holds under all faults of coordinators and members; known defects show."""

from __future__ import annotations

import pytest

from tests.simulation.groups.lives import GROUP_MUTANTS, GroupMutant, catch, live

WORLDS = 40


@pytest.mark.parametrize("first", range(0, WORLDS, 10))
def test_every_invariant_holds_in_every_group(first: int) -> None:
    for seed in range(first, first + 10):
        life = live(seed)
        assert life.broken is None, life.story
        assert life.world.reads > 300, "little was read"
        assert life.world.commits > 20, "little was committed"


def test_members_are_refused_and_partitions_change_hands() -> None:
    worlds = [live(seed).world for seed in range(5)]
    assert sum(world.refused.total() for world in worlds) > 10, "no member was ever fenced"
    assert sum(world.handed_over for world in worlds) > 50


def test_the_same_seed_is_the_same_life_of_a_group() -> None:
    one, other = live(7).world, live(7).world
    assert (one.story, one.log) == (other.story, other.log)


@pytest.mark.parametrize("mutant", GROUP_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_in_the_code_of_groups_is_caught(mutant: GroupMutant) -> None:
    life = catch(mutant)
    assert life is not None, f"no world showed that {mutant.name} is wrong"
    assert life.broken is not None
    assert life.broken[0] == mutant.caught_by, life.story
