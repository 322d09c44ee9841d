# SPDX-License-Identifier: Apache-2.0
"""Time outside the pure core: the clock behind `ports.Clock`, and time limits of asyncio tasks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, cast

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """CLOCK_BOOTTIME, which counts while the machine is suspended (rule F1), on Linux; else CLOCK_MONOTONIC."""

    def now_ms(self) -> int:
        """Milliseconds since boot, suspension included."""
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000


@asynccontextmanager
async def _timeout(limit_s: float | None) -> AsyncIterator[asyncio.Timeout]:
    task = cast("asyncio.Task[object]", asyncio.current_task())
    cancels = task.cancelling()
    try:
        async with asyncio.timeout(limit_s) as limit:
            yield limit
    except asyncio.CancelledError:
        if limit.expired() and task.cancelling() <= cancels:
            raise TimeoutError from None
        raise


timeout: Final[Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]]] = (
    asyncio.timeout if sys.version_info >= (3, 11, 3) else _timeout
)
"""`asyncio.timeout(limit_s)`, which raises TimeoutError at its limit.

Until Python 3.11.2, `asyncio.timeout` raises CancelledError instead if its task was cancelled before. A cleanup that
retries, and waits with a limit before each attempt, would end at its first limit.
"""
