# SPDX-License-Identifier: Apache-2.0
"""What a full collection looks at, and what it leaves alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from tidemark.runtime.collecting import BoundedCollections


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def policy() -> Iterator[BoundedCollections]:
    gc.collect()
    policy = BoundedCollections()
    policy.start()
    yield policy
    policy.stop()


def test_objects_that_survive_a_full_collection_are_frozen(policy: BoundedCollections) -> None:
    kept = [[index] for index in range(1000)]
    gc.collect()
    assert len(gc.get_objects(generation=2)) < len(kept)
    assert gc.get_freeze_count() > len(kept)


def test_cycles_are_collected_as_before(policy: BoundedCollections) -> None:
    knot = weakref.ref(Knot())
    assert knot() is not None
    gc.collect()
    assert knot() is None


def test_a_cycle_that_lived_through_a_full_collection_goes_when_all_is_looked_at_again() -> None:
    gc.collect()
    policy = BoundedCollections(thaw_objects_min=1)
    policy.start()
    try:
        knot = Knot()
        seen = weakref.ref(knot)
        gc.collect()  # alive: out of sight, but there is enough of that, so all comes into sight again
        del knot
        gc.collect()
        assert seen() is None
        gc.collect()
        assert gc.get_freeze_count() > 0, "from now on only twice as much brings all into sight"
    finally:
        policy.stop()


def test_everything_is_as_before_when_the_service_has_ended() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    policy = BoundedCollections()
    policy.start()
    assert gc.get_threshold() != before[0]
    policy.stop()
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
