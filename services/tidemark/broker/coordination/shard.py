# SPDX-License-Identifier: Apache-2.0
"""The state in one partition of an internal topic, while this broker leads the partition in one epoch.

Requests change the state immediately, and their records are appended in order. An answer is sent when all state that it
depends on is committed. After a failed write it is unknown which records are in the log: the state is discarded and
loaded again. Meanwhile requests are refused with COORDINATOR_LOADING (docs/groups.md, step G8).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from prometheus_client import Counter

from tidemark.broker.coordination.state_log import InTransaction, Records, StateLog
from tidemark.model import ErrorCode, TidemarkError

_RETRY_S: Final = 0.2
_IN_FLIGHT_MAX: Final = 3
"""Largest number of writes that wait for followers.

The next write gathers changes while a write is in flight; more writes at a time would be smaller.
"""
_REFUSED_TRANSACTION: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.DISK_FULL}
)
"""Refusals that precede the append: nothing was written."""

_S = TypeVar("_S", bound="Coordinator")  # the state
_C = TypeVar("_C")  # a change of the state, written as one record
_N = TypeVar("_N")  # the facts that requests are checked against
_T = TypeVar("_T")
_C_co = TypeVar("_C_co", covariant=True)
_T_co = TypeVar("_T_co", covariant=True)
_log = logging.getLogger(__name__)


class Coordinator(Protocol):
    """A pure coordinator."""

    def excuse(self, ms: int) -> None:
        """Extend all timeouts by the time for which this process was suspended."""


class Outcome(Protocol[_T_co, _C_co]):
    """An answer, and the records to write before the answer is sent."""

    @property
    def answer(self) -> _T_co:
        """The answer to the request."""

    @property
    def changes(self) -> Sequence[_C_co]:
        """The records, in their order."""


class ShardMetrics(Protocol):
    """Counters of all shards of one internal topic."""

    loads: Counter
    failed_writes: Counter


class _Write(Generic[_C]):
    """Records that are written together; `done` completes with the outcome, in the order of the writes.

    Records of a transaction are a separate write: if the log refuses them, no other write fails.

    Attributes:
        is_appended: the leader's log has the records.
        is_over: the log has committed or refused the records.
        error: the log's refusal, None if there was none.
    """

    def __init__(self, transaction: InTransaction | None = None) -> None:
        self.transaction = transaction
        self.changes: list[_C] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.began_s = 0.0
        self.is_appended = self.is_over = False
        self.error: TidemarkError | None = None


class Shard(Generic[_S, _C, _N]):
    """Starts to load when it is made; ends with `close`.

    Args:
        replay: makes the state from all records, in a thread.
        situation: returns the facts that requests are checked against.
        write_timeout_s: time limit of a write.
    """

    noun: ClassVar[str] = "state"
    """Noun for the state, in logs and errors."""

    def __init__(
        self,
        log: StateLog[_C],
        replay: Callable[[Records[_C], _N], _S],
        situation: Callable[[], _N],
        write_timeout_s: float,
        metrics: ShardMetrics,
    ) -> None:
        self.log = log
        self._replay = replay
        self._situation = situation
        self._write_timeout_s = write_timeout_s
        self._counts = metrics
        self._state: _S | None = None
        self._writes: deque[_Write[_C]] = deque()
        self._last: asyncio.Future[None] | None = None
        self._closed = False
        self._in_flight: deque[_Write[_C]] = deque()
        self._starting = False
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._loader = asyncio.create_task(self._load(), name=f"load {self.log.partition}")

    @property
    def coordinator(self) -> _S:
        """The loaded state; raises COORDINATOR_LOADING or NOT_COORDINATOR."""
        self.log.check()
        if self._closed:
            raise self.log.over()
        if self._state is None:
            raise TidemarkError(
                ErrorCode.COORDINATOR_LOADING,
                f"the coordinator is still loading the {self.noun} of {self.log.partition}; retry",
            )
        return self._state

    @property
    def is_loading(self) -> bool:
        """Whether the state is still being loaded."""
        return self._state is None and not self._closed

    def close(self) -> None:
        """End the shard with its leadership."""
        self._closed = True
        self._state = None
        self._loader.cancel()
        self._dropped()

    async def change(self, change: Callable[[_S, _N], Outcome[_T, _C]]) -> _T:
        """Carry out a request, and answer when its changes and all earlier ones are committed.

        Raises:
            TidemarkError: the refusal of the request. After COORDINATOR_LOADING and NOT_ENOUGH_REPLICAS the state is
                unchanged; after NOT_COORDINATOR, NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT the outcome is
                unknown.
        """
        state = self.coordinator
        self.log.check_writable()
        try:
            outcome = change(state, self._situation())
        except TidemarkError:
            raise
        except Exception:
            self._load_again("an unexpected error")
            raise
        self._write(outcome.changes)
        await self._settled()
        return outcome.answer

    async def change_in_transaction(
        self,
        change: Callable[[_S, _N], Outcome[_T, _C]],
        take_back: Callable[[_S, _T], None],
        transaction: InTransaction,
    ) -> _T:
        """Carry out a request whose changes are in force after the commit marker of a transaction (rule X17).

        Answers when the records are committed, in the order of all writes.

        Args:
            change: applies the request.
            take_back: undoes the request, whose records were not written.
            transaction: transaction of the records.

        Raises:
            TidemarkError: the errors of `change`; the log's refusal of the transaction, such as PRODUCER_FENCED.
        """
        state = self.coordinator
        self.log.check_writable()
        outcome = change(state, self._situation())
        if outcome.changes:
            write: _Write[_C] = _Write(transaction)
            write.changes.extend(outcome.changes)
            self._writes.append(write)

            def settle(done: asyncio.Future[None]) -> None:
                # if `_state` has changed, the old state was discarded
                if done.exception() is not None and self._state is state:
                    take_back(state, outcome.answer)

            write.done.add_done_callback(settle)  # a callback, since the caller may have ended before
            self._start_writer()
            await asyncio.shield(write.done)
        self.log.check()
        return outcome.answer

    async def read(self, read: Callable[[_S], _T]) -> _T:
        """Read the state; answers when all state that the answer depends on is committed."""
        found = read(self.coordinator)
        await self._settled()
        return found

    def change_unasked(self, change: Callable[[_S, _N], Outcome[_T, _C]]) -> _T | None:
        """Apply changes that no request caused, if `is_changeable`; the records are written later.

        Returns None after an unexpected error: it is logged, and does not end the broker.
        """
        assert self._state is not None
        try:
            outcome = change(self._state, self._situation())
        except Exception:  # noqa: BLE001 - the state is loaded again from the log
            _log.exception("cannot change %s", self.noun)
            self._load_again("an unexpected error")
            return None
        self._write(outcome.changes)
        return outcome.answer

    @property
    def is_changeable(self) -> bool:
        """Whether a change could be applied and written now."""
        try:
            assert self.coordinator is not None
            self.log.check_writable()
        except TidemarkError:
            return False
        return True

    def hangs_for(self, time_s: float) -> bool:
        """Whether one write has taken longer than `time_s`."""
        return bool(self._in_flight) and time.monotonic() - self._in_flight[0].began_s > time_s

    def excuse(self, ms: int) -> None:
        """Extend all timeouts by the time for which this process was suspended."""
        if self._state is not None:
            self._state.excuse(ms)

    def event_of(self, key: str) -> asyncio.Event:
        """An event that is set by `_wake`, and at the end of the state; kept while a caller has it."""
        return self._events.setdefault(key, asyncio.Event())

    def _wake(self, key: str) -> None:
        event = self._events.pop(key, None)
        if event is not None:
            event.set()

    def _dropped(self) -> None:
        for key in tuple(self._events):
            self._wake(key)

    # -- for subclasses ----------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Apply the changes of timeouts that have passed; called periodically."""

    def _changed(self, changes: Sequence[_C]) -> None:
        """Called after changes were applied; their records are not written yet."""

    def _committed(self, changes: Sequence[_C]) -> None:
        """Called when the records of changes are committed, in their order."""

    def _loaded(self) -> None:
        """Called after the state was loaded."""

    # -- writing -----------------------------------------------------------------------------------------------

    def _write(self, changes: Sequence[_C]) -> None:
        if not changes:
            return
        if not self._writes or self._writes[-1].transaction is not None:
            self._writes.append(_Write())
            self._last = self._writes[-1].done
        self._writes[-1].changes.extend(changes)
        self._changed(changes)
        self._start_writer()

    def _start_writer(self) -> None:
        if not self._starting:  # the writer starts later, so that the changes of one call are one write
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start_writes)

    async def _settled(self) -> None:
        """Wait until all changes so far are committed; raises NOT_COORDINATOR if the leadership has ended."""
        if self._last is not None:
            await asyncio.shield(self._last)
        self.log.check()

    def _start_writes(self) -> None:
        """Start the next write; changes that gather until then belong to it.

        A write starts when the earlier ones are in the leader's log, so no later record is stored without them. Writes
        of transactions run alone: they may be refused.
        """
        self._starting = False
        while self._writes and self._has_room():
            write = self._writes.popleft()
            self._in_flight.append(write)
            write.began_s = time.monotonic()
            write.task = asyncio.create_task(self._write_out(write), name=f"write {self.log.partition}")

    def _has_room(self) -> bool:
        if not self._in_flight:
            return True
        last, following = self._in_flight[-1], self._writes[0]
        alone = last.transaction is not None or following.transaction is not None
        return last.is_appended and not alone and len(self._in_flight) < _IN_FLIGHT_MAX

    async def _write_out(self, write: _Write[_C]) -> None:
        def on_appended() -> None:
            write.is_appended = True
            self._start_writer()

        error: TidemarkError | None = None
        try:
            await self.log.write(write.changes, self._write_timeout_s, write.transaction, on_appended)
        except TidemarkError as refusal:
            error = refusal
        except Exception as failure:  # noqa: BLE001 - passed to waiting requests, and the state is loaded again
            _log.exception("cannot write records of %s", self.noun)
            error = TidemarkError(ErrorCode.INTERNAL, f"{type(failure).__name__}: {failure}")
        write.is_over, write.error = True, error
        while self._in_flight and self._in_flight[0].is_over:
            self._over(self._in_flight.popleft())
        self._start_writes()

    def _over(self, write: _Write[_C]) -> None:
        """All earlier writes have ended. If a write failed since the last loading, this write has failed, too."""
        if write.done.done():
            return
        error = write.error
        if error is None:
            write.done.set_result(None)
            if not self._closed and write.transaction is None:
                self._committed(write.changes)
        elif write.transaction is not None and error.code in _REFUSED_TRANSACTION:
            _fail(write, error)
        else:
            self._give_up(write, error)

    def _give_up(self, write: _Write[_C], error: TidemarkError) -> None:
        self._counts.failed_writes.inc()
        for one in (write, *self._in_flight, *self._writes):
            _fail(one, error)
        self._writes.clear()
        self._last = None
        self._load_again(str(error))

    # -- loading -----------------------------------------------------------------------------------------------

    def _load_again(self, why: str) -> None:
        if self._closed:
            return
        _log.warning("%s are loaded again", self.noun, extra={"partition": str(self.log.partition), "why": why})
        self._state = None
        self._dropped()
        self._loader.cancel()
        self._loader = asyncio.create_task(self._load(), name=f"load {self.log.partition}")

    async def _load(self) -> None:
        while not self._closed:
            while self._in_flight or self._writes:  # after their end, each of their records is in the log or is not
                running = [write.task for write in self._in_flight if write.task is not None]
                await asyncio.wait(running or [write.done for write in self._writes])
            try:
                changes = await self.log.read()
                state = await asyncio.to_thread(self._replay, changes, self._situation())
            except Exception as error:  # noqa: BLE001 - logged and retried, since no other part can
                # NOT_COORDINATOR may come from an expired lease only. At the end of the leadership `close` is called.
                if not (isinstance(error, TidemarkError) and error.code is ErrorCode.NOT_COORDINATOR):
                    facts = {"partition": str(self.log.partition)}
                    _log.warning("cannot load %s", self.noun, extra=facts, exc_info=error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._state = state
            self._counts.loads.inc()
            about: dict[str, object] = {
                "partition": str(self.log.partition),
                "records": len(changes),
                "leader_epoch": self.log.leader_epoch,
            }
            _log.info("%s are loaded", self.noun, extra=about)
            self._loaded()
            return


def _fail(write: _Write[_C], error: TidemarkError) -> None:
    write.done.set_exception(error)
    write.done.exception()  # retrieved: there may be no waiting request
