# SPDX-License-Identifier: Apache-2.0
"""One benchmark on two commits, which take turns on this machine.

`python -m bench regress BEFORE [AFTER] [--bench produce] [--rounds 5] [--arguments "--rounds 1"]`: each commit gets a
worktree in a temporary directory, is installed there, and runs with the dependencies of this environment. The value of
a figure is AFTER's (default: HEAD), its peer is BEFORE's, so a ratio above 1 means that AFTER is better. A round that
other programs disturbed is repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.measuring import disturbance
from bench.measuring.figures import SAVE, Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.machine import ROOT
from bench.measuring.rounds import median_of
from deploy.tools import compiled

SIDES: Final = ("before", "after")
_LOWER_IS_BETTER: Final = frozenset({"ms", "s", "us", "µs", "MB", "kB", "KB", "bytes", "%"})
_RUN_TIMEOUT_S: Final = 1800
_INSTALLED: Final = "build/installed"

Found = Mapping[str, Mapping[str, Any]]


@contextlib.contextmanager
def worktree(commit: str, directory: Path) -> Iterator[Path]:
    """The files of a commit, with its installed packages; raises SystemExit for an unknown commit."""
    made = subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(directory), commit],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        sys.exit(f"{commit} cannot be checked out: {made.stderr.strip()}")
    try:
        into = ["--no-deps", "--quiet", "--disable-pip-version-check", "--target", str(directory / _INSTALLED)]
        # Older commits have extensions only on request.
        environment = os.environ | {compiled.SETTING: "1" if compiled.missing() is None else "0"}
        subprocess.run([sys.executable, "-m", "pip", "install", *into, str(directory)], check=True, env=environment)
        yield directory
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(directory)], check=False)


def run_once(directory: Path, bench: str, arguments: Sequence[str]) -> Found:
    """The figures of one run in a worktree, without a peer."""
    paths = os.pathsep.join(str(directory / name) for name in (_INSTALLED, "."))
    environment = {**os.environ, "PYTHONPATH": paths, "TIDEMARK_PEER_KAFKA": "none", SAVE: "", compiled.SETTING: "0"}
    done = subprocess.run(
        [sys.executable, "-m", "bench", bench, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{bench} failed in {directory.name}: {(done.stdout + done.stderr)[-2000:]}")
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])["figures"]
    return found


def figures_of(rounds: Sequence[Mapping[str, Found]]) -> dict[str, Figure]:
    """The figures that both commits have: AFTER's as the value, BEFORE's as the peer.

    Args:
        rounds: the figures of each side in each round.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: {side: [] for side in SIDES})
    units: dict[str, str] = {}
    for found in rounds:
        for name in found["before"].keys() & found["after"].keys():
            units[name] = found["after"][name]["unit"]
            for side in SIDES:
                values[name][side].append(found[side][name]["value"])
    figures = {}
    for name, sides in sorted(values.items()):
        lower = units[name] in _LOWER_IS_BETTER
        over, under = (sides["before"], sides["after"]) if lower else (sides["after"], sides["before"])
        ratios = [above / below for above, below in zip(over, under, strict=True) if below]
        medians = [statistics.median(sides[side]) for side in ("after", "before")]
        figures[name] = Figure(medians[0], units[name], medians[1], lower, median_of(ratios) if ratios else None)
    return figures


def measure(trees: Mapping[str, Path], options: argparse.Namespace) -> list[Mapping[str, Found]]:
    """The undisturbed rounds, `rounds` of them at most; twice as many are tried."""
    arguments, rounds = shlex.split(options.arguments), []
    for number in range(2 * options.rounds):
        if len(rounds) == options.rounds:
            break
        before = disturbance.read()
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        found = {side: run_once(trees[side], options.bench, arguments) for side in order}
        reasons = disturbance.between(before, disturbance.read()).reasons
        print(f"round {number + 1}: {' and '.join(reasons) or 'undisturbed'}", flush=True)
        if not reasons:
            rounds.append(found)
    return rounds


def main() -> int:
    parser = flags_of("regress", __doc__)
    parser.add_argument("before", help="a commit, for example HEAD~5")
    parser.add_argument("after", nargs="?", default="HEAD", help="another commit (HEAD)")
    parser.add_argument("--bench", default="produce", help="the benchmark (produce)")
    parser.add_argument("--rounds", type=int, default=5, help="undisturbed rounds (5)")
    parser.add_argument("--arguments", default="", help="of the benchmark, in one text")
    options = parser.parse_args()
    disturbance.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="tidemark-regress-") as directory, contextlib.ExitStack() as stack:
        trees = {
            side: stack.enter_context(worktree(commit, Path(directory, side)))
            for side, commit in zip(SIDES, (options.before, options.after), strict=True)
        }
        rounds = measure(trees, options)
    if not rounds:
        print("the machine was disturbed in every round: nothing is compared", file=sys.stderr)
        return 1
    report(f"regress {options.bench}", figures_of(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
