# SPDX-License-Identifier: Apache-2.0
"""A benchmark separates its own work from that of other programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measuring.disturbance import Disturbance, Process, Reading, between, read

OURS, CHILD, OTHER, KERNEL, KWORKER = 100, 101, 300, 2, 9


def reading(
    *, ours: int = 0, child: int = 0, other: int = 0, kernel: int = 0, idle: int = 0, steal: int = 0
) -> Reading:
    """Counters of a machine; `ours` to `kernel` are the ticks of one process each."""
    ticks = {OURS: (1, ours), CHILD: (OURS, child), OTHER: (1, other), KERNEL: (0, 0), KWORKER: (KERNEL, kernel)}
    processes = {number: Process(*of) for number, of in ticks.items()}
    return Reading(ours + child + other + kernel, idle, steal, processes, memory_us=0, total_us=1)


def test_work_of_the_benchmark_of_its_children_and_of_the_kernel_is_no_disturbance() -> None:
    found = between(reading(), reading(ours=40, child=40, kernel=20), OURS)
    assert found == Disturbance(0.0, 0.0, 0.0)
    assert found.reasons == ()


def test_work_of_another_process_is_a_share_of_all_cores() -> None:
    found = between(reading(other=500), reading(ours=80, other=510, idle=10), OURS)
    assert found.others == 0.1
    assert found.reasons == ("other processes took 10% of the CPU time",)


def test_a_process_that_begins_and_ends_between_the_readings_counts_too() -> None:
    after = reading(ours=80, idle=10)
    assert between(reading(), after._replace(busy_ticks=after.busy_ticks + 10), OURS).others == 0.1


def test_a_reading_tells_the_time_that_the_hypervisor_took() -> None:
    found = between(reading(), reading(ours=90, steal=10), OURS)
    assert found.reasons == ("the hypervisor took 10% of the CPU time",)


def test_a_reading_tells_the_waits_for_memory() -> None:
    found = between(reading(), reading(ours=1)._replace(memory_us=300, total_us=1001), OURS)
    assert found.reasons == ("processes waited for memory in 30% of the time",)


def test_an_ended_child_stays_with_its_parent(tmp_path: Path) -> None:
    """The ticks of the child move into its parent's fields for ended children, which `read` adds."""
    (tmp_path / "stat").write_text("cpu  10 1 2 30 4 5 6 7 0 0\n")
    (tmp_path / "uptime").write_text("12.5 3.0\n")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 11 22 33 44 20 0 1 0 5\n")
    found = read(tmp_path)
    assert found.processes == {7: Process(1, 11 + 22 + 33 + 44)}
    assert (found.busy_ticks, found.idle_ticks, found.steal_ticks, found.memory_us) == (24, 34, 7, 0)
    assert found.total_us == 12_500_000


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads the counters of Linux")
def test_a_real_machine_shows_the_ticks_of_an_orphan_of_ours() -> None:
    program = """
import subprocess, sys, time
from bench.measuring.disturbance import adopt_orphans, read, _descendants
import os
adopt_orphans()
line = "python -c 'import time; time.sleep(30)' & echo $!"
orphan = int(subprocess.run(["sh", "-c", line], capture_output=False, stdout=subprocess.PIPE).stdout.split()[0])
try:
    sys.exit(0 if orphan in _descendants(read().processes, os.getpid()) else 3)
finally:
    os.kill(orphan, 9)
"""
    program = program.replace("python -c", f"{sys.executable} -c").replace("& echo", ">/dev/null 2>&1 & echo")
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], env=os.environ, check=False)
    assert done.returncode == 0
