# SPDX-License-Identifier: Apache-2.0
"""Tests all crash points of many lives of a log.

python -m tests.crash --lives 100 [--first 0] [--steps 60] [--draws 3]

Prints a progress line with the number of points, and the first failing point of each life; exit status 1 for a failure.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from typing import NamedTuple

from tests.crash.points import CrashPointError, lived, points_of, try_points
from tests.unit.storage.batches import memory_directory


class _Task(NamedTuple):
    seed: int
    steps: int
    draws: int


class _Outcome(NamedTuple):
    points: int
    failure: str | None


def _one(task: _Task) -> _Outcome:
    logging.disable(logging.CRITICAL)  # starts after crashes log much
    with memory_directory() as directory:
        life = lived(task.seed, task.steps, directory)
        try:
            return _Outcome(try_points(life, points_of(life, draws=task.draws), directory), None)
        except CrashPointError as error:
            return _Outcome(0, str(error))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, required=True, help="how many lives")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first life")
    parser.add_argument("--steps", type=int, default=60, help="of each life: appends, truncations, cleanings, ...")
    parser.add_argument("--draws", type=int, default=3, help="random outcomes of a power loss at each point")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args(arguments)
    tasks = [_Task(options.first + life, options.steps, options.draws) for life in range(options.lives)]
    began_s, points, failures = time.monotonic(), 0, 0
    with multiprocessing.Pool(options.processes) as pool:
        for done, outcome in enumerate(pool.imap_unordered(_one, tasks), 1):
            if outcome.failure is not None:
                print(f"\n{outcome.failure}", flush=True)
                failures += 1
            points += outcome.points
            rate = points / (time.monotonic() - began_s)
            print(f"\r{done} of {len(tasks)} lives; {points} crash points, {rate:.0f} a second", end="", flush=True)
    print()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
