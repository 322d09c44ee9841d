# SPDX-License-Identifier: Apache-2.0
"""The end of a watch of connections, at any moment of a wait."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.rpc.limits.connections import ConnectionLimits
from tidemark.rpc.limits.watch import ConnectionWatch

MOMENTS = 8
"""More steps of the loop than lie between an attempt to connect and the end of the wait for one."""


@pytest.mark.parametrize("moment", range(MOMENTS))
async def test_a_watch_stops_also_while_an_attempt_to_connect_wakes_it(moment: int) -> None:
    watch = ConnectionWatch(ConnectionLimits(), frozenset)
    watch.start()
    for _ in range(MOMENTS):
        await asyncio.sleep(0)  # the first look is over, and the watch waits
    watch._wake.set()
    for _ in range(moment):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(watch.stop())
    done, _ = await asyncio.wait([stopping], timeout=5)
    if not done and watch._task is not None:
        watch._task.cancel()
    assert done, "the watch missed its cancellation"
