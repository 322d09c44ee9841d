# SPDX-License-Identifier: Apache-2.0
"""Producer ids, from blocks that are reserved in ZooKeeper (rule P1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from tidemark.zookeeper.store import MetadataStore

BLOCK_SIZE: Final = 1000


class ProducerIds:
    """Returns each id once; the unused rest of a block is lost with the process.

    A block begins at the present time at least, in microseconds since 1970. So an older ZooKeeper tree, from a backup,
    gives no id again that a log knows: a leader would treat the first batch of the new producer as a duplicate.
    """

    def __init__(self, store: MetadataStore, wall_us: Callable[[], int]) -> None:
        self._store = store
        self._wall_us = wall_us
        self._block: Iterator[int] = iter(())
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """The next id; raises COORDINATION_UNAVAILABLE when a new block is needed and ZooKeeper does not answer."""
        async with self._refill:
            producer_id = next(self._block, None)
            if producer_id is None:
                self._block = iter(await self._store.next_producer_ids(BLOCK_SIZE, at_least=self._wall_us()))
                producer_id = next(self._block)
            return producer_id
