# SPDX-License-Identifier: Apache-2.0
"""Log directories without space: one line in the log when it begins and one when it ends, and a gauge.

Every refused append says so again, and thousands of replicas may share a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class FullDirectories:
    """On the event loop.

    Args:
        show: told how many there are, whenever that changes.
    """

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show = show
        self._full: set[int] = set()

    def note(self, directory: int, has_space: bool) -> None:
        """An append found no space in a directory, or the first one after such a one did."""
        if has_space == (directory not in self._full):
            return
        if has_space:
            self._full.discard(directory)
            _log.warning("a log directory has space again", extra={"directory": directory})
        else:
            self._full.add(directory)
            _log.error("a log directory is full: nothing is appended there", extra={"directory": directory})
        self._show(len(self._full))
