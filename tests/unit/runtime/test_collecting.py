# SPDX-License-Identifier: Apache-2.0
"""The objects that a full collection visits, and the objects that it skips."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest
from tidemark.runtime.collecting import BoundedCollections, no_collections


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def policy() -> Iterator[BoundedCollections]:
    """A policy that thaws nothing: a test worker has more than a million objects."""
    gc.collect()
    policy = BoundedCollections(thaw_objects_min=sys.maxsize)
    policy.start()
    yield policy
    policy.stop()


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_objects_that_survive_any_collection_are_frozen(policy: BoundedCollections, generation: int) -> None:
    kept = [[index] for index in range(1000)]
    gc.collect(generation)
    seen = sum(len(gc.get_objects(generation=each)) for each in range(3))  # noqa: TID251 - no other thread runs
    assert seen < len(kept)
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
        gc.collect()  # alive and frozen; there are enough frozen objects, so all are unfrozen
        del knot
        gc.collect()
        assert seen() is None
        gc.collect()
        assert gc.get_freeze_count() > 0, "from now on only twice as much brings all into sight"
    finally:
        policy.stop()


def test_young_survivors_are_not_frozen_while_all_objects_wait_for_a_full_collection() -> None:
    gc.collect()
    policy = BoundedCollections(thaw_objects_min=1)
    policy.start()
    try:
        knot = Knot()
        seen = weakref.ref(knot)
        gc.collect(0)  # unfreezes all objects, since there are enough of them
        del knot
        gc.collect(0)
        gc.collect()
        assert seen() is None
    finally:
        policy.stop()


def test_a_full_collection_breaks_no_tuple_that_another_thread_makes(policy: BoundedCollections) -> None:
    """CPython raises SystemError if there is another reference to a tuple while a generator fills the tuple.

    The other thread continues after the first call of a C function in the policy, whose result still exists then.
    """
    half_made, go_on = threading.Event(), threading.Event()
    made: list[object] = []

    def numbers() -> Iterator[int]:
        yield from range(100)
        half_made.set()
        go_on.wait(30)
        yield from range(100)

    def make() -> None:
        try:
            made.append(len(tuple(number for number in numbers())))
        except SystemError as error:
            made.append(error)

    def let_continue(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code is BoundedCollections.on_collection.__code__:
            go_on.set()
            thread.join(30)

    thread = threading.Thread(target=make)
    thread.start()
    assert half_made.wait(30)
    sys.setprofile(let_continue)
    try:
        gc.collect()
    finally:
        sys.setprofile(None)
    assert made == [200]


def test_a_stopped_policy_restores_the_collector() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    policy = BoundedCollections()
    policy.start()
    assert gc.get_threshold() != before[0]
    policy.stop()
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


def test_imports_run_without_collections_and_their_objects_are_frozen() -> None:
    before = gc.get_freeze_count()
    try:
        with no_collections():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
