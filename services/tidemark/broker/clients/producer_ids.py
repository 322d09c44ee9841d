# SPDX-License-Identifier: Apache-2.0
"""Producer ids out of blocks that ZooKeeper hands out (rule P1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from tidemark.ports import MetadataStore

BLOCK_SIZE: Final = 1000


class ProducerIds:
    """Never gives an id twice; what is left of a block is lost with the process."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._block: Iterator[int] = iter(())
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id; raises COORDINATION_UNAVAILABLE when there is none left and ZooKeeper does not answer."""
        async with self._refill:
            producer_id = next(self._block, None)
            if producer_id is None:
                self._block = iter(await self._store.next_producer_ids(BLOCK_SIZE))
                producer_id = next(self._block)
            return producer_id
