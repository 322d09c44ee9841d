# SPDX-License-Identifier: Apache-2.0
"""Prints a digest of one world of each kind, a line each: python -m tests.simulation.replay [seed [recipe ...]].

With "-" instead of a seed the process reads lines of a seed and a recipe, and answers each with its digest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.collecting import collect_seldom
from tests.simulation.lives import Life, live
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES

_ROOT = Path(__file__).parents[2]


def digest(seed: int, recipe: str) -> str:
    """Digest of every event and effect of a world, in order, with its time."""
    return digest_of(live(draw(seed, RECIPES[recipe]), tracing=True))


def digest_of(life: Life) -> str:
    """The digest of a world that was traced."""
    assert life.world.lines, "the world was traced"
    text = "\n".join([*life.world.lines, str(life.failure)])
    return hashlib.sha256(text.encode()).hexdigest()


class OtherProcess:
    """Another process, which runs worlds again under `PYTHONHASHSEED=0`."""

    def __init__(self) -> None:
        path = os.pathsep.join((str(_ROOT), str(_ROOT / "services")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.replay", "-"],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, seed: int, recipe: str) -> None:
        """Start a run of a world in the other process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed} {recipe}\n")
        self._process.stdin.flush()

    def digest(self) -> str:
        """The digest of the world that `begin` started; waits for its end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


def main(arguments: list[str]) -> int:
    collect_seldom()
    if arguments == ["-"]:
        for line in sys.stdin:
            asked, recipe = line.split()
            sys.stdout.write(f"{digest(int(asked), recipe)}\n")
            sys.stdout.flush()
        return 0
    seed = int(arguments[0]) if arguments else 0
    for recipe in arguments[1:] or RECIPES:
        sys.stdout.write(f"{recipe} {digest(seed, recipe)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
