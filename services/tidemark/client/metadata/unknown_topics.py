# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions that no broker knows, remembered for a short time.

The first lookup of a missing name is retried, since the controller's update may not have reached the brokers yet.
Without this memory each call for a misspelt topic would wait for that time again.
"""

from __future__ import annotations

import math
import time
from copy import copy
from typing import Final, NamedTuple

from tidemark.model import TidemarkError, TopicPartition

REMEMBERED_S: Final = 60.0
"""Time after an answer in which a lookup of the name makes one attempt, without retries."""
ASK_AGAIN_S: Final = 1.0
"""Time after an answer within which a lookup asks no broker."""
NAMES_MAX: Final = 100
"""Largest number of names that are kept; above it, the oldest name is dropped."""

Name = str | TopicPartition
"""A topic, or a partition index that its topic does not have."""

_created_s = -math.inf
"""Time of the last creation by an admin client of this process, by time.monotonic()."""


def note_creation() -> None:
    """A client of this process created a topic or partitions: lookups of remembered names are retried again."""
    global _created_s
    _created_s = time.monotonic()


class _Missing(NamedTuple):
    error: TidemarkError
    asked_s: float


class UnknownTopics:
    """The memory of one client; times are of time.monotonic()."""

    def __init__(self) -> None:
        self._missing: dict[Name, _Missing] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def patience_s(self, name: Name, patience_s: float, now_s: float) -> float:
        """Return the time for which a lookup is retried: `patience_s`, or 0 for a remembered name.

        Raises:
            TidemarkError: the remembered error, if a broker was asked less than `ASK_AGAIN_S` ago.
        """
        missing = self._missing.get(name)
        if missing is None or missing.asked_s + REMEMBERED_S <= now_s or missing.asked_s <= _created_s:
            return patience_s
        if now_s < missing.asked_s + ASK_AGAIN_S:
            raise copy(missing.error)
        return 0.0

    def add(self, name: Name, error: TidemarkError, now_s: float) -> list[Name]:
        """Record that a broker does not know the name; returns the names that are dropped in exchange."""
        self._missing.pop(name, None)
        self._missing[name] = _Missing(error, now_s)
        forgotten = list(self._missing)[: max(0, len(self._missing) - NAMES_MAX)]
        for one in forgotten:
            del self._missing[one]
        return forgotten

    def error(self, name: Name) -> TidemarkError | None:
        """Return the remembered error of a name."""
        missing = self._missing.get(name)
        return None if missing is None else missing.error
