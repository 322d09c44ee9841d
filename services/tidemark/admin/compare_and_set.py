# SPDX-License-Identifier: Apache-2.0
"""Changes a node that other requests change, too: reads it, computes the change, and writes if the node is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tidemark.model import ErrorCode, TidemarkError

Changed = TypeVar("Changed")
_RACES_MAX: Final = 100


async def compare_and_set(attempt: Callable[[], Awaitable[Changed | None]], node: str) -> Changed:
    """The result of the first attempt that is not None, which stands for a node that has changed since it was read.

    Args:
        attempt: reads, and writes with the version that it read.
        node: the content in plain words, for the error.

    Raises:
        TidemarkError: REQUEST_TIMED_OUT if other requests kept changing the node; else the error of an attempt.
    """
    for _ in range(_RACES_MAX):
        changed = await attempt()
        if changed is not None:
            return changed
    sentence = f"other requests kept changing the {node}; nothing was changed: retry"
    raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
