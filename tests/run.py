# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of the suite, each within a time limit, and reports the time of each.

    python tests/run.py [part ...]

Named parts run in order. Without a name all parts run, `check` and its parts excepted: `check` is the inner loop, a
subset of the others. Then the lanes below run side by side: tests that wait for processes leave half of the cores idle,
and tests that only compute take that time, at a low priority. Tests marked `alone` measure time; they run at the end,
when no lane does. A part's output is printed when the part ends.
Exit status: that of the first part that failed, else 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = sys.executable
_BIN = Path(_PYTHON).parent
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_MOST_WORKERS = 4
_TIMED_OUT = 124


class Part(NamedTuple):
    """A part of the suite: commands one after the other, together no longer than `limit_s` on idle cores.

    `alone`: commands that need the machine for themselves, after the others.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: float
    environment: Mapping[str, str] = {}
    alone: tuple[tuple[str, ...], ...] = ()


class Lane(NamedTuple):
    """Parts that run one after the other beside the other lanes."""

    parts: tuple[str, ...]
    niceness: int


class Outcome(NamedTuple):
    """What became of a part."""

    name: str
    status: int
    seconds: float


def _pytest(*directories: str) -> tuple[str, ...]:
    return (_PYTHON, "-m", "pytest", "-q", "--color=no", *directories)


def _pytest_on_every_core(*directories: str) -> tuple[str, ...]:
    """For tests that only compute, or have all that they need each for itself."""
    return (*_pytest(*directories), f"--numprocesses={min(_CORES, _MOST_WORKERS)}", "--dist=worksteal")


def _pytest_by_files(directory: str) -> tuple[str, ...]:
    """For tests that mostly wait for processes: whole files go to one worker each, which has processes of its own."""
    workers = min(_CORES + (_CORES + 1) // 2, _MOST_WORKERS)  # while one waits another computes
    return (*_pytest(directory), f"--numprocesses={workers}", "--dist=loadfile")


LINT = (
    (str(_BIN / "ruff"), "check", "--quiet"),
    (str(_BIN / "ruff"), "format", "--check", "--quiet"),
    (str(_BIN / "lint-imports"), "--no-logo"),
)
_SIMULATION = (_pytest_on_every_core("tests/simulation", "tests/exploration", "tests/crash"),)
_INTEGRATION = ((*_pytest_by_files("tests/integration"), "-m", "not alone"),)
_CHAOS = ((*_pytest_on_every_core("tests/chaos"), "-m", "not alone"),)
_INTEGRATION_ALONE = ((*_pytest("tests/integration"), "-m", "alone"),)
_CHAOS_ALONE = ((*_pytest("tests/chaos"), "-m", "alone"),)
_PARTS = (
    Part("lint", LINT, 60),
    Part("types", ((_PYTHON, "-m", "mypy"), (_PYTHON, "-m", "tests.examples")), 180),
    Part("unit", (_pytest_on_every_core("tests/unit"),), 480),
    Part("simulation", _SIMULATION, 480, {"PYTHONHASHSEED": "0"}),  # a seed that fails is to fail again
    Part("charts", (_pytest_by_files("tests/charts"),), 240),
    Part("contract", (_pytest_by_files("tests/contract"),), 360),
    Part("integration", _INTEGRATION, 900, alone=_INTEGRATION_ALONE),
    Part("chaos", _CHAOS, 480, alone=_CHAOS_ALONE),
    Part("spark", (_pytest("tests/spark"),), 1200),
)
_LANES = (
    Lane(("integration", "chaos", "contract"), niceness=0),
    Lane(("spark",), niceness=0),
    Lane(("lint", "types", "unit", "simulation", "charts"), niceness=5),
)
_SHARED_CORES_FACTOR = 4
"""A part's time limit beside other lanes, in limits on idle cores."""

THOROUGH = ("test_*_crashes.py", "test_*_everywhere.py", "test_*_random*.py", "test_*fuzz.py", "test_bounds.py")
"""Unit tests of every crash point, every damaged byte or many random histories: `unit` runs them, `check` does not."""
_WORLDS = ("-m", "tests.simulation.soak", "--seeds", "100")  # one world of each kind, and fifty of the mixed kind
_CHECK_ONLY = (
    Part(
        "quick-unit", ((*_pytest_on_every_core("tests/unit"), *(f"--ignore-glob=*/{name}" for name in THOROUGH)),), 240
    ),
    Part("worlds", ((_PYTHON, *_WORLDS),), 60),
)
_ALIASES = {"check": ("lint", "types", "quick-unit", "worlds")}


