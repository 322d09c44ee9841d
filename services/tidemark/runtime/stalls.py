# SPDX-License-Identifier: Apache-2.0
"""Measures how late the event loop runs: a timer fires every 25 ms, and a thread samples the loop's stack ten times a
second.

The timer's delay is the delay of any callback that was due then, so its shares are shares of time. The measured stall
is up to one timer period too short.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

PERIOD_S: Final = 0.025
LOUD_S: Final = 0.1
"""Shortest stall that is logged."""
WINDOW_S: Final = 60
BUCKETS_S: Final = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0),
)
_LOOK_S: Final = 0.1
_LINES_A_MINUTE: Final = 20
_FRAMES_MAX: Final = 6
_PACKAGE: Final = "tidemark"

_log = logging.getLogger(__name__)


class Tally(Collector):
    """A histogram for one writing thread, at a tenth of the cost of a locked one, with the longest value of a minute.

    Args:
        name: of the histogram, with prefix and unit; the longest is `<name without "_seconds">_longest_seconds`.
    """

    def __init__(self, name: str, doc: str, now_s: float) -> None:
        self._name = name
        self._doc = doc
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._longest: deque[tuple[float, float]] = deque()
        """(time, duration) pairs; invariant: each duration is longer than all later ones."""
        self._now_s = now_s

    def add(self, seconds: float, now_s: float) -> None:
        """Add one value."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds
        self._now_s = now_s
        longest = self._longest
        while longest and longest[-1][1] <= seconds:
            longest.pop()
        if seconds > BUCKETS_S[0]:
            longest.append((now_s, seconds))
        while longest and longest[0][0] < now_s - WINDOW_S:
            longest.popleft()

    def longest_s(self) -> float:
        """The longest value of the last minute; values below the first bucket count as 0."""
        return next((seconds for when_s, seconds in tuple(self._longest) if when_s >= self._now_s - WINDOW_S), 0.0)

    def collect(self) -> Iterable[Metric]:
        """The present histogram and its longest value."""
        counts, total, buckets = tuple(self._counts), 0, []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._doc, buckets=buckets, sum_value=self._sum_s)
        name = self._name.removesuffix("_seconds") + "_longest_seconds"
        yield GaugeMetricFamily(name, f"{self._doc}: the longest of the last minute", value=self.longest_s())


class StallMeter:
    """Measures one event loop, from `start` to `stop`, both called on that loop.

    Attributes:
        lateness: delay of the timer.
        busy: upper bound of this process's CPU time in that delay; the rest belongs to the machine, which ran
            other processes or had stopped this one.
        collections: pauses for garbage collection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        self.lateness = Tally(
            "tidemark_event_loop_stall_seconds", "How late the event loop runs a task that is due", now_s
        )
        self.busy = Tally("tidemark_event_loop_stall_busy_seconds", "CPU time of this process within a stall", now_s)
        self.collections = Tally("tidemark_gc_pause_seconds", "Pauses for garbage collection", now_s)
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._collecting_since_s = 0.0
        self._collecting_s = 0.0
        self._where: tuple[float, str] = (0.0, "")
        self._lines: deque[float] = deque(maxlen=_LINES_A_MINUTE)
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._look, name="event loop watch", daemon=True)

    def collectors(self) -> Sequence[Collector]:
        """The collectors for a registry."""
        return self.lateness, self.busy, self.collections

    def start(self) -> None:
        """Start the measurement."""
        gc.callbacks.append(self._on_collection)
        self._cpu_s = time.process_time()
        self._wait()
        self._watch.start()

    def stop(self) -> None:
        """Stop the measurement."""
        gc.callbacks.remove(self._on_collection)
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._watch.join()

    def _wait(self) -> None:
        self._due_s = due_s = self._loop.time() + PERIOD_S
        self._timer = self._loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        now_s, cpu_s = self._loop.time(), time.process_time()
        late_s = now_s - self._due_s
        busy_s = min(late_s, cpu_s - self._cpu_s)
        self.lateness.add(late_s, now_s)
        self.busy.add(busy_s, now_s)
        if late_s >= LOUD_S:
            self._tell(late_s, busy_s, now_s)
        self._cpu_s, self._collecting_s = cpu_s, 0.0
        self._wait()

    def _tell(self, late_s: float, busy_s: float, now_s: float) -> None:
        if len(self._lines) == _LINES_A_MINUTE and self._lines[0] > now_s - WINDOW_S:
            return
        self._lines.append(now_s)
        seen_s, where = self._where
        extra = {
            "late_ms": round(late_s * 1000),
            "busy_ms": round(busy_s * 1000),
            "collecting_ms": round(self._collecting_s * 1000),
            "where": where if seen_s >= self._due_s else "",
        }
        _log.warning("event loop stalled", extra=extra)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        now_s = self._loop.time()
        if phase == "start":
            self._collecting_since_s = now_s
            return
        self._collecting_s += now_s - self._collecting_since_s
        self.collections.add(now_s - self._collecting_since_s, now_s)

    def _look(self) -> None:
        """On a thread of its own: sample the loop's stack while the timer is overdue."""
        while not self._stopped.wait(_LOOK_S):
            self.note_where()

    def note_where(self) -> None:
        """Remember the loop's stack if the timer is overdue."""
        now_s = self._loop.time()
        if now_s - self._due_s > LOUD_S / 2:
            frame = sys._current_frames().get(self._thread_id)
            self._where = (now_s, _innermost(frame))


def _innermost(frame: FrameType | None) -> str:
    """Tidemark's innermost frames, callers first: `broker/node/core_driver.py:75 _drain > ...`."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES_MAX:
        code = frame.f_code
        _, ours, path = code.co_filename.rpartition(f"/{_PACKAGE}/")
        if ours:
            found.append(f"{path}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " > ".join(reversed(found))
