# SPDX-License-Identifier: Apache-2.0
"""Time limits in tasks that were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tidemark.runtime import clock

Limit = Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]]

each_limit = pytest.mark.parametrize("limit", [clock.timeout, clock._Timeout], ids=["this Python", "Python 3.11.2"])


class Cleanup:
    """A task that was cancelled once, and cleans up within a limit."""

    def __init__(self, limit: Limit, limit_s: float | None, *, done: bool = False) -> None:
        self._limit, self._limit_s = limit, limit_s
        self._work = asyncio.Event()
        if done:
            self._work.set()
        self.started, self.began = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        try:
            self.started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.began.set()
            try:
                async with self._limit(self._limit_s):
                    await self._work.wait()
            except TimeoutError:
                return "timed out"
        return "done"

    async def cancel(self) -> None:
        await self.started.wait()
        self.task.cancel()
        await self.began.wait()


@each_limit
@pytest.mark.parametrize(
    ("limit_s", "done", "outcome"), [(0.01, False, "timed out"), (60.0, True, "done"), (None, True, "done")]
)
async def test_a_limit_in_a_cancelled_task_times_out(
    limit: Limit, limit_s: float | None, *, done: bool, outcome: str
) -> None:
    cleanup = Cleanup(limit, limit_s, done=done)
    await cleanup.cancel()
    assert await cleanup.task == outcome


@each_limit
@pytest.mark.parametrize("limit_s", [60.0, None])
async def test_a_second_cancellation_ends_a_cleanup(limit: Limit, limit_s: float | None) -> None:
    cleanup = Cleanup(limit, limit_s)
    await cleanup.cancel()
    cleanup.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cleanup.task
    assert cleanup.task.cancelling() == 2
