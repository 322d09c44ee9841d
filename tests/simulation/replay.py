# SPDX-License-Identifier: Apache-2.0
"""What happened in one world of each kind, a digest a line: python -m tests.simulation.replay [seed [recipe ...]]."""

from __future__ import annotations

import hashlib
import sys

from tests.simulation.lives import live
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES


def digest(seed: int, recipe: str) -> str:
    """Of every event and effect of a world, in order, with its time."""
    life = live(draw(seed, RECIPES[recipe]), tracing=True)
    text = "\n".join([*(life.world.lines or ()), str(life.failure)])
    return hashlib.sha256(text.encode()).hexdigest()


def main(arguments: list[str]) -> int:
    seed = int(arguments[0]) if arguments else 0
    for recipe in arguments[1:] or RECIPES:
        sys.stdout.write(f"{recipe} {digest(seed, recipe)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
