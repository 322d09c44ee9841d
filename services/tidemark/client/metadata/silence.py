# SPDX-License-Identifier: Apache-2.0
"""The log line of a client that no broker has answered yet. Without this line, a wrong address looks like a hang."""

from __future__ import annotations

import logging
import time
from typing import Final

from tidemark.model import TidemarkError

LOGGER: Final = "tidemark.client.silence"
SHOWN_AFTER_S: Final = 1.5
"""Time in which a broker that has just started answers."""

_log = logging.getLogger(LOGGER)


class Silence:
    """The attempts of one start to reach a broker.

    Args:
        limit_s: seconds from now on after which the start gives up.
    """

    __slots__ = ("_limit_s", "_shown", "_started_s")

    def __init__(self, limit_s: float) -> None:
        self._started_s = time.monotonic()
        self._limit_s = limit_s
        self._shown = False

    def note(self, error: TidemarkError) -> None:
        """Log the error of an attempt: one line for all attempts, after SHOWN_AFTER_S."""
        waited_s = time.monotonic() - self._started_s
        if waited_s >= SHOWN_AFTER_S and not self._shown:
            self._shown = True
            _log.warning("%s; trying again for %.0f s", error.message, max(self._limit_s - waited_s, 0.0))
