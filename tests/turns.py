# SPDX-License-Identifier: Apache-2.0
"""Turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


async def turns(count: int = 10) -> None:
    """Run every task that can continue; some tasks need several turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """Meanwhile, the list grows with each turn that another task gets."""
    counted: list[None] = []

    async def count() -> None:
        while True:
            counted.append(None)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield counted
    finally:
        counting.cancel()
