# SPDX-License-Identifier: Apache-2.0
"""The walks of `make explore`: single faults, pairs of faults, and the complete scope in several ways.

    python -m tests.exploration.stages [--minutes 50]

Each scope is reported when done; the last lines name the complete and the incomplete scopes. Exit status: 1 when
any of them shows a violation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

ONE_FAULT: Final = ("--crashes 1", "--suspicions 1", "--expiries 1", "--lags 1 --lost-answers 1")
PAIRS: Final = (
    "--crashes 2",
    "--crashes 1 --suspicions 1",
    "--crashes 1 --lost-answers 1",
    "--suspicions 1 --lost-answers 1",
)
"""The largest scopes come first; other scopes run at the same time."""
CUTS: Final = (
    "--batches 1 --cuts 1",
    "--batches 1 --cuts 1 --unnoticed",
    "--batches 2 --cuts 1 --at-once zookeeper",
    "--batches 2 --cuts 1 --unnoticed --at-once zookeeper",
)
"""Crashes of all brokers, after which one log lacks its last batch: with every delay, and with none."""
WITHOUT_BATCHES: Final = ("--crashes 1 --suspicions 1", "--crashes 2")
"""Faults that only walks without batches exhaust: leaders, epochs and ISRs, of empty logs."""
MEMORY_GB: Final = 7
"""Largest memory of a scope; two scopes at a time need almost the machine's memory."""
BY_DELAYS: Final = ("--crashes 2", "--crashes 1 --suspicions 1")
"""Pairs with batches that are too large for a complete walk: also walked by the number of deferred deliveries."""
STREAMS_AT_ONCE: Final = ("--batches 2 --crashes 2", "--batches 2 --crashes 1 --suspicions 1")
"""The same pairs with streams that have no delay: to their end, in minutes."""
WHOLE_AT_ONCE: Final = ("commands", "zookeeper")
"""The complete scope without delays of streams and commands, up to its bound; and without any delay, to its end."""
WHOLE_MEMORY_GB: Final = 11
"""Largest memory of a complete scope."""
DELAYS_MAX: Final = 99
"""More states than a walk can reach: the time is the bound."""
_NONE: Final = "--crashes 0 --suspicions 0 --lost-answers 0"
_WHOLE: Final = "--batches 2 --crashes 2 --suspicions 1 --lost-answers 1"


def stages(minutes: float) -> list[str]:
    """The arguments of `python -m tests.exploration`, one text for each scope."""
    bound, a_fifth = (f"--memory-gb {MEMORY_GB} --minutes {some:g}" for some in (minutes, minutes / 5))
    pairs = [f"{_NONE} --batches 2 {pair} {bound}" for pair in PAIRS]
    empty = [f"{_NONE} --batches 0 {pair} {bound}" for pair in WITHOUT_BATCHES]
    alone = [f"{_NONE} --batches 2 {one} {bound}" for one in ONE_FAULT]
    cuts = [f"{_NONE} {cut} {bound}" for cut in CUTS]
    in_turn = [f"{_NONE} --batches 2 {pair} --delays {DELAYS_MAX} {a_fifth}" for pair in BY_DELAYS]
    at_once = [f"{_NONE} {pair} --at-once streams {bound}" for pair in STREAMS_AT_ONCE]
    longest = f"--memory-gb {WHOLE_MEMORY_GB} --minutes {2 * minutes:g}"
    whole = [f"{_WHOLE} --at-once {kind} {longest}" for kind in WHOLE_AT_ONCE]
    whole.append(f"{_WHOLE} --delays {DELAYS_MAX} --surprises-count {bound}")
    return [*whole, *pairs, *empty, *at_once, *cuts, *alone, *in_turn, f"{_WHOLE} --beam 1000 {a_fifth}"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.stages", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes",
        type=float,
        default=50.0,
        help="for each scope at most; twice that for the whole of it, a fifth for samples and large pairs",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scopes at a time, one on each core")
    options = parser.parse_args(arguments)
    wrong, stopped = 0, list[str]()
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for done in as_completed([pool.submit(_explored, stage) for stage in stages(options.minutes)]):
            status, output = done.result()
            _say(output)
            wrong |= status
            if "COMPLETE: every state" not in output and not ("COMPLETE with" in output and "at once" in output):
                stopped.append(output.partition(" --memory-gb")[0])
    _say("a violation was found" if wrong else "no violation in anything that was walked")
    _say("not walked to their end, but as far as is said above:" if stopped else "all were walked to their end")
    for stage in stopped:
        _say(f"  {stage}")
    return int(wrong != 0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _explored(stage: str) -> tuple[int, str]:
    """(exit status, last line of the output)."""
    command = [sys.executable, "-m", "tests.exploration", *stage.split(), "--progress-seconds", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, f"{stage}\n  {done.stdout.partition(chr(10))[2].strip()}\n{done.stderr}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
