# SPDX-License-Identifier: Apache-2.0
"""One process of a local cluster: start, signals, end, the tail of its log. It dies when we do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from tidemark.local.guard import Guard
from tidemark.model import ErrorCode, TidemarkError

_TAIL_LINES: Final = 12


class ServiceProcess:
    """`python -m <module> <arguments>`, its output appended to `log`.

    Args:
        name: for people, e.g. "broker-0".
        module: what to run, e.g. "tidemark.broker".
        arguments: flags.
        log: file for stdout and stderr.
        environment: added to ours.
        launcher: a command that the whole is appended to.
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
        self.name = name
        self.log = log
        self._command = [*launcher, sys.executable, "-m", module, *arguments]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def pid(self) -> int:
        """Process id; it must have been started."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives; a paused process does."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Of the last run; negative for a signal; None while it runs or before it did."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it; does not wait until it serves."""
        assert not self.running, f"{self.name} runs already"
        self._release_guard()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = self._spawn(output)
        self._guard = Guard(self._process.pid)

    def _spawn(self, output: BinaryIO) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C reaches us alone, and we stop everything in order.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP; it stands still when this returns."""
        self.signal(signal.SIGSTOP)
        if self.running:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            self._release_guard()
            return True
        return False

    def kill(self) -> None:
        """SIGKILL and wait for the end; again is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._release_guard()

    def died(self, when: str) -> TidemarkError:
        """The error that says that it ended, with the tail of its log."""
        return TidemarkError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"{self.name} {when} (status {self.exit_status}); its log, {self.log}, ends with:\n{self.tail()}",
        )

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _release_guard(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None
