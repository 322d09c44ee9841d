# SPDX-License-Identifier: Apache-2.0
"""The simulation must find defects: each known one is put into the code, and a world must show it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from tests.simulation.groups.lives import GROUP_MUTANTS
from tests.simulation.lives import live
from tests.simulation.mutants.catalogue import MUTANTS, SHOWN_BY, WORLDS_MAX, Mutant, catch, seeds_for
from tests.simulation.plan import Recipe, draw
from tests.simulation.recipes import RECIPES
from tests.simulation.shrink import shrink, story
from tests.simulation.transactions.mutants import TRANSACTION_MUTANTS

STORY_ITEMS_MAX = 8
SOUND_WORLDS = 4


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    caught = catch(mutant, seeds_for(mutant))
    assert caught is not None, f"no world showed that {mutant.name} is wrong"
    if mutant.name in SHOWN_BY and caught.worlds > 1:
        warnings.warn(f"SHOWN_BY is stale: world {caught.plan.seed} shows {mutant.name} now", stacklevel=1)


@pytest.mark.parametrize(
    "recipe",
    {mutant.recipe.name: mutant.recipe for mutant in MUTANTS if mutant.recipe not in RECIPES.values()}.values(),
    ids=lambda one: one.name,
)
def test_without_a_mutant_the_same_worlds_are_sound(recipe: Recipe) -> None:
    """The worlds of the other kinds of mutants are among those of test_lives.py."""
    for seed in range(SOUND_WORLDS):
        failure = live(draw(seed, recipe)).failure
        assert failure is None, f"{recipe.name} {seed}: {failure.message}"


@pytest.mark.parametrize(
    ("name", "first_seed"),
    [("truncates_to_the_high_watermark", 15), ("stops_before_it_settles", 0), ("elects_uncleanly_on_suspicion", 0)],
)
def test_a_mutant_is_reported_as_a_short_story(name: str, first_seed: int) -> None:
    mutant = next(one for one in MUTANTS if one.name == name)
    caught = catch(mutant, range(first_seed, first_seed + WORLDS_MAX))
    assert caught is not None
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant.patch(monkeypatch)
        plan = shrink(caught.plan, caught.failure)
        told = story(live(plan))
    assert len(plan.items) <= STORY_ITEMS_MAX < len(caught.plan.items)
    assert caught.failure.name in told.splitlines()[-1]
    assert all(f"== {item}" in told for item in plan.items if item.kind not in ("produce", "append"))


def test_the_page_of_guarantees_names_every_mutant_and_the_rule_it_breaks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    named = re.findall(r"^\| `(\w+)`: [^|]+ \| ([^|]+) \|", page, re.MULTILINE)
    of_groups = [(mutant.name, mutant.rule) for mutant in GROUP_MUTANTS]
    of_transactions = [(mutant.name, mutant.rule) for mutant in TRANSACTION_MUTANTS]
    assert named == [(mutant.name, mutant.rule) for mutant in MUTANTS] + of_groups + of_transactions


def test_the_page_of_guarantees_has_the_recorded_world_of_each_mutant() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    worlds = dict(re.findall(r"^\| `(\w+)`: [^|]+ \| [^|]+ \| [^|]+ \| (\d+) \|$", page, re.MULTILINE))
    assert {name: int(worlds[name]) for name in SHOWN_BY} == {name: seed + 1 for name, seed in SHOWN_BY.items()}
