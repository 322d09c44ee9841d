# SPDX-License-Identifier: Apache-2.0
"""Periodic checkpoints of high watermarks, recovery points and log start offsets; no request waits for them (rules R5,
T5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.ports import Logs
from tidemark.runtime.scheduler import BackgroundTask
from tidemark.runtime.started_pool import started_pool

_log = logging.getLogger(__name__)


class Checkpoints:
    """Writes the checkpoints of all directories on one thread, so that its syncfs delays no other work.

    Args:
        high_watermarks: by partition, of all open logs; checkpoints of other replicas do not change.
        on_failure: called with an unexpected error. Without checkpoints no disk space is freed.
    """

    def __init__(
        self,
        logs: Logs,
        high_watermarks: Callable[[], Mapping[TopicPartition, Offset]],
        interval_ms: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._high_watermarks = high_watermarks
        self._interval_s = interval_ms / 1000
        self._thread = started_pool(1, "checkpoint")
        self._task = BackgroundTask(on_failure)

    def start(self) -> None:
        """Start the periodic checkpoints."""
        self._task.start(self._run(), "checkpoints")

    async def stop(self) -> None:
        """Stop; waits for a running checkpoint."""
        await self._task.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        full = False
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await loop.run_in_executor(self._thread, self._logs.checkpoint, self._high_watermarks())
                full = False
            except TidemarkError as error:
                if not full:
                    _log.error("a checkpoint failed", extra={"why": error.message})
                full = error.code is ErrorCode.DISK_FULL  # the next attempt does not log the same error again
