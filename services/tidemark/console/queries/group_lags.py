# SPDX-License-Identifier: Apache-2.0
"""The lags of several groups, each asked at its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tidemark.client.aio import Groups
from tidemark.client.aio.groups import GroupDescription
from tidemark.model import ErrorCode, TidemarkError

AT_ONCE: Final = 4
"""Descriptions in flight. A description of a group with 1,000 partitions keeps the event loop for 10 ms, and other
pages wait.
"""


async def describe_each(groups: Groups, names: Sequence[str]) -> dict[str, GroupDescription]:
    """The groups by id, without those that have been deleted or whose coordinator does not answer now.

    Raises:
        TidemarkError: AUTHENTICATION_FAILED.
    """

    turns = asyncio.Semaphore(AT_ONCE)

    async def describe(name: str) -> GroupDescription | None:
        try:
            async with turns:
                (found,) = await groups.describe_groups([name])
        except TidemarkError as error:
            if error.code is ErrorCode.AUTHENTICATION_FAILED:
                raise
            return None
        return found

    found = await asyncio.gather(*map(describe, names))
    return {one.group: one for one in found if one is not None}
