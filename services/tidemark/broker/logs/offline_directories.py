# SPDX-License-Identifier: Apache-2.0
"""An offline log directory fails all its replicas, idle ones too; the other directories continue (rule R6).

The thread that gets the error takes the directory offline, and its log manager notifies this module. Otherwise the
leader of a log without new appends would keep its leadership. The broker ends when its last directory is offline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.model import ErrorCode, TidemarkError
from tidemark.storage.directories.log_manager import LogManager

_log = logging.getLogger(__name__)


class OfflineDirectories:
    """Fails the replicas of directories while the broker runs.

    Args:
        logs, threads: the directories and the open logs.
        show: called with the number of offline directories when that changes.
        fail: called when all directories are offline: this broker cannot serve any replica.
    """

    def __init__(
        self, logs: LogManager, threads: LogThreads, show: Callable[[int], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._logs = logs
        self._threads = threads
        self._show = show
        self._fail = fail
        self._known: set[str] = set()

    def start(self) -> None:
        """Start to watch for failures; handles earlier failures, too. Called on the event loop."""
        loop = asyncio.get_running_loop()

        def on_failed() -> None:
            loop.call_soon_threadsafe(self.check)

        self._logs.watch_failures(on_failed)
        loop.call_soon(self.check)

    def stop(self) -> None:
        """Stop watching for failures."""
        self._logs.watch_failures(lambda: None)

    def check(self) -> None:
        """Fail the replicas of every directory that went offline since the last check."""
        directories = self._logs.directories()
        for index, directory in enumerate(directories):
            if directory.failed is None or directory.directory_id in self._known:
                continue
            self._known.add(directory.directory_id)
            count = self._threads.fail_directory(index, TidemarkError(ErrorCode.STORAGE_ERROR, directory.failed))
            extra = {"directory": str(directory.path), "replicas": count}
            _log.error("a log directory is offline: its replicas have failed", extra=extra)
            self._show(len(self._known))
            if len(self._known) == len(directories):
                sentence = (
                    f"no log directory is left: {directory.failed}. Repair or replace the disk, then restart the broker"
                )
                self._fail(TidemarkError(ErrorCode.STORAGE_ERROR, sentence))
