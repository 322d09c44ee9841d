# SPDX-License-Identifier: Apache-2.0
"""The driver of `BrokerCore`: feeds events in and carries effects out, in order, over ports only."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.effects import Effect
from tidemark.core.replication.events import Event, Tick
from tidemark.ports import Clock, Scheduler

_SLICE_S: Final = 0.004
"""Longest time for a burst of events; then the scheduler runs other tasks, so that streams and timers continue."""
_TICK_MS: Final = 100

_log = logging.getLogger(__name__)

EffectHandler = Callable[[Any], None]


class BrokerDriver:
    """One queue of events, one core. Events submitted by an effect's handler are queued.

    An exception of the core or of a handler is a defect, after which the core's state is not reliable. The driver then
    handles no further event, and `on_failure` ends the process, which restarts from its logs.

    Args:
        scheduler: of this driver alone; `stop` cancels all its tasks.
        on_failure: called with the first error only.
        stopwatch_s: seconds on any clock, for the slices of the queue.
    """

    def __init__(
        self,
        core: BrokerCore,
        clock: Clock,
        scheduler: Scheduler,
        on_failure: Callable[[BaseException], None],
        stopwatch_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.core = core
        self._clock = clock
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._stopwatch_s = stopwatch_s
        self._handlers: dict[type, EffectHandler] = {}
        self._events: deque[Event] = deque()
        self._draining = False
        self._failed = False

    def wire(self, handlers: Mapping[type[Effect], EffectHandler]) -> None:
        """Register the handler of each kind of effect."""
        self._handlers.update(handlers)

    def start(self) -> None:
        """Start the periodic Tick events."""
        self._scheduler.spawn(self._tick(), self.fail)

    async def stop(self) -> None:
        """End the ticks. Events submitted later are still handled."""
        await self._scheduler.stop()

    def submit(self, event: Event) -> None:
        """Handle an event now, or after the queued events."""
        self._events.append(event)
        if not self._draining:
            self._draining = True
            self._drain()

    def submit_all(self, events: Iterable[Event]) -> None:
        """Handle some events in order."""
        self._events.extend(events)
        if not self._draining:
            self._draining = True
            self._drain()

    def fail(self, error: BaseException) -> None:
        """Handle no further event: this process cannot continue."""
        self._draining = True
        self._events.clear()
        if not self._failed:
            self._failed = True
            _log.critical("the broker cannot continue", exc_info=error)
            self._on_failure(error)

    def _drain(self) -> None:
        now_s = self._stopwatch_s
        until_s = now_s() + _SLICE_S
        events, handle, handlers, now_ms = self._events, self.core.handle, self._handlers, self._clock.now_ms
        try:
            while events:
                for effect in handle(events.popleft(), now_ms()):
                    handlers[type(effect)](effect)
                if events and now_s() > until_s:
                    self._scheduler.call_soon(self._drain)
                    return
        except Exception as error:  # noqa: BLE001 - see the class
            self.fail(error)
            return
        self._draining = self._failed

    async def _tick(self) -> None:
        """One Tick each period; the time of processing a Tick is part of the period."""
        handling_ms = 0
        while not self._failed:
            await self._scheduler.sleep_ms(max(0, _TICK_MS - handling_ms))
            began_s = self._stopwatch_s()
            self.submit(Tick())
            handling_ms = round(1000 * (self._stopwatch_s() - began_s))
