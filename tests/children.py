# SPDX-License-Identifier: Apache-2.0
"""Signals and waits for the processes that tests have started."""

from __future__ import annotations

import os
import signal


def suspend(pid: int) -> None:
    """SIGSTOP, and wait until none of its threads runs: until then one that is on a processor may still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def resume(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)
