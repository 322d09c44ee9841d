"""Seeded worlds: whatever befalls a cluster, every invariant holds in every state, and mutants are caught."""

from __future__ import annotations

import pytest

from tests.simulation.harness import World
from tests.simulation.mutants import MUTANTS, Patch
from tests.simulation.worlds import live_through

WORLDS_PER_TEST = 20
MUTANT_WORLDS_MAX = 120


def world(seed: int) -> World:
    return World(seed, min_isr=1 + seed % 2)


@pytest.mark.parametrize("first_seed", range(0, 160, WORLDS_PER_TEST))
def test_every_invariant_holds_in_every_world(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + WORLDS_PER_TEST):
        one = world(seed)
        try:
            live_through(one)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert one.replies > 0, f"seed {seed}: nothing was acknowledged, so nothing was shown"


@pytest.mark.parametrize("first_seed", [0, 20, 40])
def test_every_invariant_holds_in_worlds_full_of_misfortune(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + WORLDS_PER_TEST):
        one = World(seed, min_isr=1 + seed % 2, lost_answers=0.5)
        try:
            live_through(one, misfortunes=20)
        except AssertionError as error:
            raise AssertionError(f"harsh seed {seed}: {error}") from error


def test_the_same_seed_is_the_same_life() -> None:
    lives = []
    for _ in range(2):
        one = world(7)
        one.tracing = True
        live_through(one)
        lives.append(one.lines)
    assert lives[0] == lives[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MUTANT_WORLDS_MAX):
        try:
            live_through(world(seed))
        except AssertionError:
            return
    pytest.fail(f"{MUTANT_WORLDS_MAX} worlds did not show that {mutant.__name__} is wrong")
