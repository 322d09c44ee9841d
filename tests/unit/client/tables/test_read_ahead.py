# SPDX-License-Identifier: Apache-2.0
"""Several reads follow one another, and the next ones begin early; batches have growing sizes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from tidemark.client.tables.read_ahead import grouped, one_behind_the_other

WAIT_S = 10


def test_items_come_source_by_source_in_order() -> None:
    sources = [partial(iter, range(10 * place, 10 * place + place)) for place in range(7)]
    wanted = [10 * place + item for place in range(7) for item in range(place)]
    assert list(one_behind_the_other(sources)) == wanted
    assert list(one_behind_the_other([])) == []


def test_the_next_sources_begin_while_the_first_one_is_read_and_no_later_ones() -> None:
    begun = [threading.Event() for _ in range(5)]

    def source(place: int) -> Iterator[int]:
        begun[place].set()
        yield place
        yield place

    items = one_behind_the_other([partial(source, place) for place in range(5)], ahead=2)
    assert next(items) == 0
    assert all(one.wait(WAIT_S) for one in begun[:3])
    assert [one.is_set() for one in begun[3:]] == [False, False]
    assert list(items) == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_an_error_is_raised_behind_the_items_of_the_sources_before() -> None:
    def failing() -> Iterator[int]:
        raise ValueError("lost")
        yield 1

    found: list[int] = []
    with pytest.raises(ValueError, match="lost"):
        found.extend(one_behind_the_other([partial(iter, (1, 2)), failing, partial(iter, (3,))]))
    assert found == [1, 2]


def test_a_caller_that_stops_early_does_not_wait_for_the_items_being_made() -> None:
    begun, release, left = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> Iterator[int]:
        begun.set()
        release.wait(WAIT_S)
        left.set()
        yield 2

    items = one_behind_the_other([partial(iter, (1,)), stuck])
    assert next(items) == 1
    assert begun.wait(WAIT_S)
    items.close()  # type: ignore[attr-defined]
    assert not left.is_set()
    release.set()
    assert left.wait(WAIT_S)


def test_groups_of_batches_grow_up_to_their_bytes_and_keep_the_order() -> None:
    batches = [pa.record_batch({"n": pa.array([place] * 10, pa.int64())}) for place in range(40)]
    groups = list(grouped(iter(batches), group_bytes=640))
    assert [len(group) for group in groups] == [1, 2, 4, 8, 8, 8, 8, 1]
    assert [rows for group in groups for rows in group] == batches
