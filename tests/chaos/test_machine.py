# SPDX-License-Identifier: Apache-2.0
"""Processes that compute during a round end with the round, after any kind of end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.machine import Burners, FavouredSession, computing_s, slowness
from tests.integration.harness.waiting import wait_for

_KILLED = """
import os, signal
from tests.chaos.machine import Burners
with Burners(2) as burners:
    print(*(process.pid for process in burners.processes), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

_GUARDED_GROUP = """
import os, signal, subprocess
from tidemark.local.process import Guard
group = subprocess.Popen(
    ["sh", "-c", "sleep 600 & echo $$ $!; wait"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    start_new_session=True,
)
print(group.stdout.readline().decode(), flush=True)
guard = Guard(-group.pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie, which waits for its new parent, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_burners_end_with_their_block() -> None:
    with Burners(2) as burners:
        assert [process.poll() for process in burners.processes] == [None, None]
    assert all(process.poll() is not None for process in burners.processes)


def test_burners_have_sessions_of_their_own() -> None:
    with Burners(2) as burners:
        sessions = {os.getsid(process.pid) for process in burners.processes}
    assert sessions == {process.pid for process in burners.processes}


def test_burners_end_if_their_parent_is_killed() -> None:
    assert_ended_after(_KILLED)


def test_a_group_of_processes_ends_if_its_guard_loses_its_parent() -> None:
    assert_ended_after(_GUARDED_GROUP)


def assert_ended_after(script: str) -> None:
    """Both processes that `script` names have ended although `script` was killed."""
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pids = [int(word) for word in killed.stdout.split()]
    assert len(pids) == 2, killed.stderr
    wait_for(lambda: not any(runs(pid) for pid in pids), f"the end of {pids}")


def test_a_loaded_machine_gets_more_time() -> None:
    assert slowness(0.0, 0.01) == 1.0
    assert slowness(8.0, 0.01) < slowness(20.0, 0.01)


def test_a_machine_that_computes_slowly_gets_more_time() -> None:
    assert slowness(0.0, 0.06) == 2 * slowness(0.0, 0.03)
    assert slowness(20.0, 60.0) == slowness(0.0, 60.0), "at most so much"
    assert 0 < computing_s() < 60


def test_a_session_is_favoured_until_its_block_ends(tmp_path: Path) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.write_text("/autogroup-7 nice 3\n")
    with FavouredSession(autogroup):
        assert autogroup.read_text() == "-10"
    assert autogroup.read_text() == "3"


def test_a_session_keeps_its_share_where_the_kernel_has_no_autogroups(tmp_path: Path) -> None:
    with FavouredSession(tmp_path / "missing" / "autogroup"):
        pass
    assert not (tmp_path / "missing").exists()


def test_a_session_keeps_its_share_where_the_kernel_names_no_autogroup(tmp_path: Path) -> None:
    autogroup = tmp_path / "autogroup"
    autogroup.touch()
    with FavouredSession(autogroup):
        assert autogroup.read_text() == ""
    assert autogroup.read_text() == ""
