# SPDX-License-Identifier: Apache-2.0
"""Signals and waits for the processes that tests have started."""

from __future__ import annotations

import os
import signal


def suspend(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs: a running thread may still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def resume(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)
