# SPDX-License-Identifier: Apache-2.0
"""A part of the CPU for the processes of a benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measuring import slowdown
from bench.measuring.slowdown import PERIOD_US, QuotaGroup, own_group, slowed

BUSY = """
import time
until, used = time.monotonic() + 1.0, time.process_time()
while time.monotonic() < until: pass
print(time.process_time() - used)
"""
GROUPED = "a control group with a quota cannot be made here"


def may_make_groups() -> bool:
    try:
        group = QuotaGroup(2, own_group())
    except OSError:
        return False
    group.remove()
    return True


def busy_s() -> float:
    """CPU seconds that a busy process got in one second."""
    return float(subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not may_make_groups(), reason=GROUPED)
def test_a_process_that_starts_within_gets_its_part_until_the_quota_is_lifted() -> None:
    cores = len(os.sched_getaffinity(0))
    with slowed(10 * cores) as slow:
        with slow.entered():
            assert busy_s() < 0.2  # a tenth of one core
        group = own_group() / f"tidemark-bench-{os.getpid()}-all"
        assert str(os.getpid()) not in (group / "cgroup.procs").read_text().split()
        slow.lift()
        quota = [
            path.read_text().split()[0] for path in group.iterdir() if path.name in ("cpu.cfs_quota_us", "cpu.max")
        ]
        assert quota in (["-1"], ["max"])
    assert not group.exists()


def test_the_group_is_found_in_either_version(tmp_path: Path) -> None:
    listed = tmp_path / "listed"
    listed.write_text("4:memory:/m\n1:cpu,cpuacct:/ours/here\n0::/unified\n")
    assert own_group(tmp_path, listed) == tmp_path / "cpu" / "ours" / "here"
    listed.write_text("0::/unified\n")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.subtree_control").write_text("memory\n")
    assert own_group(tmp_path, listed) == tmp_path / "unified"
    assert (tmp_path / "unified" / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_quota_is_the_part_of_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdown.os, "sched_getaffinity", lambda _: set(range(6)))
    group = QuotaGroup(3, tmp_path)
    assert (tmp_path / f"tidemark-bench-{os.getpid()}-all" / "cpu.max").read_text() == f"{2 * PERIOD_US} {PERIOD_US}"
    group.lift()
    assert (tmp_path / f"tidemark-bench-{os.getpid()}-all" / "cpu.max").read_text() == f"max {PERIOD_US}"


def test_busy_processes_run_beside_where_no_group_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slowdown, "own_group", lambda: tmp_path / "missing")
    monkeypatch.setattr(slowdown.os, "sched_getaffinity", lambda _: {0})
    with slowed(3) as slow:
        assert isinstance(slow, slowdown.Burners)
        running = list(slow.processes)
        assert len(running) == 2
        assert all(process.poll() is None for process in running)
    assert all(process.returncode is not None for process in running)
    assert "2 busy processes for each core" in capsys.readouterr().out


def test_a_slowdown_without_a_group_and_without_busy_processes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowdown, "own_group", lambda: tmp_path / "missing")
    monkeypatch.setattr(slowdown.sys, "executable", str(tmp_path / "python"))
    needed = r"--slow needs a control group with a CPU quota .* or busy processes"
    with pytest.raises(RuntimeError, match=needed), slowed(2):
        pass


def test_a_part_above_all_of_the_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--slow is 0\.5: at least 1"), slowed(0.5):
        pass
