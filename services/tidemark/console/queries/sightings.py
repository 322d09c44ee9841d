# SPDX-License-Identifier: Apache-2.0
"""The times since which the console has seen a state: a missing broker, the present controller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

ENTRIES_MAX: Final = 10_000


class Sighting(NamedTuple):
    """A state, and the time since which the console sees it.

    Attributes:
        since_ms: first sight of the state, in milliseconds since 1970.
        before: the state before; None: this is the first state that the console saw, so the state may be older.
    """

    state: Hashable
    since_ms: int
    before: Hashable | None


class Sightings:
    """The states by key: the newest `ENTRIES_MAX`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen: OrderedDict[Hashable, Sighting] = OrderedDict()

    def note(self, key: Hashable, state: Hashable) -> Sighting:
        """Note the present state of a key; returns the state, the time of its first sighting, and the state before."""
        known = self._seen.get(key)
        if known is None or known.state != state:
            known = Sighting(state, self._now_ms(), None if known is None else known.state)
            self._seen[key] = known
            if len(self._seen) > ENTRIES_MAX:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        return known
