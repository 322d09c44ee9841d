# SPDX-License-Identifier: Apache-2.0
"""Kills child processes when this process ends, for any reason."""

from __future__ import annotations

import subprocess


class Guard:
    """A shell that kills `pid` when the pipe to this process closes.

    PR_SET_PDEATHSIG would fire at the end of the *thread* that started the child, and needs code after fork.
    """

    def __init__(self, pid: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; kill -9 {pid}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """End the guard, before the pid may belong to another process."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
