# SPDX-License-Identifier: Apache-2.0
"""Time outside the pure core: the clock behind `ports.Clock`, and time limits of asyncio tasks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
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


class _Timeout:
    def __init__(self, limit_s: float | None) -> None:
        self._limit = asyncio.timeout(limit_s)

    async def __aenter__(self) -> asyncio.Timeout:
        self._task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancels = self._task.cancelling()
        return await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._limit.__aexit__(kind, error, traceback)
        if kind is asyncio.CancelledError and self._limit.expired() and self._task.cancelling() <= self._cancels:
            raise TimeoutError from None


timeout: Final[Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]]] = (
    asyncio.timeout if sys.version_info >= (3, 11, 3) else _Timeout
)
"""`asyncio.timeout(limit_s)`, which raises TimeoutError at its limit.

Until Python 3.11.2, `asyncio.timeout` raises CancelledError instead if its task was cancelled before. A cleanup that
retries, and waits with a limit before each attempt, would end at its first limit.
"""
