# SPDX-License-Identifier: Apache-2.0
"""Threads that open logs: a fixed number for each log directory, so that no disk waits for another (rule T5).

New replicas have separate threads, so they do not wait until gigabytes of other logs have been scanned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tidemark.broker.logs.backlog import Backlog
from tidemark.broker.logs.recovery_progress import RecoveryProgress
from tidemark.model import TopicPartition
from tidemark.ports import Logs

THREADS_PER_DIRECTORY: Final = 2
"""Default of `num.recovery.threads.per.data.dir`."""
_OTHERS: Final = 2


class RecoveryThreads:
    """Opens logs for the event loop, and reports to a `RecoveryProgress` if there is one."""

    def __init__(
        self, logs: Logs, threads_per_directory: int = THREADS_PER_DIRECTORY, progress: RecoveryProgress | None = None
    ) -> None:
        self._logs = logs
        self._progress = progress
        self._threads_per_directory = threads_per_directory
        self._by_directory: dict[int, Backlog] = {}
        self._others = Backlog(_OTHERS, "open-new")

    def open(self, partition: TopicPartition, act: Callable[[], None]) -> None:
        """Open a log by `act`, which must not raise."""
        directory = self._logs.directory_of(partition)
        if directory is None:
            self._others.add(act)
            return
        backlog = self._by_directory.get(directory)
        if backlog is None:
            backlog = self._by_directory[directory] = Backlog(self._threads_per_directory, f"open-{directory}")
        if self._progress is None:
            backlog.add(act)
        else:
            self._progress.submitted(partition, directory)
            backlog.add(partial(self._open, partition, act, self._progress))

    def run(self, act: Callable[[], None]) -> None:
        """Run another call that may wait for a disk."""
        self._others.add(act)

    def stop(self) -> None:
        """Cancel queued openings; blocks until the running ones are done."""
        backlogs = (*self._by_directory.values(), self._others)
        for backlog in backlogs:
            backlog.drop()
        for backlog in backlogs:
            backlog.stop()
        if self._progress is not None:
            self._progress.stop()

    @staticmethod
    def _open(partition: TopicPartition, act: Callable[[], None], progress: RecoveryProgress) -> None:
        try:
            act()
        finally:
            progress.opened(partition)
