# SPDX-License-Identifier: Apache-2.0
"""Files that are read again when they change."""

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
"""Interval at which a use of the contents checks whether the files changed."""


class ChangedFile(Generic[T]):
    """The contents of a file, or of files that belong together. Contents that cannot be read replace no others.

    Args:
        read: takes the paths and reads the files; raises TidemarkError or OSError.
        paths: paths of the files.

    Attributes:
        failures: times that changed files were not used.

    Raises:
        TidemarkError, OSError: of `read`.
    """

    def __init__(self, read: Callable[..., T], *paths: str) -> None:
        self.failures = 0
        self._paths = paths
        self._read = read
        self._seen = self._signatures()
        self._contents = read(*paths)
        self._refused: tuple[object, str] | None = None
        self._tried_s = 0.0
        self._checked_s = time.monotonic()

    def current(self, *, at_once: bool = False) -> T:
        """The newest contents; checks the files at most every half second, unless `at_once`."""
        if at_once or time.monotonic() - self._checked_s >= _CHECK_S:
            self._checked_s = time.monotonic()
            self._look()
        return self._contents

    def _look(self) -> None:
        seen, now_s = self._signatures(), time.monotonic()
        is_refused = self._refused is not None and self._refused[0] == seen
        if seen == self._seen or (is_refused and now_s - self._tried_s < _CHECK_S):
            return
        self._tried_s = now_s
        try:
            self._contents = self._read(*self._paths)
        except (TidemarkError, OSError) as error:
            self._refuse((seen, error.message if isinstance(error, TidemarkError) else str(error)))
            return
        self._seen, self._refused = seen, None
        _log.info("%s changed", " and ".join(self._paths))

    def _refuse(self, state: tuple[object, str]) -> None:
        """Keep the former contents; count and log each state of the files once. A chmod may make a file readable."""
        if state != self._refused:
            self._refused = state
            self.failures += 1
            _log.warning("%s changed, and the change is not used: %s", " and ".join(self._paths), state[1])

    def _signatures(self) -> list[tuple[int, ...] | None]:
        return [signature(path) for path in self._paths]


def signature(path: str) -> tuple[int, ...] | None:
    """Differs after a change of the file; None: the file does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_dev, status.st_mtime_ns, status.st_size
