"""High watermarks, recovery points and log starts to disk, every so often and never on a path that somebody waits
for (rules R5, T5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tidemark.core.replica import ReplicaView
from tidemark.model import Offset, TidemarkError, TopicPartition
from tidemark.ports import Logs

_log = logging.getLogger(__name__)

_OPEN_ROLES = frozenset({"leader", "follower", "none"})


class Checkpoints:
    """One thread for all directories: its syncfs holds up nothing else."""

    def __init__(self, logs: Logs, replicas: Callable[[], Iterable[ReplicaView]], interval_ms: int) -> None:
        self._logs = logs
        self._replicas = replicas
        self._interval_s = interval_ms / 1000
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="checkpoints")

    async def stop(self) -> None:
        """No more; waits for the one under way."""
        if self._task is not None:
            self._task.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Of every replica whose log is open; of the others what was written before stands."""
        return {view.partition: view.high_watermark for view in self._replicas() if view.role in _OPEN_ROLES}

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await loop.run_in_executor(self._thread, self._logs.checkpoint, self.high_watermarks())
            except TidemarkError as error:
                _log.error("a checkpoint failed", extra={"why": error.message})