def main(names: list[str]) -> int:
    """Run the named parts, or all."""
    known = {part.name: part for part in (*_PARTS, *_CHECK_ONLY)}
    unknown = [name for name in names if name not in {*known, *_ALIASES}]
    if unknown:
        sys.stderr.write(f"no such part: {', '.join(unknown)}; there are {', '.join((*known, *_ALIASES))}\n")
        return 2
    # Started in the background we may have had interrupts ignored; tests that interrupt a command would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some environments forbid it; each of the hundreds of processes to come would compile what it imports anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen = {part for name in names for part in _ALIASES.get(name, (name,))}
    started_s = time.monotonic()
    if chosen:
        outcomes = [_run_by_name(part) for part in known.values() if part.name in chosen]
    else:
        outcomes = _run_all({part.name: part for part in _PARTS if _exists(part)})
    _say("\n== time of each part")
    for outcome in outcomes:
        verdict = "ok" if outcome.status == 0 else f"FAILED, status {outcome.status}"
        _say(f"{outcome.name:<18} {outcome.seconds:6.1f} s  {verdict}")
    _say(f"{'total':<18} {time.monotonic() - started_s:6.1f} s")
    return next((outcome.status for outcome in outcomes if outcome.status), 0)


def _exists(part: Part) -> bool:
    """Whether there is anything in it: a directory without tests is no part yet."""
    directories = [Path(word) for command in part.commands for word in command if word.startswith("tests/")]
    return all(any((ROOT / directory).rglob("test_*.py")) for directory in directories)


def _run_by_name(part: Part) -> Outcome:
    _say(f"== {part.name}")
    return _run(part.name, (*part.commands, *part.alone), part.limit_s, partial(_call, environment=part.environment))


def _run_all(parts: Mapping[str, Part]) -> list[Outcome]:
    """Run the lanes side by side, then what must run alone."""
    _say(f"== {len(_LANES)} lanes side by side; each part's output follows when the part ends")
    with ThreadPoolExecutor(len(_LANES)) as lanes:
        running = [
            lanes.submit(lambda lane: [_run_in_lane(parts[name], lane) for name in lane.parts if name in parts], lane)
            for lane in _LANES
        ]
    outcomes = [outcome for lane in running for outcome in lane.result()]
    for part in parts.values():
        if part.alone:
            _say(f"== {part.name}, alone")
            call = partial(_call, environment=part.environment)
            outcomes.append(_run(f"{part.name} alone", part.alone, part.limit_s, call))
    return outcomes


def _run_in_lane(part: Part, lane: Lane) -> Outcome:
    _say(f"== {part.name} begins")
    with tempfile.TemporaryFile() as output:
        call = partial(_call, environment=part.environment, output=output, niceness=lane.niceness)
        outcome = _run(part.name, part.commands, part.limit_s * _SHARED_CORES_FACTOR, call)
        output.seek(0)
        _say(f"== {part.name}, {outcome.seconds:.1f} s\n{output.read().decode(errors='replace').rstrip()}")
    return outcome


def _run(name: str, commands: tuple[tuple[str, ...], ...], limit_s: float, call: Callable[..., int]) -> Outcome:
    started_s = time.monotonic()
    status = 0
    for command in commands:
        left_s = limit_s - (time.monotonic() - started_s)
        status = call(command, left_s) or status
    return Outcome(name, status, time.monotonic() - started_s)


def _call(
    command: tuple[str, ...],
    limit_s: float,
    *,
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
    niceness: int = 0,
) -> int:
    """Exit status of a command. Past its time limit the command is interrupted, so that it cleans up, then killed."""
    nice = ("nice", "-n", str(niceness)) if niceness else ()
    process = subprocess.Popen(
        (*nice, *command), cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output
    )
    try:
        return process.wait(max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        _say(f"{' '.join(command)}: its time limit has passed")
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return _TIMED_OUT


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
