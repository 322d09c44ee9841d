# SPDX-License-Identifier: Apache-2.0
"""A log directory that goes offline takes all its replicas with it, idle ones too; the others go on (rule R6).

Whatever thread meets the error takes the directory offline; nobody would notice under a log that is only read, and its
leader would go on to lead. When the last directory is gone the broker leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.model import ErrorCode, TidemarkError
from tidemark.storage.directories.log_manager import LogManager

_LOOK_S: Final = 0.2

_log = logging.getLogger(__name__)


class OfflineDirectories:
    """Looks at the directories while the broker runs; that costs next to nothing.

    Args:
        logs, threads: where the directories and the open logs are.
        show: told how many directories are offline, whenever that changes.
        fail: the last one is: this broker can serve nobody any more.
    """

    def __init__(
        self, logs: LogManager, threads: LogThreads, show: Callable[[int], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._logs = logs
        self._threads = threads
        self._show = show
        self._fail = fail
        self._known: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="offline directories")

    def stop(self) -> None:
        """No more."""
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Fail the replicas of every directory that has gone offline since the last time."""
        directories = self._logs.directories()
        for index, directory in enumerate(directories):
            if directory.failed is None or directory.directory_id in self._known:
                continue
            self._known.add(directory.directory_id)
            count = self._threads.fail_directory(index, TidemarkError(ErrorCode.STORAGE_ERROR, directory.failed))
            extra = {"directory": str(directory.path), "replicas": count}
            _log.error("the replicas in a log directory that went offline are given up", extra=extra)
            self._show(len(self._known))
            if len(self._known) == len(directories):
                sentence = (
                    f"no log directory is left: {directory.failed}. Repair or replace the disk, and start it again"
                )
                self._fail(TidemarkError(ErrorCode.STORAGE_ERROR, sentence))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()
