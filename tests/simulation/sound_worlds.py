# SPDX-License-Identifier: Apache-2.0
"""Worlds of one kind in which every invariant holds, and enough happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.lives import live
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES
from tests.simulation.shrink import shortest_story
from tests.simulation.world import World

STEPS_MIN = 500


def sound_worlds(name: str, worlds: int) -> Iterator[World]:
    """Live the worlds of the first seeds; a world with a failure ends the test with its shortest story."""
    steps = acknowledged = 0
    for seed in range(worlds):
        plan = draw(seed, RECIPES[name])
        life = live(plan)
        if life.failure is not None:
            pytest.fail(shortest_story(plan, life.failure))
        steps += life.world.steps
        acknowledged += life.world.clients.acknowledged
        yield life.world
    assert steps >= STEPS_MIN * worlds, "worlds that are too short show little"
    assert acknowledged > 10 * worlds, "where little is acknowledged little is promised"
