# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of the suite, all within 75 minutes, and reports the time of each.

    python tests/run.py [part ...]

Without a name all parts run, `check` and its parts excepted: `check` is the inner loop, a subset of the others.
The parts run in lanes side by side (`Lane`); the output of the other lanes follows when they have ended. Exit status:
that of the first part that failed, else 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = sys.executable
_BIN = Path(_PYTHON).parent
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_MOST_WORKERS = 4
_WORKERS_THAT_WAIT = min(_CORES + (_CORES + 1) // 2, _MOST_WORKERS)
"""While one waits another computes."""
_DEADLINE_S = time.monotonic() + 75 * 60
"""Deadline of a run that hangs; pytest has a limit for each test, and the time of a part depends on the machine."""
_TIMED_OUT = 124
_NICE, _LESS_NICE, _NICEST = ("nice", "-n", "5"), ("nice", "-n", "2"), ("nice", "-n", "10")
"""Priorities of two processes, and of one: both leave as much of two cores to the others.

The last lane gets the CPU time that the others leave.
"""
_FILES_AS_COLLECTED = ("--dist=loadfile", "--no-loadscope-reorder")
"""tests/conftest.py collects the longest files first."""


class Lane(Enum):
    """The place of a part in a run; the parts of a lane run in order, the lanes side by side."""

    FRONT = "parts that start processes, and wait for them; then one that takes as long as the other lanes still need"
    BESIDE = "parts that wait, too, and have few processes at a time"
    COMPUTING = "parts that need the processors only; at a lower priority"
    IDLE = "a part that computes while the other lanes wait; at the lowest priority"


class Part(NamedTuple):
    """A part of the suite: commands one after the other."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = {}
    lane: Lane = Lane.FRONT
    nice: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """The result of a part."""

    name: str
    status: int
    seconds: float


def _pytest(*directories: str) -> tuple[str, ...]:
    return (_PYTHON, "-m", "pytest", "-q", "--color=no", *directories)


def _pytest_on_every_core(*directories: str) -> tuple[str, ...]:
    """For tests that only compute, or that start all their processes themselves."""
    return (*_pytest(*directories), f"--numprocesses={min(_CORES, _MOST_WORKERS)}", "--dist=worksteal")


def _pytest_by_files(directory: str) -> tuple[str, ...]:
    """For tests that mostly wait for processes: whole files go to one worker each, which has processes of its own."""
    return (*_pytest(directory), f"--numprocesses={_WORKERS_THAT_WAIT}", *_FILES_AS_COLLECTED)


def _pytest_by_files_of_two(*directories: str) -> tuple[str, ...]:
    """For tests with time limits, which mostly wait."""
    return (*_pytest(*directories), f"--numprocesses={min(_CORES, 2)}", *_FILES_AS_COLLECTED)


def _pytest_by_few(directory: str) -> tuple[str, ...]:
    """For tests whose workers each start slow processes: one worker on two cores, which other parts use, too.

    The second worker of Spark's tests, with a JVM and a cluster, costs a quarter more.
    """
    return _pytest_by_files_of_two(directory) if _CORES > 2 else _pytest(directory)


def _files_marked(marker: str, *directories: str) -> tuple[str, ...]:
    """The files of tests with a marker: a worker that collects only them does not import all others."""
    files = [file for directory in directories for file in sorted((ROOT / directory).rglob("test_*.py"))]
    return tuple(str(file.relative_to(ROOT)) for file in files if f"pytest.mark.{marker}" in file.read_text("utf-8"))


LINT = (
    (str(_BIN / "ruff"), "check", "--quiet"),
    (str(_BIN / "ruff"), "format", "--check", "--quiet"),
    (str(_BIN / "lint-imports"), "--no-logo"),
)
_SIMULATION = (_pytest_on_every_core("tests/simulation", "tests/exploration", "tests/crash"),)
_INTEGRATION = (
    (*_pytest_by_files("tests/integration"), "-m", "not alone"),
    (*_pytest_by_files_of_two(*_files_marked("alone", "tests/integration", "tests/chaos")), "-m", "alone"),
)
_COMPILED_HERE = "build/compiled"
_COMPILED = (
    (_PYTHON, "deploy/tools/compiled.py", _COMPILED_HERE),
    (
        *_pytest("tests/unit/client/producing", "tests/unit/client/typed"),
        *("-p", "no:cacheprovider", "-o", f"pythonpath={_COMPILED_HERE} spark ."),
    ),
)
_CHAOS = ((*_pytest_on_every_core("tests/chaos"), "-m", "not alone"),)
PARTS = (
    Part("lint", LINT, lane=Lane.COMPUTING, nice=_NICE),
    Part("types", ((_PYTHON, "-m", "mypy"), (_PYTHON, "-m", "tests.examples")), lane=Lane.COMPUTING, nice=_NICE),
    Part("unit", (_pytest_on_every_core("tests/unit"),), lane=Lane.COMPUTING, nice=_NICE),
    Part("compiled", _COMPILED, {"TIDEMARK_COMPILE": "1", "MYPYC_OPT_LEVEL": "0"}, Lane.COMPUTING, _NICE),
    Part("contract", (_pytest_by_few("tests/contract"),), lane=Lane.BESIDE),
    Part("spark", ((*_pytest_by_few("tests/spark"), "-m", "not long"),), lane=Lane.BESIDE),
    # A failing seed must fail again.
    Part("simulation", _SIMULATION, {"PYTHONHASHSEED": "0"}, Lane.IDLE, _NICEST),
    Part("integration", _INTEGRATION),
    Part("chaos", _CHAOS),
    Part("charts", (_pytest_by_few("tests/charts"),)),
)

THOROUGH = ("test_*_crashes.py", "test_*_everywhere.py", "test_*_random*.py", "test_*fuzz.py", "test_bounds.py")
"""Unit tests of every crash point, every damaged byte or many random histories: `unit` runs them, `check` does not."""
_WORLDS = ("-m", "tests.simulation.soak", "--seeds", "100")  # one world of each kind, and fifty mixed ones
_QUICK_UNIT = (
    *_pytest("tests/unit"),
    *(f"--ignore-glob=*/{name}" for name in THOROUGH),
    *(f"--numprocesses={_WORKERS_THAT_WAIT}", "--dist=worksteal"),
)
_CHECK_ONLY = (
    Part("quick-unit", (_QUICK_UNIT,)),
    Part("worlds", ((_PYTHON, *_WORLDS),), lane=Lane.COMPUTING, nice=_NICE),
)
_ALIASES = {"check": ("lint", "types", "quick-unit", "worlds")}


def main(names: list[str]) -> int:
    """Run the named parts, or all."""
    known = {part.name: part for part in (*PARTS, *_CHECK_ONLY)}
    unknown = [name for name in names if name not in {*known, *_ALIASES}]
    if unknown:
        sys.stderr.write(f"no such part: {', '.join(unknown)}; there are {', '.join((*known, *_ALIASES))}\n")
        return 2
    # In the background this process may ignore interrupts; tests that interrupt a command would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some environments forbid it; each of the hundreds of processes would compile its imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen = {part for name in names for part in _ALIASES.get(name, (name,))}
    wanted = [part for part in known.values() if part.name in chosen] or [part for part in PARTS if _exists(part)]
    started_s = time.monotonic()
    outcomes = _run_lanes(wanted)
    _say("\n== time of each part")
    for outcome in sorted(outcomes, key=lambda one: list(known).index(one.name)):
        verdict = "ok" if outcome.status == 0 else f"FAILED, status {outcome.status}"
        _say(f"{outcome.name:<12} {outcome.seconds:6.1f} s  {verdict}")
    _say(f"{'total':<12} {time.monotonic() - started_s:6.1f} s")
    return next((outcome.status for outcome in outcomes if outcome.status), 0)


def _exists(part: Part) -> bool:
    """Whether the part has tests: a directory without tests is not a part yet."""
    places = [ROOT / word for command in part.commands for word in command if word.startswith("tests/")]
    return all(place.is_file() or any(place.rglob("test_*.py")) for place in places)


def _run_lanes(parts: list[Part]) -> list[Outcome]:
    """Run the lanes at the same time; the first that has parts writes its output immediately."""
    lanes = [chosen for lane in Lane if (chosen := [part for part in parts if part.lane is lane])]
    if len(lanes) > 1 and _CORES <= 2:
        lanes = [[*map(_in_one_process, lane)] if lane[0].lane is Lane.COMPUTING else lane for lane in lanes]
    with ThreadPoolExecutor(len(Lane)) as pool:
        running = [pool.submit(_run_lane_beside, lane) for lane in lanes[1:]]
        outcomes = [_run(part) for part in lanes[0]]
        return outcomes + [outcome for lane in running for outcome in lane.result()]


def _in_one_process(part: Part) -> Part:
    """The part without workers, which each collect and report all tests."""
    commands = tuple((*one, "--numprocesses=0") if "pytest" in one else one for one in part.commands)
    return part._replace(commands=commands, nice=_LESS_NICE)


def _run_lane_beside(lane: list[Part]) -> list[Outcome]:
    return [_run_beside(part) for part in lane]


def _run_beside(part: Part) -> Outcome:
    """Run a part, and write its output when it has ended."""
    with tempfile.TemporaryFile("w+") as output:
        outcome = _run_commands(part, output, part.nice)
        output.seek(0)
        _say(f"== {part.name}, which ran at the same time\n{output.read()}")
    return outcome


def _run(part: Part) -> Outcome:
    _say(f"== {part.name}")
    return _run_commands(part)


def _run_commands(part: Part, output: IO[str] | None = None, prefix: tuple[str, ...] = ()) -> Outcome:
    started_s = time.monotonic()
    status = 0
    for command in part.commands:
        status = _call((*prefix, *command), part.environment, output) or status
    return Outcome(part.name, status, time.monotonic() - started_s)


def _call(command: tuple[str, ...], environment: Mapping[str, str], output: IO[str] | None) -> int:
    """Exit status of a command; at the deadline it gets SIGTERM, so that its own clean-up runs, and is then killed."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output)
    try:
        return process.wait(max(1.0, _DEADLINE_S - time.monotonic()))
    except subprocess.TimeoutExpired:
        _say(f"{' '.join(command)}: not done in its time")
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
