# SPDX-License-Identifier: Apache-2.0
"""High watermarks, recovery points and log starts to disk, every so often and never on a path that somebody waits
for (rules R5, T5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.ports import Logs

_log = logging.getLogger(__name__)


class Checkpoints:
    """One thread for all directories: its syncfs holds up nothing else.

    Args:
        high_watermarks: of every replica whose log is open; of the others what was written before stands.
        on_failure: told what ended them, if anything does: without checkpoints no space is ever given back.
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
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="checkpoints")
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """No more; waits for the one under way."""
        if self._task is not None:
            self._task.cancel()
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
                full = error.code is ErrorCode.DISK_FULL  # the next one tries again, and says nothing new
