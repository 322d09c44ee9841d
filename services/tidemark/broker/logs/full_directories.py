# SPDX-License-Identifier: Apache-2.0
"""Log directories without space: a log line when a directory is full or has space again, and a gauge.

Every refused append reports the full disk, and thousands of replicas may share a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class FullDirectories:
    """Notes the log directories that are full; used on the event loop.

    Args:
        show: called with the number of full directories when that changes.
    """

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show = show
        self._full: set[int] = set()

    def note(self, directory: int, has_space: bool) -> None:
        """An append failed with ENOSPC in a directory, or `LogThreads` has seen space there again."""
        if has_space == (directory not in self._full):
            return
        if has_space:
            self._full.discard(directory)
            _log.warning("a log directory has space again", extra={"directory": directory})
        else:
            self._full.add(directory)
            _log.error("a log directory is full: its appends are refused", extra={"directory": directory})
        self._show(len(self._full))
