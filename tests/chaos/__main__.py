# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos --minutes M`: rounds of misfortune, until the time is up or one is wrong."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.rounds import run_round


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: every round was well; 1: the last one was not, and its directory is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no new round after so many (default 10)")
    parser.add_argument("--round-s", type=float, default=30.0, help="misfortunes of one round, seconds (default 30)")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones count up")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    until_s = time.monotonic() + given.minutes * 60
    rounds = acknowledged = misfortunes = 0
    while rounds == 0 or time.monotonic() < until_s:
        directory = Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
        report = run_round(directory, seed + rounds, given.round_s)
        print(report, flush=True)
        if report.findings:
            print(f"the evidence is in {directory}", flush=True)
            return 1
        shutil.rmtree(directory)
        rounds += 1
        acknowledged += report.acknowledged
        misfortunes += len(report.faults)
    print(f"{rounds} rounds, {misfortunes} misfortunes, {acknowledged} records acknowledged: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
