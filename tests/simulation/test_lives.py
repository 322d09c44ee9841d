"""Seeded worlds: whatever befalls a cluster, every invariant holds in every state."""

from __future__ import annotations

import pytest

from tests.simulation.lives import live
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES
from tests.simulation.shrink import shortest_story

WORLDS_PER_RECIPE = 20
STEPS_MIN = 500


@pytest.mark.parametrize("name", RECIPES)
def test_every_invariant_holds_in_every_world(name: str) -> None:
    steps = acknowledged = 0
    for seed in range(WORLDS_PER_RECIPE):
        plan = draw(seed, RECIPES[name])
        life = live(plan)
        if life.failure is not None:
            pytest.fail(shortest_story(plan, life.failure))
        steps += life.world.steps
        acknowledged += life.world.clients.acknowledged
    assert steps >= STEPS_MIN * WORLDS_PER_RECIPE, "worlds that are too short show little"
    assert acknowledged > 10 * WORLDS_PER_RECIPE, "where little is acknowledged little is promised"


def test_the_same_seed_is_the_same_life() -> None:
    lives = [live(draw(7, RECIPES["harsh"]), tracing=True).world.lines for _ in range(2)]
    assert lives[0]
    assert lives[0] == lives[1]
