# SPDX-License-Identifier: Apache-2.0
"""Work that concurrent callers share: one run answers all of them, and no answer is older than its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from tidemark.ports import Clock

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class SharedCall(Generic[T]):
    """Runs `work` for all its callers, once at a time.

    A caller receives the result of a run that began after its call, or at most `max_age_ms` before. Callers that come
    during an older run share the run after it. If the older run fails, these callers fail too, so no caller waits for
    two failures.

    Args:
        work: a run with a time limit of its own. A caller that is cancelled does not cancel the run.
        max_age_ms: oldest start of a run, before the call; 0: every run begins after its calls.
        now_ms: the clock of the bound.
        pause_ms: from the end of a run to the run of the callers that arrived meanwhile; more callers share that run
            then. A call without a run in progress is not delayed.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        max_age_ms: int = 0,
        now_ms: Callable[[], int] = lambda: 0,
        pause_ms: int = 0,
    ) -> None:
        self._work = work
        self._pause_s = pause_ms / 1000
        self._max_age_ms = max_age_ms
        self._now_ms = now_ms
        self._latest: asyncio.Future[T] | None = None
        self._began_ms = 0
        self._next: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None

    async def result(self) -> T:
        """The result of a run; raises its error."""
        if self._task is None:
            if not self._is_fresh():
                self._begin(self._future())
            answer = self._latest
        elif self._is_fresh():
            answer = self._latest
        else:
            answer = self._next = self._next or self._future()
        assert answer is not None
        return await asyncio.shield(answer)

    @property
    def is_idle(self) -> bool:
        """Whether no run is in progress, and no result is new enough for another caller."""
        return self._task is None and not self._is_fresh()

    def _is_fresh(self) -> bool:
        if self._latest is None or self._max_age_ms == 0:
            return False
        failed = self._latest.done() and self._latest.exception() is not None
        return not failed and self._now_ms() - self._began_ms <= self._max_age_ms

    def _future(self) -> asyncio.Future[T]:
        return asyncio.get_running_loop().create_future()

    def _begin(self, answer: asyncio.Future[T]) -> None:
        self._latest, self._began_ms = answer, self._now_ms()
        self._task = asyncio.create_task(self._run(answer), name="shared call")

    async def _run(self, answer: asyncio.Future[T]) -> None:
        try:
            answer.set_result(await self._work())
            if self._max_age_ms == 0:
                self._latest = None
            if self._next is not None and self._pause_s:
                await asyncio.sleep(self._pause_s)
        except asyncio.CancelledError:
            self._end(lambda waiting: waiting.cancel())
            raise
        except Exception as error:  # noqa: BLE001 - every caller receives the error
            failure = error
            self._end(lambda waiting: waiting.set_exception(failure))
            return
        self._task = None
        if self._next is not None:
            following, self._next = self._next, None
            self._begin(following)

    def _end(self, settle: Callable[[asyncio.Future[T]], object]) -> None:
        """End the calls that still wait."""
        waiting = [one for one in (self._latest, self._next) if one is not None and not one.done()]
        self._latest = self._next = self._task = None
        for answer in waiting:
            settle(answer)
            if not answer.cancelled():
                answer.exception()  # marks the error as retrieved: all callers may have been cancelled


class SharedCalls(Generic[K, T]):
    """A `SharedCall` for each key, without idle calls.

    Args:
        max_age_ms: see `SharedCall`.
    """

    def __init__(self, max_age_ms: int, clock: Clock) -> None:
        self._max_age_ms = max_age_ms
        self._clock = clock
        self._calls: dict[K, SharedCall[T]] = {}

    async def result(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a run for this key; the run may be that of another caller's `work`."""
        call = self._calls.get(key)
        if call is None:
            self._calls = {known: one for known, one in self._calls.items() if not one.is_idle}
            call = self._calls[key] = SharedCall(work, max_age_ms=self._max_age_ms, now_ms=self._clock.now_ms)
        return await call.result()
