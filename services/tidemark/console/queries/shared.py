# SPDX-License-Identifier: Apache-2.0
"""Answers of the cluster that many pages share: one call at a time for each question; answers expire soon.

The last successful answer is kept after failed calls. A page then shows that answer with the error, and since when the
calls fail. After a denied call the answer is dropped: the user has lost the right to read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar, cast

from tidemark.model import ErrorCode, TidemarkError

T = TypeVar("T")

SHARE_MAX: Final = 10
"""Multiple of the duration of a call after which the call is repeated at the earliest."""
ENTRIES_MAX: Final = 2_000
IDLE_SWEEPS: Final = 5
"""Calls of `drop_idle` without a page's question after which an answer is dropped."""
YOUNG_MS: Final = 10_000
"""Age up to which a page shows an answer if a newer answer would take longer than `YOUNG_S`."""
YOUNG_S: Final = 0.1
OLD_S: Final = 1.0
"""Time that a page waits for a newer answer if its answer is not fresh."""
CALL_MS_MAX: Final = 30_000
"""No call takes longer: the clock was set forward during one that seems to."""

_DENIALS: Final = (
    ErrorCode.AUTHENTICATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The newest knowledge about a question.

    Attributes:
        value: value of the last successful call; None: no call has succeeded.
        read_at_ms: start of that call, since 1970; 0: no call has succeeded.
        error: error of the last call; None: that call succeeded, or no call has ended.
        failing_since_ms: start of the first of the calls that have failed since; 0: the last one succeeded.
        waiting_since_ms: if the value is not fresh: start of the call in flight; 0: no call is in flight.
    """

    value: T | None = None
    read_at_ms: int = 0
    error: TidemarkError | None = None
    failing_since_ms: int = 0
    waiting_since_ms: int = 0


class SharedQuery(Generic[T]):
    """One question. Used on one event loop.

    Args:
        call: asks the cluster; it bounds its own time. A page that is left does not cancel the call.
        life_ms: age up to which an answer is reused.
        retry_ms: the same for an error.
        now_ms: the time since 1970.
        measured: receives the outcome of each call.
    """

    def __init__(
        self,
        call: Callable[[], Awaitable[T]],
        life_ms: int,
        retry_ms: int,
        now_ms: Callable[[], int],
        measured: Callable[[bool], None] = lambda succeeded: None,
    ) -> None:
        self._call = call
        self._life_ms = life_ms
        self._retry_ms = retry_ms
        self._now_ms = now_ms
        self._measured = measured
        self._answer: Answer[T] = Answer()
        self._due_ms = 0
        self._began_ms = 0
        self._task: asyncio.Task[None] | None = None
        self._sweeps = 0

    async def answer(self, patience_s: float) -> Answer[T]:
        """The newest answer: waits for a call if the known answer is too old.

        Args:
            patience_s: time to wait without a usable answer. A fresh answer is returned sooner, an older answer later.
        """
        now_ms, self._sweeps = self._now_ms(), 0
        if self._task is None and not self._began_ms <= now_ms < self._due_ms:  # the clock may be set back
            self._began_ms = now_ms
            self._task = asyncio.create_task(self._run(), name="console query")
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self._time_to_wait_s(patience_s))
        known = self._answer
        late = self._task is not None and known.value is not None and known.error is None and not self._is_young
        return replace(known, waiting_since_ms=self._began_ms) if late else known

    @property
    def _is_young(self) -> bool:
        return self._now_ms() - self._answer.read_at_ms <= max(YOUNG_MS, 2 * self._life_ms)

    def _time_to_wait_s(self, patience_s: float) -> float:
        known = self._answer
        if known.value is None or known.error is not None:
            return patience_s
        return min(patience_s, YOUNG_S) if self._is_young else OLD_S

    def sweep(self) -> bool:
        """Whether no page has asked for `IDLE_SWEEPS` calls of this method, and no call is in progress."""
        self._sweeps += 1
        return self._sweeps > IDLE_SWEEPS and self._task is None

    async def close(self) -> None:
        """Cancel the call in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        began_ms = self._began_ms
        try:
            self._answer = Answer(await self._call(), began_ms)
        except TidemarkError as error:
            self._failed(error, began_ms)
        except Exception as error:  # noqa: BLE001 - a fault of the console; the page states this
            _log.exception("a query failed")
            self._failed(TidemarkError(ErrorCode.INTERNAL, f"the console failed: {type(error).__name__}"), began_ms)
        finally:
            self._due_ms = began_ms + self._rest_ms(self._now_ms() - began_ms)
            self._task = None
        self._measured(self._answer.error is None)

    def _rest_ms(self, took_ms: int) -> int:
        if self._answer.error is not None:
            return self._retry_ms
        return max(self._life_ms, SHARE_MAX * min(took_ms, CALL_MS_MAX))

    def _failed(self, error: TidemarkError, began_ms: int) -> None:
        known: Answer[T] = Answer() if is_denial(error) else self._answer
        self._answer = Answer(known.value, known.read_at_ms, error, known.failing_since_ms or began_ms)


def is_denial(error: TidemarkError) -> bool:
    """Whether the cluster denied the request of this user."""
    return error.code in _DENIALS


class SharedQueries:
    """The questions by key; beyond `ENTRIES_MAX`, the least recently used are dropped."""

    def __init__(self, life_ms: int, now_ms: Callable[[], int], measured: Callable[[str, bool], None]) -> None:
        self._life_ms = life_ms
        self._now_ms = now_ms
        self._measured = measured
        self._queries: OrderedDict[Hashable, SharedQuery[Any]] = OrderedDict()

    async def ask(
        self,
        kind: str,
        key: Hashable,
        call: Callable[[], Awaitable[T]],
        *,
        patience_s: float,
        life_ms: int | None = None,
    ) -> Answer[T]:
        """The answer to a question of this kind and key; `call` is made by one of the callers with this key."""
        query = self._queries.get((kind, key))
        if query is None:
            query = SharedQuery(
                call, life_ms or self._life_ms, self._life_ms, self._now_ms, lambda good: self._measured(kind, good)
            )
            self._queries[(kind, key)] = query
            if len(self._queries) > ENTRIES_MAX:
                self._queries.popitem(last=False)
        self._queries.move_to_end((kind, key))
        return cast("Answer[T]", await query.answer(patience_s))

    async def once(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call whose answer is not kept; the call is counted as all others."""
        succeeded = False
        try:
            answer = await call()
            succeeded = True
        finally:
            self._measured(kind, succeeded)
        return answer

    def drop_idle(self) -> None:
        """Drop the answers that no page asks for: a token that was renewed is another user, with answers of its own."""
        for key in [key for key, query in self._queries.items() if query.sweep()]:
            del self._queries[key]

    async def close(self) -> None:
        """Cancel all calls."""
        for query in tuple(self._queries.values()):
            await query.close()
