# SPDX-License-Identifier: Apache-2.0
"""Turns of the event loop."""

from __future__ import annotations

import asyncio


async def turns(count: int = 10) -> None:
    """Let every task that can continue do so; some need several turns."""
    for _ in range(count):
        await asyncio.sleep(0)
