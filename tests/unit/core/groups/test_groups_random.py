# SPDX-License-Identifier: Apache-2.0
"""Random lives of a group: no partition has two readers, each gets one, and a replay gives the same state."""

from __future__ import annotations

import random

import pytest
from tidemark.core.groups.state import TopicFacts

from tests.unit.core.groups.group_world import GroupWorld, random_steps


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_partition_has_two_readers_and_each_has_one_at_the_end(first: int) -> None:
    for seed in range(first, first + 25):
        dice = random.Random(seed)
        world = GroupWorld({"a": TopicFacts("a-0", 5), "b": TopicFacts("b-0", 3)})
        for step in range(120):
            weights, steps = zip(*random_steps(world, dice), strict=True)
            dice.choices(steps, weights)[0]()
            if step % 10 == 0:
                world.check_replay()
        world.settle()
        world.check_replay()
