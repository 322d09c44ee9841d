# SPDX-License-Identifier: Apache-2.0
"""Worlds of one kind in which every invariant holds, and the expected faults occur."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.lives import live
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES
from tests.simulation.replay import OtherProcess, digest_of
from tests.simulation.shrink import shortest_story
from tests.simulation.world import World

STEPS_MIN = 500


def sound_worlds(name: str, worlds: int, elsewhere: OtherProcess) -> Iterator[World]:
    """Run the worlds of the first seeds; a world with a failure ends the test with its shortest story.

    Another process must repeat the first world exactly.
    """
    steps = acknowledged = 0
    elsewhere.begin(0, name)
    for seed in range(worlds):
        plan = draw(seed, RECIPES[name])
        life = live(plan, tracing=seed == 0)
        if seed == 0:
            is_replayed(name, elsewhere.digest(), digest_of(life), elsewhere)
        if life.failure is not None:
            pytest.fail(shortest_story(plan, life.failure))
        steps += life.world.steps
        acknowledged += life.world.clients.acknowledged
        yield life.world
    assert steps >= STEPS_MIN * worlds, "worlds that are too short show little"
    assert acknowledged > 10 * worlds, "where little is acknowledged little is promised"


def is_replayed(name: str, digest: str, here: str, elsewhere: OtherProcess) -> None:
    """This process runs the same world only under `PYTHONHASHSEED=0`.

    Otherwise the other process runs the world twice.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        elsewhere.begin(0, name)
        here = elsewhere.digest()
    assert digest == here, f"the first world of {name} is another one in another process"
