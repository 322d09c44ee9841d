# SPDX-License-Identifier: Apache-2.0
"""Progress of opening logs: a log line every second after the first second, and gauges by directory (rule T5).

A thread of its own estimates the bytes to scan. A log that is open before its estimate counts with its scanned bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidemark.broker.logs.backlog import Backlog
from tidemark.model import TopicPartition
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.log_manager import LogManager

_LINE_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Opening:
    """A log that is being opened; `remaining_bytes` is 0 until it is estimated."""

    directory: int
    scanned_bytes: int = 0
    remaining_bytes: int = 0


class RecoveryProgress:
    """Safe for threads. New replicas need no recovery and are not counted.

    Args:
        logs: the log manager; its `on_scanned` is set to this object.
        directories: paths of the directories, by index; label values of the gauges.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        logs: LogManager,
        directories: Sequence[str],
        metrics: Metrics,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs = logs
        self._now_s = now_s
        self._lock = threading.Lock()
        self._opening: dict[TopicPartition, _Opening] = {}
        self._estimator = Backlog(1, "recovery-estimate")
        count = metrics.gauge("log_recovery_remaining_logs", "Logs on disk that are not opened yet", ["directory"])
        size = metrics.gauge(
            "log_recovery_remaining_bytes",
            "Bytes past the recovery points that are not checked yet (estimate)",
            ["directory"],
        )
        self._logs_left, self._bytes_left = [0] * len(directories), [0] * len(directories)
        """Values of the gauges, by directory; thousands of logs change them, so the library's locks are avoided."""
        for index, path in enumerate(directories):
            count.labels(path).set_function(partial(self._logs_left.__getitem__, index))
            size.labels(path).set_function(partial(self._bytes_left.__getitem__, index))
        self._begin()
        logs.on_scanned = self._scanned

    def _begin(self) -> None:
        self._since_s = self._logged_s = self._now_s()
        self._submitted = self._opened = self._scanned_bytes = self._remaining_bytes = 0

    @property
    def remaining_logs(self) -> int:
        """Number of logs that are not open yet."""
        return len(self._opening)

    def submitted(self, partition: TopicPartition, directory: int) -> None:
        """Count a log of this directory that is queued for opening."""
        with self._lock:
            if not self._opening:
                self._begin()
            self._opening[partition] = _Opening(directory)
            self._submitted += 1
            self._logs_left[directory] += 1
        self._estimator.add(partial(self._estimate, partition))

    def opened(self, partition: TopicPartition) -> None:
        """Count a log that is open, or that cannot be opened."""
        with self._lock:
            opening = self._opening.pop(partition, None)
            if opening is None:
                return
            self._opened += 1
            self._logs_left[opening.directory] -= 1
            self._set_remaining(opening, 0)
            line = self._line()
        _log_line(line)

    def stop(self) -> None:
        """Stop estimating."""
        self._estimator.stop()

    def _estimate(self, partition: TopicPartition) -> None:
        if partition not in self._opening:
            return
        size_bytes = self._logs.bytes_to_scan(partition)
        with self._lock:
            opening = self._opening.get(partition)
            if opening is not None:
                self._set_remaining(opening, size_bytes - opening.scanned_bytes)

    def _scanned(self, partition: TopicPartition, size_bytes: int) -> None:
        with self._lock:
            opening = self._opening.get(partition)
            if opening is None:
                return
            opening.scanned_bytes += size_bytes
            self._scanned_bytes += size_bytes
            self._set_remaining(opening, opening.remaining_bytes - size_bytes)
            line = self._line()
        _log_line(line)

    def _set_remaining(self, opening: _Opening, size_bytes: int) -> None:
        more = (size_bytes if size_bytes > 0 else 0) - opening.remaining_bytes
        if more:
            opening.remaining_bytes += more
            self._remaining_bytes += more
            self._bytes_left[opening.directory] += more

    def _line(self) -> str | None:
        """The log line that is due, if any; called with the lock held."""
        now_s = self._now_s()
        elapsed_s = now_s - self._since_s
        if not self._opening:
            if elapsed_s < _LINE_S:
                return None
            scanned = f", {_gigabytes(self._scanned_bytes)} GB scanned" if self._scanned_bytes else ""
            return f"opened all {self._opened:,} logs in {elapsed_s:.1f} s{scanned}"
        if now_s - self._logged_s < _LINE_S:
            return None
        self._logged_s = now_s
        parts = [f"opened {self._opened:,} of {self._submitted:,} logs"]
        done = self._opened / self._submitted
        expected_bytes = self._scanned_bytes + self._remaining_bytes
        if expected_bytes:
            parts.append(f"{_gigabytes(self._scanned_bytes)} of {_gigabytes(expected_bytes)} GB scanned")
            done = max(done, self._scanned_bytes / expected_bytes)  # an estimate without an index is too high
        if done:
            parts.append(f"about {elapsed_s / done - elapsed_s:.0f} s to go")
        return ", ".join(parts)


def _log_line(line: str | None) -> None:
    if line is not None:
        _log.info(line)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f}"
