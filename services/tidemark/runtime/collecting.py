# SPDX-License-Identifier: Apache-2.0
"""Garbage collection in pauses that are bounded, however much a process keeps.

CPython looks at everything of a generation in one go, a fifth of a microsecond for each object: of what thousands of
partitions keep, a third of a second. So generations are small, and what a full collection found alive is put out of
sight of the next ones (`gc.freeze`); all else is still freed as soon as nobody refers to it. What is out of sight and
becomes a cycle that nobody refers to stays, until there is twice as much out of sight as when all was last looked at:
then all is looked at once more. So such pauses are rare, and what is wasted is bounded by what is in use.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Final

THRESHOLDS: Final = (5_000, 1, 2)
"""Objects in the first generation: 1 ms; in the second 10,000; in the third 30,000 if all live."""
THAW_OBJECTS_MIN: Final = 1_000_000


class BoundedCollections:
    """In force from `start` to `stop`, for the whole process."""

    def __init__(self, thaw_objects_min: int = THAW_OBJECTS_MIN) -> None:
        self._before = gc.get_threshold()
        self._thaw_at = self._thaw_objects_min = thaw_objects_min
        self._thawed = False
        self._frozen = 0
        """At most so many."""

    def start(self) -> None:
        """What has been imported is out of sight from here on."""
        gc.freeze()
        self._frozen = gc.get_freeze_count()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def stop(self) -> None:
        """As it was before."""
        gc.callbacks.remove(self.on_collection)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """After a full one: what it left is alive."""
        if phase != "stop" or info["generation"] != 2:
            return
        self._frozen += len(gc.get_objects(generation=2))
        gc.freeze()
        if self._thawed:
            self._thawed = False
            self._frozen = gc.get_freeze_count()
            self._thaw_at = max(self._thaw_objects_min, 2 * self._frozen)
        elif self._frozen >= self._thaw_at:
            self._frozen = gc.get_freeze_count()  # without what was freed meanwhile; goes through all of them
            if self._frozen >= self._thaw_at:
                gc.unfreeze()  # the next full collection looks at all
                self._thawed = True
