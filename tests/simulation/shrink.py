"""From a failing plan to a short story: leave items out while the same invariant still fails (delta debugging)."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.lives import Failure, Life, live
from tests.simulation.plan import Item, Plan

LIVES_MAX = 300


def shrink(plan: Plan, failure: Failure, *, lives_max: int = LIVES_MAX) -> Plan:
    """A plan of fewer items that fails in the same invariant; bounded in the number of worlds it lives."""
    lives = 0

    def still_fails(items: tuple[Item, ...]) -> bool:
        nonlocal lives
        lives += 1
        found = live(replace(plan, items=items)).failure
        return found is not None and found.name == failure.name

    items = tuple(item for item in plan.items if item.at_ms <= failure.at_ms)
    if not still_fails(items):
        items = plan.items
    size = max(1, len(items) // 2)
    while lives < lives_max:
        start, dropped = 0, False
        while start < len(items) and lives < lives_max:
            fewer = items[:start] + items[start + size :]
            if still_fails(fewer):
                items, dropped = fewer, True
            else:
                start += size
        if size == 1 and not dropped:
            break
        size = max(1, size // 2)
    return replace(plan, items=items)


def story(life: Life) -> str:
    """What happened, for people: the plan's items and what processes did, and what broke in the end."""
    plan, failure = life.world.plan, life.failure
    lines = [
        f"{plan.recipe.name} world, seed {plan.seed}, {len(plan.items)} items in its plan, {life.world.steps} steps"
    ]
    lines += [f"{at_ms:7} ms  {sentence}" for at_ms, sentence in life.world.story]
    lines.append(f"{failure.at_ms:7} ms  {failure.message}" if failure is not None else "nothing broke")
    return "\n".join(lines)


def shortest_story(plan: Plan, failure: Failure) -> str:
    """Shrunk, lived once more, and told."""
    return story(live(shrink(plan, failure)))
