# SPDX-License-Identifier: Apache-2.0
"""Measures how late the event loop runs a timer of 25 ms, and a thread samples the loop's stack ten times a second.

The timer's delay is the delay of any callback that was due then, so its shares are shares of time. The measured stall
is up to one timer period too short. The loop's selector counts the timers that fall due while the loop waits, so that
they do not wake an idle process. A stop of the whole process during a wait is up to that wait too short.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import select
import selectors
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
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
_FOUND_MAX: Final = 1024
"""Largest number of ready descriptors of one poll; the next poll finds the others."""

_log = logging.getLogger(__name__)


class Tally(Collector):
    """A histogram for one writing thread, at a tenth of the cost of a histogram with a lock, with the longest value of
    a minute.

    Args:
        name: name of the histogram, with prefix and unit; the longest is `<name without "_seconds">_longest_seconds`.
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
        """Add one value to the histogram."""
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

    def add_on_time(self, count: int, now_s: float) -> None:
        """Add `count` values of 0 to the histogram."""
        self._counts[0] += count
        self._now_s = now_s

    def longest_s(self) -> float:
        """The longest value of the last minute; values below the first bucket count as 0."""
        return next((seconds for when_s, seconds in tuple(self._longest) if when_s >= self._now_s - WINDOW_S), 0.0)

    def collect(self) -> Iterable[Metric]:
        """Return the current histogram and the longest stall."""
        counts, total, buckets = tuple(self._counts), 0, []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._doc, buckets=buckets, sum_value=self._sum_s)
        name = self._name.removesuffix("_seconds") + "_longest_seconds"
        yield GaugeMetricFamily(name, f"{self._doc}: the longest of the last minute", value=self.longest_s())


