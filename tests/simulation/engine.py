# SPDX-License-Identifier: Apache-2.0
"""Simulated time: work in the order of its time, random numbers for each purpose, coroutines without an event loop.

Each purpose has its own generator. So a world without one of its faults differs as little as possible.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Work = Callable[[], None]


class Engine:
    """The clock of one world; all times in the world come from this clock."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0
        self._queue: list[tuple[int, int, Work]] = []
        self._sequence = 0
        self._dice: dict[str, random.Random] = {}
        self._failure: BaseException | None = None
        self.at_end: list[Work] = []
        """Called when the world ends."""

    def fail(self, error: BaseException) -> None:
        """End `run` with the first such error, though the code in between catches it."""
        if self._failure is None:
            self._failure = error

    def dice(self, purpose: str) -> random.Random:
        found = self._dice.get(purpose)
        if found is None:
            found = self._dice[purpose] = random.Random(f"{self.seed}/{purpose}")
        return found

    def at(self, time_ms: int, work: Work) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (time_ms if time_ms > self.now else self.now, self._sequence, work))

    def after(self, delay_ms: int, work: Work) -> None:
        self.at(self.now + delay_ms, work)

    def run(self, until_ms: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now, _, work = heapq.heappop(queue)
            work()
            if self._failure is not None:
                raise self._failure
        self.now = until_ms


class Answer(Generic[T]):
    """A future: settled once, with a value or an error."""

    def __init__(self) -> None:
        self._settled = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._then: Work | None = None

    def settle(self, value: T | None = None, error: Exception | None = None) -> None:
        if self._settled:
            return
        self._settled, self._value, self._error = True, value, error
        if self._then is not None:
            self._then()

    def when_settled(self, then: Work) -> None:
        if self._settled:
            then()
        else:
            self._then = then

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Node:
    """One process: its actions wait while the process is stopped (SIGSTOP), and never happen after its death."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.alive = True
        self.paused = False
        self._held: list[Work] = []

    def run(self, work: Work) -> None:
        if not self.alive:
            return
        if self.paused:
            self._held.append(work)
        else:
            work()

    def after(self, delay_ms: int, work: Work) -> None:
        self.engine.after(delay_ms, lambda: self.run(work))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Messages that arrived meanwhile are handled in their order, before any new one."""
        if not self.paused:
            return
        self.paused = False
        held, self._held = self._held, []
        for work in held:
            self.run(work)

    def sleep(self, delay_ms: int) -> Answer[None]:
        answer: Answer[None] = Answer()
        self.after(delay_ms, answer.settle)
        return answer

    def spawn(self, work: Coroutine[Any, None, None]) -> None:
        """Run a coroutine from one `await` to the next; an uncaught error ends the world."""

        def step() -> None:
            try:
                awaited: Answer[Any] = work.send(None)
            except StopIteration:
                return
            awaited.when_settled(lambda: self.run(step))

        step()
