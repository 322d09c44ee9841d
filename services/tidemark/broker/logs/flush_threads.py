# SPDX-License-Identifier: Apache-2.0
"""One flush thread for each log directory: a slow fdatasync delays no append (rule R3).

One fdatasync covers all appends to a log before it began; later appends wait for the next one. Logs of group-commit
topics are flushed immediately, those of interval topics when they are due, in turns when both wait. A failed flush is
not retried: its replica has failed. A flush that had no effect, as with too many open files, is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from tidemark.broker.logs.open_log import GROUP_COMMIT, OS, OpenReplica
from tidemark.model import ErrorCode, Offset, TidemarkError

Flushed = Callable[[OpenReplica, int, Offset, float], None]
"""Replica, its `truncations` when the flush began, flushed offset (exclusive), duration in seconds."""


class FlushThreads:
    """The threads that flush appended records.

    Args:
        directories: number of log directories.
        flushed: function that a thread calls after each flush.
        failed: function that a thread calls after a failed flush.
        broken: called by a thread that ends with an unexpected error.
    """

    def __init__(
        self,
        directories: int,
        flushed: Flushed,
        failed: Callable[[OpenReplica, TidemarkError], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._flushed = flushed
        self._failed = failed
        self._broken = broken
        self._waiting = [_Waiting() for _ in range(directories)]
        self._threads = [
            threading.Thread(target=self._run, args=(waiting,), name=f"flush-{index}", daemon=True)
            for index, waiting in enumerate(self._waiting)
        ]

    def start(self) -> None:
        """Start the flush threads of all log directories."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Flush all waiting logs, due or not, and end; blocks until that is done."""
        for waiting in self._waiting:
            waiting.end()
        for thread in self._threads:
            thread.join()

    def written(self, replica: OpenReplica) -> None:
        """Note, on any thread, that the log may have records to flush. Has no effect if the flush policy leaves flushes
        to the kernel.
        """
        if replica.flush_policy != OS:
            self._waiting[replica.directory].add(replica)

    def settings_changed(self, replica: OpenReplica) -> None:
        """Flush earlier appends by the new settings."""
        if replica.flush_policy != OS:
            self._waiting[replica.directory].add(replica, again=True)

    def _run(self, waiting: _Waiting) -> None:
        try:
            while (replica := waiting.take()) is not None:
                if not replica.failed:
                    self._flush(replica, waiting)
        except BaseException as error:  # noqa: BLE001 - passed to `broken`: a thread must not end unnoticed
            self._broken(error)

    def _flush(self, replica: OpenReplica, waiting: _Waiting) -> None:
        truncations = replica.truncations
        began_s = time.perf_counter()
        try:
            offset = replica.log.flush()
        except TidemarkError as error:
            if error.code is not ErrorCode.DISK_FULL:
                self._failed(replica, error)
            else:
                waiting.add_later(replica, _RETRY_S)
        else:
            self._flushed(replica, truncations, offset, time.perf_counter() - began_s)


class _Waiting:
    """Replicas that wait for one thread, each once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._now: dict[OpenReplica, None] = {}
        self._later: list[tuple[float, int, OpenReplica]] = []
        self._in_later: set[OpenReplica] = set()
        self._number = count()
        self._ending = False
        self._took_later = False

    def add(self, replica: OpenReplica, *, again: bool = False) -> None:
        """`again`: set the due time by the current interval, even if one was set before."""
        with self._changed:
            if again:
                self._in_later.discard(replica)
            if replica.flush_policy == GROUP_COMMIT:
                self._now[replica] = None
            else:
                self.add_later(replica, replica.flush_interval_s)
            self._changed.notify()

    def add_later(self, replica: OpenReplica, delay_s: float) -> None:
        """Flush after the delay, unless a time is set already; at the end, a flush is not retried."""
        with self._changed:
            if not self._ending and replica not in self._in_later:
                self._in_later.add(replica)
                heappush(self._later, (time.monotonic() + delay_s, next(self._number), replica))

    def end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()

    def take(self) -> OpenReplica | None:
        """Wait for the next replica to flush; None at the end."""
        with self._changed:
            while True:
                wait_s = self._later[0][0] - time.monotonic() if self._later else None
                is_due = wait_s is not None and (wait_s <= 0 or self._ending)
                if is_due and not (self._now and self._took_later):
                    self._took_later = True
                    replica = heappop(self._later)[2]
                    self._in_later.discard(replica)
                    return replica
                if self._now:
                    self._took_later = False
                    replica = next(iter(self._now))
                    del self._now[replica]
                    return replica
                if self._ending:
                    return None
                self._changed.wait(_WAIT_MAX_S if wait_s is None else min(wait_s, _WAIT_MAX_S))


_WAIT_MAX_S: Final = 3600.0
_RETRY_S: Final = 1.0
