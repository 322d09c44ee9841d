# SPDX-License-Identifier: Apache-2.0
"""Producer ids, from blocks that are reserved in ZooKeeper (rule P1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from tidemark.ports import MetadataStore

BLOCK_SIZE: Final = 1000


class ProducerIds:
    """Returns each id once; the unused rest of a block is lost with the process."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._block: Iterator[int] = iter(())
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """The next id; raises COORDINATION_UNAVAILABLE when a new block is needed and ZooKeeper does not answer."""
        async with self._refill:
            producer_id = next(self._block, None)
            if producer_id is None:
                self._block = iter(await self._store.next_producer_ids(BLOCK_SIZE))
                producer_id = next(self._block)
            return producer_id
