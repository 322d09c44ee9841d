# SPDX-License-Identifier: Apache-2.0
"""A file that is read again when it changes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tidemark.model import TidemarkError

_log = logging.getLogger(__name__)

T = TypeVar("T")
_CHECK_S: Final = 0.5
"""Interval at which a use of the contents checks whether the file changed."""


class ChangedFile(Generic[T]):
    """The contents of a file. If contents cannot be read, the former contents stay in use.

    Args:
        path: path of the file.
        read: reads the file; raises TidemarkError.

    Attributes:
        failures: times that a changed file was not used.

    Raises:
        TidemarkError: of `read`.
    """

    def __init__(self, path: str, read: Callable[[str], T]) -> None:
        self.failures = 0
        self._path = path
        self._read = read
        self._seen = signature(path)
        self._contents = read(path)
        self._refused: tuple[object, str] | None = None
        self._tried_s = 0.0
        self._checked_s = time.monotonic()

    def current(self, *, at_once: bool = False) -> T:
        """The newest contents; checks the file at most every half second, unless `at_once`."""
        if at_once or time.monotonic() - self._checked_s >= _CHECK_S:
            self._checked_s = time.monotonic()
            self._look()
        return self._contents

    def _look(self) -> None:
        seen, now_s = signature(self._path), time.monotonic()
        is_refused = self._refused is not None and self._refused[0] == seen
        if seen == self._seen or (is_refused and now_s - self._tried_s < _CHECK_S):
            return
        self._tried_s = now_s
        try:
            self._contents = self._read(self._path)
        except TidemarkError as error:
            self._refuse((seen, error.message))
            return
        self._seen, self._refused = seen, None
        _log.info("%s changed", self._path)

    def _refuse(self, state: tuple[object, str]) -> None:
        """Keep the former contents; count and log each state of the file once. A chmod may make the file readable."""
        if state != self._refused:
            self._refused = state
            self.failures += 1
            _log.warning("the changed file is not used: %s", state[1])


def signature(path: str) -> tuple[int, ...] | None:
    """Differs after a change of the file; None: the file does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_dev, status.st_mtime_ns, status.st_size
