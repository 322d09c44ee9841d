# SPDX-License-Identifier: Apache-2.0
"""The share of a machine that other programs took while a benchmark ran: above a limit, ratios are not valid.

A benchmark keeps the machine busy itself, so the load is no evidence. Counted are CPU time that the hypervisor gave to
other machines (steal), CPU time of processes that the benchmark did not start, and stalls for memory (PSI).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

STEAL_MAX: Final = 0.02
OTHERS_MAX: Final = 0.05
MEMORY_MAX: Final = 0.02
"""The largest shares of an undisturbed phase."""
_SET_CHILD_SUBREAPER: Final = 36
_KTHREADD: Final = 2
_PROC: Final = Path("/proc")


class Process(NamedTuple):
    """CPU time of a process and of its ended children, in ticks."""

    parent: int
    ticks: int


class Reading(NamedTuple):
    """The counters of a machine at one moment.

    Attributes:
        busy_ticks: CPU time of all processes and of the kernel.
        idle_ticks: CPU time without work.
        steal_ticks: CPU time that the hypervisor took.
        processes: by process id.
        memory_us: time in which some process waited for memory; 0 without PSI.
        total_us: the clock.
    """

    busy_ticks: int
    idle_ticks: int
    steal_ticks: int
    processes: Mapping[int, Process]
    memory_us: int
    total_us: int


class Disturbance(NamedTuple):
    """Shares of the CPU time of all cores (steal, others) and of the time (memory), 0 to 1."""

    steal: float
    others: float
    memory: float

    @property
    def reasons(self) -> tuple[str, ...]:
        """The shares above their limits, in words; empty: the machine was undisturbed."""
        found = []
        for share, limit, sentence in (
            (self.steal, STEAL_MAX, "the hypervisor took {} of the CPU time"),
            (self.others, OTHERS_MAX, "other processes took {} of the CPU time"),
            (self.memory, MEMORY_MAX, "processes waited for memory in {} of the time"),
        ):
            if share > limit:
                found.append(sentence.format(f"{share:.0%}"))
        return tuple(found)


def adopt_orphans() -> None:
    """Make this process the parent of processes whose parent ends: those of the peer stay descendants."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def read(proc: Path = _PROC) -> Reading:
    """The counters now."""
    user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(
        int, (proc / "stat").read_text().split("\n", 1)[0].split()[1:]
    )
    processes = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            process = _process(entry)
            if process is not None:
                processes[int(entry.name)] = process
    uptime_s = float((proc / "uptime").read_text().split()[0])
    return Reading(
        user + nice + system + irq + softirq, idle + iowait, steal, processes, _memory_us(proc), round(uptime_s * 1e6)
    )


def between(before: Reading, after: Reading, ours: int | None = None) -> Disturbance:
    """The disturbance between two readings.

    Args:
        before: the first reading.
        after: the second one.
        ours: id of the process whose descendants are the benchmark; None: this process.
    """
    own = os.getpid() if ours is None else ours
    busy = after.busy_ticks - before.busy_ticks
    total = max(1, busy + after.idle_ticks - before.idle_ticks + after.steal_ticks - before.steal_ticks)
    known = sum(_spent(before, after, root) for root in (own, _KTHREADD))
    return Disturbance(
        steal=(after.steal_ticks - before.steal_ticks) / total,
        others=max(0, busy - known) / total,
        memory=(after.memory_us - before.memory_us) / max(1, after.total_us - before.total_us),
    )


def _spent(before: Reading, after: Reading, root: int) -> int:
    """Ticks of a process and its descendants; those of an ended one are counted by its parent."""
    return sum(
        reading.processes[one].ticks * sign
        for reading, sign in ((after, 1), (before, -1))
        for one in _descendants(reading.processes, root)
    )


def _descendants(processes: Mapping[int, Process], root: int) -> Iterable[int]:
    children: dict[int, list[int]] = {}
    for number, process in processes.items():
        children.setdefault(process.parent, []).append(number)
    waiting = [root] if root in processes else []
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(children.get(one, ()))


def _process(directory: Path) -> Process | None:
    try:
        fields = (directory / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # ended meanwhile
    return Process(int(fields[1]), sum(map(int, fields[11:15])))


def _memory_us(proc: Path) -> int:
    try:
        some = (proc / "pressure" / "memory").read_text().splitlines()[0]
    except (OSError, IndexError):
        return 0
    return int(some.rpartition("total=")[2])
