# SPDX-License-Identifier: Apache-2.0
"""Nothing that we start outlives us: a guard of each child process, whose pipe closes however we end."""

from __future__ import annotations

import subprocess


class Guard:
    """A shell that kills `pid` once the pipe that only we hold closes.

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
        """Guard no more: before the pid may be somebody else's."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
