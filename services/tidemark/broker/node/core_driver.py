# SPDX-License-Identifier: Apache-2.0
"""Carries events into the core and effects out, in order, on the event loop (design section 2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.effects import Effect
from tidemark.core.replication.events import Event, Tick
from tidemark.ports import Clock

_SLICE_S: Final = 0.004
"""A burst of events gives the loop back after so long, so that streams and timers keep going."""
_TICK_S: Final = 0.1

_log = logging.getLogger(__name__)

EffectHandler = Callable[[Any], None]


class BrokerDriver:
    """One queue of events, one core; an effect's handler may submit events, which wait their turn.

    An exception out of the core or of a handler is a mistake of ours after which the core cannot be trusted: `failed`
    is completed with it and no event is taken in any more, so that the process ends and starts anew from its logs.
    """

    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self.core = core
        self.failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
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
        """No more ticks; what still comes in is carried out."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def submit(self, event: Event) -> None:
        """Take in an event now, or right after those before it."""
        self._events.append(event)
        if not self._draining:
            self._draining = True
            self._drain()

    def submit_all(self, events: Iterable[Event]) -> None:
        """Take in some events, in order."""
        self._events.extend(events)
        if not self._draining:
            self._draining = True
            self._drain()

    def fail(self, error: BaseException) -> None:
        """Something is wrong with this process itself: stop taking part."""
        if not self.failed.done():
            _log.critical("the broker cannot go on", exc_info=error)
            self.failed.set_exception(error)
            self.failed.exception()  # whoever waits for it sees it; nobody has to
        self._draining = True
        self._events.clear()
        self.stop()

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
        except Exception as error:  # noqa: BLE001 - see the class
            self.fail(error)
            return
        self._draining = self.failed.done()

    def _on_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)
        self.submit(Tick())
