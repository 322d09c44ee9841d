# SPDX-License-Identifier: Apache-2.0
"""Many worlds on all cores: python -m tests.simulation.soak --seeds 1000 [--first 0] [--recipe harsh].

Worlds of consumer groups and of transactions get a tenth of the seeds each. A progress line, and one for each world
that fails; after the last, or the fifth failure, the stories of those, shrunk, and exit status 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from typing import NamedTuple

from tests.collecting import collect_seldom
from tests.simulation.groups.lives import soak as of_groups
from tests.simulation.lives import Failure, live
from tests.simulation.plan import Plan, draw
from tests.simulation.recipes import RECIPES, recipe_of
from tests.simulation.same_order import in_the_same_order
from tests.simulation.shrink import shortest_story
from tests.simulation.transactions.lives import soak as of_transactions

_CLUSTERS_A_GROUP = 10
_FAILURES_MAX = 5
_STEPS_MIN = 500
"""A world with fewer steps tests little."""


class _Outcome(NamedTuple):
    seed: int
    steps: int
    acknowledged: int
    is_offline: bool
    """The world ended where only an operator may choose a leader, before the final checks."""
    failure: Failure | None


class _Tally:
    """Totals of the worlds so far."""

    def __init__(self, worlds: int) -> None:
        self.worlds = worlds
        self.done = 0
        self._began_s = time.monotonic()
        self._steps = self._acknowledged = self._short = self._offline = 0
        self._steps_least = -1

    def add(self, outcome: _Outcome) -> None:
        self.done += 1
        self._steps += outcome.steps
        self._acknowledged += outcome.acknowledged
        self._short += outcome.steps < _STEPS_MIN
        self._offline += outcome.is_offline
        self._steps_least = min(outcome.steps, self._steps_least) if self._steps_least >= 0 else outcome.steps

    def __str__(self) -> str:
        done, seconds = self.done, time.monotonic() - self._began_s
        return (
            f"{done} of {self.worlds} worlds; a world has {self._steps // done} steps, the shortest "
            f"{self._steps_least}, {self._short} fewer than {_STEPS_MIN}, and {self._acknowledged // done} "
            f"acknowledgements; {self._offline} ended offline; {done / seconds:.1f} worlds a second"
        )


def _plan(seed: int, recipe: str | None) -> Plan:
    return draw(seed, RECIPES[recipe] if recipe is not None else recipe_of(seed))


def _one(task: tuple[int, str | None]) -> _Outcome:
    life = live(_plan(*task))
    world = life.world
    return _Outcome(task[0], world.steps, world.clients.acknowledged, world.offline_at_the_end, life.failure)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--recipe", choices=sorted(RECIPES), help="one kind of world only")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    tally = _Tally(len(seeds))
    failed: list[tuple[Plan, Failure]] = []
    with multiprocessing.Pool(options.processes, collect_seldom) as pool:
        for outcome in pool.imap_unordered(_one, [(seed, options.recipe) for seed in seeds], chunksize=8):
            tally.add(outcome)
            if outcome.failure is not None:
                _say(f"\nseed {outcome.seed} fails: {outcome.failure.message}\n")
                failed.append((_plan(outcome.seed, options.recipe), outcome.failure))
                if len(failed) == _FAILURES_MAX:
                    break
            if tally.done % 50 == 0 or tally.done == tally.worlds:
                _say(f"\r{tally}")
    _say("\n")
    for plan, failure in failed:
        _say(f"\n{shortest_story(plan, failure)}\n")
    if failed:
        return 1
    if options.recipe is not None:
        return 0
    others = max(1, options.seeds // _CLUSTERS_A_GROUP)
    return of_groups(options.first, others) or of_transactions(options.first, others)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    in_the_same_order("tests.simulation.soak")
    sys.exit(main(sys.argv[1:]))
