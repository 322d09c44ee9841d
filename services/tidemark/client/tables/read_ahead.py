# SPDX-License-Identifier: Apache-2.0
"""Reads several partitions in turn: the next reads begin while the rows of a partition are processed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

import pyarrow as pa

T = TypeVar("T")

AHEAD: Final = 2
"""Number of partitions whose first fetch is in flight while another partition is read."""
GROUP_BYTES: Final = 16 << 20
"""Size of a large group of batches."""


def one_behind_the_other(sources: Sequence[Callable[[], Iterator[T]]], ahead: int = AHEAD) -> Iterator[T]:
    """Yield the items of each source, in order; the first item of the next `ahead` sources is made meanwhile.

    An error of a source is raised after the items of the sources before. A caller that stops early does not wait for
    the items that are being made.
    """
    if len(sources) <= 1:
        for source in sources:
            yield from source()
        return
    left = iter(sources)
    coming: deque[tuple[Iterator[T], Future[list[T]]]] = deque()
    pool = ThreadPoolExecutor(ahead, "read-ahead")
    try:
        while True:
            for source in islice(left, ahead + 1 - len(coming)):
                items = source()
                coming.append((items, pool.submit(_first, items)))
            if not coming:
                return
            items, first = coming.popleft()
            yield from first.result()
            yield from items
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _first(items: Iterator[T]) -> list[T]:
    return list(islice(items, 1))


def grouped(batches: Iterator[pa.RecordBatch], group_bytes: int = GROUP_BYTES) -> Iterator[list[pa.RecordBatch]]:
    """Groups of batches, in order: the first group is one batch, each next group has twice the bytes, up to
    `group_bytes`.

    So a caller gets the first rows soon, and all rows in few groups.
    """
    wanted_bytes, found_bytes = 1, 0
    group: list[pa.RecordBatch] = []
    for rows in batches:
        group.append(rows)
        found_bytes += rows.nbytes
        if found_bytes >= wanted_bytes:
            yield group
            wanted_bytes, found_bytes, group = min(2 * found_bytes, group_bytes), 0, []
    if group:
        yield group
