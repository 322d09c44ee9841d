# SPDX-License-Identifier: Apache-2.0
"""Producer ids: each is given once, also by an older ZooKeeper tree (rule P1)."""

from __future__ import annotations

from typing import Any, cast

from tidemark.broker.clients.producer_ids import BLOCK_SIZE, ProducerIds


class Tree:
    """A ZooKeeper tree that has only /producer_ids."""

    def __init__(self) -> None:
        self.next = 0

    async def next_producer_ids(self, count: int, *, at_least: int = 0) -> range:
        start = max(self.next, at_least)
        self.next = start + count
        return range(start, self.next)


async def test_an_older_tree_gives_no_id_again() -> None:
    tree, wall_us = Tree(), 1_700_000_000_000_000
    given: list[int] = []
    for _ in range(3):
        tree.next = 0  # an operator restored the tree, and the broker has started again
        wall_us += 1_000_000
        ids = ProducerIds(cast("Any", tree), lambda now_us=wall_us: now_us)  # type: ignore[misc]
        given += [await ids.next() for _ in range(2 * BLOCK_SIZE)]
    assert len(set(given)) == 6 * BLOCK_SIZE


async def test_a_clock_that_was_set_back_gives_no_id_again() -> None:
    tree, given = Tree(), set[int]()
    for wall_us in (2_000_000, 1_000_000, 0):
        ids = ProducerIds(cast("Any", tree), lambda now_us=wall_us: now_us)  # type: ignore[misc]
        given.add(await ids.next())
    assert len(given) == 3
