# SPDX-License-Identifier: Apache-2.0
"""The end of a process at any of its file operations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

OPERATIONS = ("pwrite", "fsync", "rename", "replace", "unlink", "open")


class Killed(BaseException):
    """The process was killed: no later operation reaches a file."""


class Killer:
    """Counts operations that change files, and kills at the n-th; half of a killed write is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.count = 0
        self._look: Callable[[], object] | None = None
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **named)
            self.count += 1
            if self._look is not None:
                look, self._look = self._look, None
                if name == "pwrite":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                look()
                self._look = look
            if self.left is not None:
                if self.left == 0 and name == "pwrite":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                if self.left <= 0:
                    self.left = -1
                    raise Killed
                self.left -= 1
            return real(*arguments, **named)

        return operation

    def run(self, work: Callable[[], object], *, at: int | None = None) -> bool:
        """Whether the work ended by itself."""
        self.left, self.count = at, 0
        try:
            work()
        except Killed:
            return False
        finally:
            self.left = None
        return True

    def each_point(self, work: Callable[[], object], look: Callable[[], object]) -> None:
        """Run the work to its end.

        Call `look` for the files after a kill at each operation, and for those at the end.
        """
        self._look = look
        try:
            work()
        finally:
            self._look = None
        look()
