# SPDX-License-Identifier: Apache-2.0
"""The machine that a round runs on: processes that only compute, and the factor for bounds on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

LOADS = (0, 8, 20)
"""Numbers of computing processes, from which the seed of a round draws one."""
_CORES = os.cpu_count() or 1
_SLOWNESS_MAX = 8.0
_ADDITIONS = 1_000_000
_ADDITIONS_S = 0.025
"""Time in which a core of the reference machine adds these numbers."""
_MEASUREMENTS = 5
_BUSY_PER_CORE = 4
"""Busy threads of a cluster and its clients, without other load, for each core."""
_AUTOGROUP = Path("/proc/self/autogroup")
_ARENA_NICE = -10
_LOADAVG = Path("/proc/loadavg")
_SAMPLES = 40
_SAMPLE_S = 0.05
_BURN_S = 7200.0
_BURN = """
import os, sys, time
parent, until_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while os.getppid() == parent and time.monotonic() < until_s:
    sum(range(100_000))
"""
"""This script ends within milliseconds of its parent, also of a killed parent."""


class Burners:
    """Processes that compute, at the priority of this process, until the block or this process ends.

    Each has a session of its own, as each service has. Linux divides the cores among sessions first (autogroup):
    computing processes in the session of this process would slow down only this process, not the brokers.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Burners:
        command = [sys.executable, "-I", "-S", "-c", _BURN, str(os.getpid()), str(_BURN_S)]
        try:
            for _ in range(self._count):
                self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill all of these processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


class FavouredSession:
    """The session of this process counts for nine sessions until the block ends, if the process runs as root.

    The process of a round is the network of the cluster, and most of its clients. With twenty computing processes it
    had a tenth of a core: the round then tested a slow network, not slow brokers.
    """

    def __init__(self, autogroup: Path = _AUTOGROUP) -> None:
        self._autogroup = autogroup
        self._nice_before: str | None = None

    def __enter__(self) -> FavouredSession:
        with suppress(OSError):
            told = self._autogroup.read_text().split()  # empty in some containers
            if told:
                self._autogroup.write_text(str(_ARENA_NICE))
                self._nice_before = told[-1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nice_before is not None:
            self._autogroup.write_text(self._nice_before)


def other_load() -> float:
    """The mean number of runnable threads during two seconds, without this one."""
    if not _LOADAVG.exists():
        return os.getloadavg()[0]
    wanting = 0
    for _ in range(_SAMPLES):
        wanting += int(_LOADAVG.read_text().split()[3].partition("/")[0]) - 1
        time.sleep(_SAMPLE_S)
    return wanting / _SAMPLES


def computing_s() -> float:
    """The least CPU seconds in which this process adds a million numbers."""
    return min(_one_computing_s() for _ in range(_MEASUREMENTS))


def _one_computing_s() -> float:
    began_s, total = time.thread_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return time.thread_time() - began_s


def slowness(load: float, computed_s: float) -> float:
    """The factor of every bound on liveness; bounds on safety have none.

    Args:
        load: the number of other threads that compute.
        computed_s: of this machine, from `computing_s`.
    """
    machine = max(1.0, computed_s / _ADDITIONS_S)
    return min((1.0 + load / (_BUSY_PER_CORE * _CORES)) * machine, _SLOWNESS_MAX)
