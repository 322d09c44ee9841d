# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.chaos --minutes M`: chaos rounds until the time is over or a round has a finding."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.bounded import bounded
from tests.chaos.machine import LOADS, Burners, FavouredSession, computing_s, other_load, slowness
from tests.chaos.rounds import Report, round_s_max, run_round


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    made.add_argument("--minutes", type=float, default=10.0, help="no new round after this time (default 10)")
    made.add_argument("--round-s", type=float, default=30.0, help="faults of one round, seconds (default 30)")
    made.add_argument("--seed", type=int, default=None, help="of the first round; the next ones count up")
    loads = ", ".join(map(str, LOADS[:-1]))
    made.add_argument(
        "--load", type=int, default=None, metavar="N",
        help=f"processes that compute during each round (default: its seed draws {loads} or {LOADS[-1]})",
    )  # fmt: skip
    made.add_argument(
        "--secure", choices=("yes", "no"), default=None,
        help="TLS, access rules and renewed certificates in each round (default: its seed draws one)",
    )  # fmt: skip
    return made


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: no round had a finding; 1: the last one had, and its directory is kept."""
    given = parser().parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    until_s = time.monotonic() + given.minutes * 60
    rounds = acknowledged = faults = 0
    while rounds == 0 or time.monotonic() < until_s:
        directory = Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
        report = _round(directory, seed + rounds, given.round_s, given.load, given.secure)
        if report is None or report.findings:
            print(f"the evidence is in {directory}", flush=True)
            return 1
        shutil.rmtree(directory)
        rounds += 1
        acknowledged += report.acknowledged
        faults += len(report.faults)
    print(f"{rounds} rounds, {faults} faults, {acknowledged} records acknowledged: all is well")
    return 0


def load_of(seed: int, load: int | None) -> int:
    """The number of processes that compute during a round: as requested, or drawn from the seed."""
    return random.Random(seed).choice(LOADS) if load is None else load


def is_secure(seed: int, given: str | None) -> bool:
    """Whether a round is secure: as requested, or for every second seed."""
    return seed % 2 == 1 if given is None else given == "yes"


def _round(directory: Path, seed: int, duration_s: float, load: int | None, given: str | None) -> Report | None:
    """Print the report of a round and return the report.

    For a round that an error ended, print the error and return None.
    """
    computing, secure = load_of(seed, load), is_secure(seed, given)
    with FavouredSession(), Burners(computing):
        busy = other_load()
        slow = slowness(busy, computing_s())
        name = f"seed {seed}, load {computing}, {'secure' if secure else 'plain'}"
        began_s = time.monotonic()
        with bounded(round_s_max(duration_s, slow), name, directory):
            try:
                report = run_round(directory, seed, duration_s, slow, secure=secure)
            except Exception:  # noqa: BLE001 - each error is a finding
                error = traceback.format_exc()
                (directory / "error.txt").write_text(error)
                print(f"{name}: WRONG: an error ended the round:\n{error}", flush=True)
                return None
    took_s = time.monotonic() - began_s
    print(f"{report}\n  {name}, {busy:.0f} busy threads at the start, slowness {slow:.1f}, {took_s:.0f} s", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
