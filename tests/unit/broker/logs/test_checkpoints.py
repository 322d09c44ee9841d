# SPDX-License-Identifier: Apache-2.0
"""Checkpoints continue after errors of a disk; an unexpected error ends the broker."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemark.broker.logs.checkpoints import Checkpoints
from tidemark.model import ErrorCode, TidemarkError


class Logs:
    """The outcome of each checkpoint."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)

    def checkpoint(self, high_watermarks: Any) -> None:
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome


async def test_a_full_disk_is_retried_and_a_defect_is_passed_to_the_broker() -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    defect = RuntimeError("dictionary changed size during iteration")
    logs: Any = Logs(TidemarkError(ErrorCode.DISK_FULL, "no space"), None, defect)
    checkpoints = Checkpoints(logs, dict, 1, failure.set_result)
    checkpoints.start()
    async with asyncio.timeout(10):
        assert await failure is defect
    assert not logs.outcomes
    await checkpoints.stop()
