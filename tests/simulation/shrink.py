# SPDX-License-Identifier: Apache-2.0
"""From a failing plan to a short story: omit items while the same invariant still fails (delta debugging)."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.lives import Failure, Life, live
from tests.simulation.plan import Plan

LIVES_MAX = 600
OTHER_SEEDS = 12
SHORT = 6
"""Number of items in a readable story.

If more are left and none can be omitted, the shrinker tries the same plan with other seeds. An omitted item changes the
times of all later ones, so another seed may allow the omission.
"""


def shrink(plan: Plan, failure: Failure, *, lives_max: int = LIVES_MAX) -> Plan:
    """A plan of fewer items, maybe with another seed, that fails in the same invariant; bounded in the number of worlds
    it lives."""
    shrinker = _Shrinker(failure, lives_max)
    until_then = replace(plan, items=tuple(item for item in plan.items if item.at_ms <= failure.at_ms))
    found = shrinker.leaves_out(until_then if shrinker.still_fails(until_then) else plan)
    for seed in range(plan.seed + 1, plan.seed + 1 + OTHER_SEEDS):
        if len(found.items) > SHORT and shrinker.has_lives:
            other = replace(plan, seed=seed)
            if shrinker.still_fails(other):
                found = min(found, shrinker.leaves_out(other), key=lambda one: len(one.items))
    return found


class _Shrinker:
    """Counts the worlds it lives."""

    def __init__(self, failure: Failure, lives_max: int) -> None:
        self._failure = failure
        self._lives = lives_max

    @property
    def has_lives(self) -> bool:
        return self._lives > 0

    def still_fails(self, plan: Plan) -> bool:
        self._lives -= 1
        found = live(plan).failure
        return found is not None and found.name == self._failure.name

    def leaves_out(self, plan: Plan) -> Plan:
        """Delta debugging: half of the items, then a quarter, down to each of them, until none can go."""
        size = max(1, len(plan.items) // 2)
        while self.has_lives:
            before, start = plan, 0
            while start < len(plan.items) and self.has_lives:
                fewer = replace(plan, items=plan.items[:start] + plan.items[start + size :])
                if self.still_fails(fewer):
                    plan = fewer
                else:
                    start += size
            if size == 1 and plan is before:
                break
            size = max(1, size // 2)
        return plan


def story(life: Life) -> str:
    """The story of a run: the plan's items, the actions of the processes, and the failure."""
    plan, failure = life.world.plan, life.failure
    lines = [
        f"{plan.recipe.name} world, seed {plan.seed}, {len(plan.items)} items in its plan, {life.world.steps} steps"
    ]
    lines += [f"{at_ms:7} ms  {sentence}" for at_ms, sentence in life.world.story]
    lines.append(f"{failure.at_ms:7} ms  {failure.message}" if failure is not None else "nothing broke")
    return "\n".join(lines)


def shortest_story(plan: Plan, failure: Failure) -> str:
    """Shrink the plan, run it once more, and return its story."""
    return story(live(shrink(plan, failure)))
