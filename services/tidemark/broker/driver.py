"""Carries events into the core and effects out, in order, on the event loop (design section 2)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidemark.core.broker import BrokerCore
from tidemark.core.effects import Effect
from tidemark.core.events import Event, Tick
from tidemark.ports import Clock

_SLICE_S: Final = 0.004
"""A burst of events gives the loop back after so long, so that streams and timers keep going."""
_TICK_S: Final = 0.1

EffectHandler = Callable[[Any], None]


class BrokerDriver:
    """One queue of events, one core; an effect's handler may submit events, which wait their turn."""

    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self.core = core
        self._clock = clock
        self._handlers: dict[type, EffectHandler] = {}
        self._events: deque[Event] = deque()
        self._draining = False
        self._tick: asyncio.TimerHandle | None = None

    def wire(self, handlers: Mapping[type[Effect], EffectHandler]) -> None:
        """Say who carries out which effects."""
        self._handlers.update(handlers)

    def start(self) -> None:
        """Begin to tick."""
        self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)

    def stop(self) -> None:
        """No more ticks."""
        if self._tick is not None:
            self._tick.cancel()

    def submit(self, event: Event) -> None:
        """Take in an event now, or right after those before it."""
        self._events.append(event)
        if not self._draining:
            self._draining = True
            self._drain()

    def _drain(self) -> None:
        until_s = time.perf_counter() + _SLICE_S
        events, handle, handlers, now_ms = self._events, self.core.handle, self._handlers, self._clock.now_ms
        try:
            while events:
                for effect in handle(events.popleft(), now_ms()):
                    handlers[type(effect)](effect)
                if events and time.perf_counter() > until_s:
                    asyncio.get_running_loop().call_soon(self._drain)
                    return
        except BaseException:
            self._draining = False
            raise
        self._draining = False

    def _on_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)
        self.submit(Tick())
