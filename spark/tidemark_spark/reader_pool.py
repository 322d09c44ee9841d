# SPDX-License-Identifier: Apache-2.0
"""Readers that the tasks of one worker process use one after another, with their connections and metadata.

A task does not share its reader: a concurrent task gets another reader. A reader returns to the pool only after a
complete read. After an error, or a cancelled read with a fetch in flight, the reader is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from tidemark.client.consuming.range_reader import RangeReader

IDLE_S: Final = 30.0
"""Time after which an unused reader is closed. Spark ends an unused worker process after a minute."""


class _Idle(NamedTuple):
    reader: RangeReader
    since_s: float


class ReaderPool:
    """The unused readers of this process, by key; safe for several threads.

    A forked process starts with an empty pool: it neither uses nor closes the connections of its parent.

    Args:
        idle_s: seconds after which an unused reader is closed.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[_Idle]] = {}
        self._timer: threading.Timer | None = None
        self._of_parents: list[object] = []
        """References to readers from before a fork: without them, Python would close the connections of the parent."""
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @contextlib.contextmanager
    def lend(self, key: Hashable, open_reader: Callable[[], RangeReader]) -> Iterator[RangeReader]:
        """Lend an unused reader of this key, or else a new reader.

        Args:
            key: readers of equal keys are exchangeable.
            open_reader: opens a reader of this key.
        """
        reader, process = self._take(key) or open_reader(), os.getpid()
        try:
            yield reader
        except BaseException:
            self._drop(reader, process)
            raise
        self._put(key, reader, process)

    def close(self) -> None:
        """Close all unused readers of the pool."""
        self._close_idle(time.monotonic())

    def _take(self, key: Hashable) -> RangeReader | None:
        with self._lock:
            found = self._idle.get(key)
            return found.pop().reader if found else None

    def _put(self, key: Hashable, reader: RangeReader, process: int) -> None:
        if process != os.getpid():
            self._of_parents.append(reader)
            return
        with self._lock:
            self._idle.setdefault(key, []).append(_Idle(reader, time.monotonic()))
            if self._timer is None:
                self._start_timer(self._idle_s)

    def _drop(self, reader: RangeReader, process: int) -> None:
        if process == os.getpid():
            reader.close()
        else:
            self._of_parents.append(reader)

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self._close_idle(time.monotonic() - self._idle_s)
        with self._lock:
            self._timer = None
            waiting = [one.since_s for readers in self._idle.values() for one in readers]
            if waiting:
                self._start_timer(max(0.0, min(waiting) + self._idle_s - time.monotonic()))

    def _close_idle(self, until_s: float) -> None:
        """Close the readers that were last used until a time of time.monotonic()."""
        with self._lock:
            old = [one.reader for readers in self._idle.values() for one in readers if one.since_s <= until_s]
            self._idle = {
                key: kept
                for key, readers in self._idle.items()
                if (kept := [one for one in readers if one.since_s > until_s])
            }
        for reader in old:
            reader.close()

    def _forget(self) -> None:
        """Start again in a forked process, where the timer and the holder of the lock do not exist."""
        self._of_parents.append(self._idle)
        self._lock = threading.Lock()
        self._idle = {}
        self._timer = None
