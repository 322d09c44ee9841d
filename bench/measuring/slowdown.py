# SPDX-License-Identifier: Apache-2.0
"""A part of the CPU for the processes that a benchmark starts, as on a slow or a shared machine.

A control group with a quota (cgroup version 2 or 1) confines all these processes together. If no group can be made,
busy processes of the same priority run at the same time. The scheduler then gives a group of several busy threads more
than the stated part.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

PERIOD_US: Final = 20_000
"""Period of the quota: a thread without CPU waits for the rest of a period only."""
_ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_WEIGHTS: Final = {"cpu.shares": 262_144, "cpu.weight": 10_000}
"""The largest values in either version."""
_REMOVE_TIMEOUT_S: Final = 10.0
_BURN: Final = "while True: pass"


class Slowdown(Protocol):
    """Limits the CPU of processes that a benchmark starts."""

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """Processes that start within are slow, and so are their children."""

    def lift(self) -> None:
        """Remove the limit of these processes, for instance for their stop. Idempotent."""


class NoSlowdown:
    """Slows no process."""

    def entered(self) -> contextlib.AbstractContextManager[None]:
        """No effect."""
        return contextlib.nullcontext()

    def lift(self) -> None:
        """No effect."""


class QuotaGroup:
    """A control group that has 1/`times` of all cores together.

    Args:
        times: at least 1.
        parent: the group of this process, in a hierarchy with the CPU controller.
        name: of this group, among those of this process.

    Raises:
        OSError: no such group can be made here.
    """

    def __init__(self, times: float, parent: Path, name: str = "all") -> None:
        self._parent = parent
        self._group = parent / f"tidemark-bench-{os.getpid()}-{name}"
        self._group.mkdir()
        try:
            self._limit(round(PERIOD_US * len(os.sched_getaffinity(0)) / times))
            self._prefer()
        except OSError:
            self._group.rmdir()
            raise

    @property
    def members(self) -> Path:
        """The file that a process joins by writing its id."""
        return self._group / "cgroup.procs"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This process joins the group for that time, since a child starts in the group of its parent."""
        self._join(self._group)
        try:
            yield
        finally:
            self._join(self._parent)

    def lift(self) -> None:
        """Remove the quota; the group stays."""
        self._limit(None)

    def remove(self) -> None:
        """Remove the group after the end of its processes; others that are left go to the group of this process."""
        deadline_s = time.monotonic() + _REMOVE_TIMEOUT_S
        while self.members.read_text() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        for pid in self.members.read_text().split():
            with contextlib.suppress(OSError):  # ended meanwhile
                (self._parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()

    def _limit(self, quota_us: int | None) -> None:
        if (self._group / "cpu.cfs_quota_us").exists():
            (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
        else:
            (self._group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {PERIOD_US}")

    def _prefer(self) -> None:
        """Set the weight of the group, so that it gets its part while other programs are busy: by default a group
        counts as one process.
        """
        for name, most in _WEIGHTS.items():
            if (self._group / name).exists():
                (self._group / name).write_text(str(most))

    def _join(self, group: Path) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))


class Burners(NoSlowdown):
    """`times` - 1 busy processes for each core."""

    def __init__(self, times: float) -> None:
        count = round((times - 1) * len(os.sched_getaffinity(0)))
        self.processes = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]

    def lift(self) -> None:
        """End the busy processes."""
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def slowed(times: float) -> Iterator[Slowdown]:
    """Give 1/`times` of the CPU to the processes that start within `entered`; 1: all of it.

    Raises:
        ValueError: `times` is below 1.
        RuntimeError: neither a group nor busy processes can be started here.
    """
    if times < 1:
        raise ValueError(f"--slow is {times:g}: at least 1")
    if times == 1:
        yield NoSlowdown()
        return
    try:
        group = QuotaGroup(times, own_group())
    except OSError as why:
        with _burning(times, why) as burners:
            yield burners
        return
    print(f"each process gets its part of 1/{times:g} of the CPU, by the quota of a control group")
    try:
        yield group
    finally:
        group.lift()
        group.remove()


@contextlib.contextmanager
def _burning(times: float, why: OSError) -> Iterator[Slowdown]:
    try:
        burners = Burners(times)
    except OSError as error:
        sentence = f"--slow needs a control group with a CPU quota ({why}) or busy processes ({error})"
        raise RuntimeError(sentence) from error
    print(f"no control group with a CPU quota ({why}): {times - 1:g} busy processes for each core run at the same time")
    try:
        yield burners
    finally:
        burners.lift()


def own_group(root: Path = _ROOT, listed: Path = _OWN) -> Path:
    """The directory of this process's group in the hierarchy of the CPU controller.

    Raises:
        OSError: there is none.
    """
    for line in listed.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return root / "cpu" / path.lstrip("/")
    unified = next((line.split("::", 1)[1] for line in listed.read_text().splitlines() if line.startswith("0::")), "")
    group = root / unified.lstrip("/")
    if "cpu" not in (group / "cgroup.subtree_control").read_text().split():
        (group / "cgroup.subtree_control").write_text("+cpu")
    return group
