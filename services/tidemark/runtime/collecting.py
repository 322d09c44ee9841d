# SPDX-License-Identifier: Apache-2.0
"""Bounds the pauses of garbage collection, however many objects a process keeps.

CPython collects a generation in one pass, at 0.2 µs for each object; the objects of thousands of partitions take a
third of a second. So the first generation is small here, and `gc.freeze` hides the survivors of each collection from
later ones: a collection visits each object once. Reference counting still frees objects immediately.

A frozen cycle without references stays in memory until the number of frozen objects has doubled; then one collection
visits all objects. So long pauses are rare, and the wasted memory is bounded by the used memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

YOUNG_MAX: Final = 30_000
"""Objects more than at the last collection that start one (6 ms); it visits all that are not frozen."""
THRESHOLDS: Final = (YOUNG_MAX, 0, 0)
"""The older generations are empty, so it makes no difference which of them is collected."""
THAW_OBJECTS_MIN: Final = 1_000_000


@contextmanager
def no_collections() -> Iterator[None]:
    """Import modules without collections, which would take a tenth of the CPU time of a start and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class BoundedCollections:
    """Bounds collections of the whole process from `start` to `stop`."""

    def __init__(self, thaw_objects_min: int = THAW_OBJECTS_MIN) -> None:
        self._before = gc.get_threshold()
        self._thaw_at = self._thaw_objects_min = thaw_objects_min
        self._thawed = False
        self._frozen = 0
        """Upper bound of the number of frozen objects, those of the start excluded until they are first counted."""

    def start(self) -> None:
        """Freeze all imported objects."""
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def stop(self) -> None:
        """Restore the earlier thresholds, and unfreeze."""
        gc.callbacks.remove(self.on_collection)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Freeze the survivors of a collection; after unfreezing, the survivors of a full collection only.

        The survivors are not counted with `gc.get_objects`: that list refers to the half-made tuple of another thread
        that runs `tuple(generator)`, which then raises SystemError.
        """
        if phase != "stop" or (self._thawed and info["generation"] != 2):
            return
        self._frozen += YOUNG_MAX
        gc.freeze()
        if self._thawed:
            self._thawed = False
            self._frozen = gc.get_freeze_count()
            self._thaw_at = max(self._thaw_objects_min, 2 * self._frozen)
        elif self._frozen >= self._thaw_at:
            self._frozen = gc.get_freeze_count()  # counts live frozen objects only; this call visits all of them
            if self._frozen >= self._thaw_at:
                gc.unfreeze()  # the next full collection visits all objects
                self._thawed = True
