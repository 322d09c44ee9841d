# SPDX-License-Identifier: Apache-2.0
"""Polling until a condition holds or a timeout ends, with growing pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.clock import timeout
from tidemark.zookeeper.store import MetadataStore

_FIRST_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.25

Found = TypeVar("Found")


async def poll(look: Callable[[], Awaitable[Found | None]], timeout_s: float) -> Found | None:
    """Return the first result of `look` that is not None; None after the timeout.

    A lost ZooKeeper connection counts as no result: the controller continues the work meanwhile.
    """
    pause_s = _FIRST_PAUSE_S
    try:
        async with timeout(timeout_s):
            while True:
                try:
                    found = await look()
                except TidemarkError as error:
                    if error.code is not ErrorCode.COORDINATION_UNAVAILABLE:
                        raise
                    found = None
                if found is not None:
                    return found
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    except TimeoutError:
        return None


async def why_late(store: MetadataStore) -> str:
    """Say why the controller has not carried out a request in time."""
    try:
        controller = await store.controller()
    except TidemarkError:
        return "ZooKeeper does not answer"
    return "no controller is active" if controller is None else "the controller continues"