class WatchedSelector(selectors.DefaultSelector):
    """Reports to the meter of an event loop when that loop waits.

    Attributes:
        meter: meter of stalls; None: the loop is not measured.
        waits: number of waits, as a metric.
    """

    def __init__(self) -> None:
        super().__init__()
        self.meter: StallMeter | None = None
        self.waits = _Waits()
        self._find = self._by_epoll if isinstance(self, selectors.EpollSelector) else super().select

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Like the base class, with a shorter wait if the meter's timer is overdue."""
        meter = self.meter
        if meter is not None:
            timeout = meter.about_to_wait(timeout)
        if timeout is not None and timeout <= 0:
            return self._find(0)
        self.waits.count += 1
        found = self._find(timeout)
        if meter is not None:
            meter.woke()
        return found

    def _by_epoll(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Like the base class, in a third of its calls: the event loop of a leader selects 14 times a record."""
        this: Any = self  # `_fd_to_key` and `_selector` are the base class's own
        keys: dict[int, selectors.SelectorKey] = this._fd_to_key
        found = []
        for fd, event in this._selector.poll(timeout, _FOUND_MAX):
            if fd in keys:
                key = keys[fd]
                is_input = selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                is_output = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                found.append((key, (is_input | is_output) & key.events))
        return found


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that a `StallMeter` can measure."""

    def __init__(self) -> None:
        self.selector = WatchedSelector()
        super().__init__(self.selector)
        self.time = time.monotonic  # type: ignore[method-assign]  # as the base class, without a call of Python's


def run_watched(main: Coroutine[Any, Any, int]) -> int:
    """`asyncio.run` on a `WatchedLoop`."""
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(main)


class _Waits(Collector):
    def __init__(self) -> None:
        self.count = 0

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily("tidemark_event_loop_waits", "Waits of the event loop for work", value=self.count)


class StallMeter:
    """Measures one event loop, from `start` to `stop`, both called on that loop.

    The timer is added to the loop only when it is overdue, because the loop was busy or the process did not run.

    Attributes:
        lateness: delay of the timer.
        busy: upper bound of this process's CPU time in that delay. The machine ran other processes, or had stopped this
            one, in the remaining time.
        collections: pauses for garbage collection.
        due_s: when the timer is due next, by the loop's clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: WatchedSelector) -> None:
        now_s = loop.time()
        self.lateness = Tally(
            "tidemark_event_loop_stall_seconds", "Delay with which the event loop runs a task that is due", now_s
        )
        self.busy = Tally("tidemark_event_loop_stall_busy_seconds", "CPU time of this process within a stall", now_s)
        self.collections = Tally("tidemark_gc_pause_seconds", "Pauses for garbage collection", now_s)
        self.due_s = now_s + PERIOD_S
        self._loop = loop
        self._selector = selector
        self._thread_id = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._waits_until_s: float | None = None
        """The time at which the present wait ends without an event; None: the loop does not wait."""
        self._cpu_s = 0.0
        self._collecting_since_s = 0.0
        self._collecting_s = 0.0
        self._where: tuple[float, str] = (0.0, "")
        self._lines: deque[float] = deque(maxlen=_LINES_A_MINUTE)
        self._running = threading.Lock()
        """Lock that is held from `start` to `stop`; a wait for a lock takes less than a wait for an event."""
        self._watch = threading.Thread(target=self._look, name="event loop watch", daemon=True)

    def collectors(self) -> Sequence[Collector]:
        """The metric collectors of the stall monitor, for a registry."""
        return self.lateness, self.busy, self.collections, self._selector.waits

    def start(self) -> None:
        """Start the timer and the sampling thread."""
        gc.callbacks.append(self._on_collection)
        self._begin_period(self._loop.time())
        self._selector.meter = self
        self._running.acquire()
        self._watch.start()

    def stop(self) -> None:
        """Stop the timer and the sampling thread."""
        gc.callbacks.remove(self._on_collection)
        self._selector.meter = None
        if self._timer is not None:
            self._timer.cancel()
        self._running.release()
        self._watch.join()

    def about_to_wait(self, timeout_s: float | None) -> float | None:
        """The time for which the loop may wait: 0 if the timer is overdue."""
        if timeout_s is not None and timeout_s <= 0 and self._timer is not None:
            return timeout_s
        now_s = self._loop.time()
        if now_s >= self.due_s:
            self._run_timer()
            return 0
        if timeout_s is None or timeout_s > 0:
            self._waits_until_s = math.inf if timeout_s is None else now_s + timeout_s
        return timeout_s

    def woke(self) -> None:
        """Note the end of a wait: the timers that were due in this time were not late."""
        until_s, self._waits_until_s = self._waits_until_s, None
        now_s = self._loop.time()
        if until_s is None or now_s < self.due_s:
            return
        on_time = int((min(now_s, until_s) - self.due_s) / PERIOD_S) + 1 if until_s >= self.due_s else 0
        if on_time:
            self.lateness.add_on_time(on_time, now_s)
            self.busy.add_on_time(on_time, now_s)
            self._begin_period(self.due_s + (on_time - 1) * PERIOD_S)
        if now_s >= self.due_s:
            self._run_timer()

    def _run_timer(self) -> None:
        """Run the timer where the loop runs overdue timers: after the callbacks of input that is ready."""
        if self._timer is None:
            self._timer = self._loop.call_at(self.due_s, self._on_timer)

    def _begin_period(self, now_s: float) -> None:
        self.due_s = now_s + PERIOD_S
        self._cpu_s = time.process_time()
        self._collecting_s = 0.0

    def _on_timer(self) -> None:
        self._timer = None
        now_s, cpu_s = self._loop.time(), time.process_time()
        late_s = now_s - self.due_s
        busy_s = min(late_s, cpu_s - self._cpu_s)
        self.lateness.add(late_s, now_s)
        self.busy.add(busy_s, now_s)
        if late_s >= LOUD_S:
            self._tell(late_s, busy_s, now_s)
        self._begin_period(now_s)

    def _tell(self, late_s: float, busy_s: float, now_s: float) -> None:
        if len(self._lines) == _LINES_A_MINUTE and self._lines[0] > now_s - WINDOW_S:
            return
        self._lines.append(now_s)
        seen_s, where = self._where
        extra = {
            "late_ms": round(late_s * 1000),
            "busy_ms": round(busy_s * 1000),
            "collecting_ms": round(self._collecting_s * 1000),
            "where": where if seen_s >= self.due_s else "",
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
        """Sample the loop's stack while the timer is overdue, on a thread of its own."""
        while not self._running.acquire(timeout=_LOOK_S):
            self.note_where()

    def note_where(self) -> None:
        """Remember the loop's stack if the timer is overdue, and the loop does not wait."""
        now_s = self._loop.time()
        if self._waits_until_s is None and now_s - self.due_s > LOUD_S / 2:
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
