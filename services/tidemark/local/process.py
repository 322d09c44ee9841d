# SPDX-License-Identifier: Apache-2.0
"""Processes of a local cluster: start, signals, stop, end of the log. The processes are killed when this process
ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tidemark.model import ErrorCode, TidemarkError

_TAIL_LINES: Final = 12


class ChildProcess:
    """A process that is killed when this process ends, for any reason; it runs in `directory`, if given."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path | None = None
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._cwd = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def pid(self) -> int:
        """Process id, after `start`."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive; a paused process is."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last run, negative for a signal; None while it runs, and before the first start."""
        return None if self._process is None else self._process.poll()

    def _run(self, output: BinaryIO) -> None:
        assert not self.running, f"{self.name} runs already"
        self._release_guard()
        self._process = self._spawn(output)
        self._guard = Guard(self._process.pid)

    def _spawn(self, output: BinaryIO) -> subprocess.Popen[bytes]:
        # A new session: Ctrl-C reaches only this process, which stops all processes in order.
        return subprocess.Popen(
            self._command,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; no effect on a process that ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP and wait until the process is stopped."""
        self.signal(signal.SIGSTOP)
        if self.running:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False after `timeout_s`."""
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            self._release_guard()
            return True
        return False

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release_guard()

    def _release_guard(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None


class ServiceProcess(ChildProcess):
    """Runs `python -m <module> <arguments>` after the words of `launcher`, and appends its output to `log`.

    The variables of `environment` are added to this process's variables; `name` is for messages, e.g. "broker-0".
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        launcher: Sequence[str] = (),
    ) -> None:
        super().__init__(name, [*launcher, sys.executable, "-m", module, *arguments], environment)
        self.log = log

    def start(self) -> None:
        """Start the process, without waiting until it is SERVING."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._run(output)

    def died(self, when: str) -> TidemarkError:
        """The error for a process that ended, with the end of its log."""
        return TidemarkError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"{self.name} {when} (status {self.exit_status}); its log, {self.log}, ends with:\n{self.tail()}",
        )

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Guard:
    """A shell that kills `pid`, or the group of processes -`pid`, when the pipe to this process closes.

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
