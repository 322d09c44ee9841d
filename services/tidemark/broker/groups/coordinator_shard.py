# SPDX-License-Identifier: Apache-2.0
"""The groups of one partition of `__consumer_offsets`, while this broker leads the partition in one epoch.

Requests change the state at once, and their records are written in order. An answer is sent when all state that it
depends on is committed. After a failed write it is unknown which records are in the log: the state is discarded and
loaded again. Meanwhile requests are refused with COORDINATOR_LOADING (docs/groups.md, step G8).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets_log import OffsetsLog
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome, Swept
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.state import Change, OffsetKey
from tidemark.model import ErrorCode, TidemarkError

_RETRY_S: Final = 0.2
_SLICE: Final = 500
_HANGS_S: Final = 0.5

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _Write:
    """Records that are written together; `done` completes with the outcome."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class CoordinatorShard:
    """Starts to load when it is made; ends with `close`.

    Args:
        situation: returns the facts that requests are checked against.
        write_timeout_s: time limit of a write.
    """

    def __init__(
        self,
        log: OffsetsLog,
        situation: Callable[[], Situation],
        write_timeout_s: float,
        metrics: GroupMetrics,
    ) -> None:
        self.log = log
        self._situation = situation
        self._write_timeout_s = write_timeout_s
        self._metrics = metrics
        self._coordinator: GroupCoordinator | None = None
        self._gathering: _Write | None = None
        self._last: asyncio.Future[None] | None = None
        self._changed: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._closed = False
        self._writing_since_s: float | None = None
        self._loader = asyncio.create_task(self._load(), name=f"load {log.partition}")
        self._writer: asyncio.Task[None] | None = None

    @property
    def coordinator(self) -> GroupCoordinator:
        """The loaded state; raises COORDINATOR_LOADING or NOT_COORDINATOR."""
        self.log.check()
        if self._closed:
            raise self.log.over()
        if self._coordinator is None:
            raise TidemarkError(
                ErrorCode.COORDINATOR_LOADING,
                f"the coordinator is still loading {self.log.partition}, which has the group; retry",
            )
        return self._coordinator

    @property
    def is_loading(self) -> bool:
        """Whether the state is still being loaded."""
        return self._coordinator is None and not self._closed

    def close(self) -> None:
        """End the shard with its leadership."""
        self._closed = True
        self._coordinator = None
        self._loader.cancel()
        self._wake_all()

    def change_of(self, group_id: str) -> asyncio.Event:
        """An event that is set at the next change of the group's members or assignments; kept while a caller has it."""
        return self._changed.setdefault(group_id, asyncio.Event())

    async def change(self, change: Callable[[GroupCoordinator, Situation], Outcome[_T]]) -> _T:
        """Carry out a request, and answer when its changes and all earlier ones are committed.

        Raises:
            TidemarkError: the refusal of the request. After NOT_COORDINATOR, COORDINATOR_LOADING and
                NOT_ENOUGH_REPLICAS nothing has changed; after NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT
                the outcome is unknown.
        """
        coordinator = self.coordinator
        self.log.check_writable()
        try:
            outcome = change(coordinator, self._situation())
        except TidemarkError:
            raise
        except Exception:
            self._load_again("an unexpected error")
            raise
        self._write(outcome.changes)
        await self._settled()
        return outcome.answer

    async def read(self, read: Callable[[GroupCoordinator], _T]) -> _T:
        """Read the state; answers when all state that the answer depends on is committed."""
        found = read(self.coordinator)
        await self._settled()
        return found

    def excuse(self, ms: int) -> None:
        """Extend all session timeouts: this process was suspended for so long."""
        if self._coordinator is not None:
            self._coordinator.excuse(ms)

    def sweep(self) -> None:
        """Evict members whose session timed out; called periodically.

        Not during a hanging write: heartbeats wait for it too, so members cannot prove that they live.
        """
        hangs = self._writing_since_s is not None and time.monotonic() - self._writing_since_s > _HANGS_S
        if self._is_changeable() and not hangs:
            self._swept(lambda coordinator, now: coordinator.remove_overdue(now), "timed_out")

    def refresh_topics(self) -> None:
        """Handle topics that were created, deleted or extended."""
        if self._is_changeable():
            self._swept(lambda coordinator, now: coordinator.refresh_topics(now), "topics")

    async def expire(self) -> None:
        """Delete expired offsets and groups, some groups at a time, since there may be very many."""
        coordinator = self._coordinator
        group_ids = [] if coordinator is None else [group.group_id for group in coordinator.groups]
        for first in range(0, len(group_ids), _SLICE):
            await asyncio.sleep(0)
            if coordinator is not self._coordinator or not self._is_changeable():
                return
            some = group_ids[first : first + _SLICE]
            self._swept(lambda coordinator, now, some=some: coordinator.expire(now, some), "expired")  # type: ignore[misc]

    def touch(self, group_id: str, member_id: str) -> None:
        """Renew a member's session, even if its request fails."""
        if self._coordinator is not None:
            self._coordinator.touch(group_id, member_id, self._situation().now_ms)

    def _is_changeable(self) -> bool:
        try:
            assert self.coordinator is not None
            self.log.check_writable()
        except TidemarkError:
            return False
        return True

    def _swept(self, sweep: Callable[[GroupCoordinator, Situation], Outcome[Swept]], why: str) -> None:
        """Apply periodic changes; an unexpected error in them does not end the broker."""
        assert self._coordinator is not None
        try:
            outcome = sweep(self._coordinator, self._situation())
        except Exception:  # noqa: BLE001 - the state is loaded again from the log
            _log.exception("cannot sweep groups")
            self._load_again("an unexpected error")
            return
        for group_id, member_id in outcome.answer.removed:
            _log.info("a member was evicted from its group", extra={"group": group_id, "member": member_id, "why": why})
            self._metrics.removed_members.inc()
        self._write(outcome.changes)

    # -- writing -----------------------------------------------------------------------------------------------

    def _write(self, changes: Iterable[Change]) -> None:
        changes = tuple(changes)
        if not changes:
            return
        if self._gathering is None:
            self._gathering = _Write()
            self._last = self._gathering.done
        self._gathering.changes.extend(changes)
        self._metrics.note(changes)
        for group_id in dict.fromkeys(one.key.group_id for one in changes if not isinstance(one.key, OffsetKey)):
            event = self._changed.pop(group_id, None)
            if event is not None:
                event.set()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_out(), name=f"write {self.log.partition}")

    async def _settled(self) -> None:
        """Wait until all changes so far are committed; raises NOT_COORDINATOR after the leadership."""
        if self._last is not None:
            await asyncio.shield(self._last)
        self.log.check()

    async def _write_out(self) -> None:
        """Write one batch at a time; changes that gather meanwhile form the next one."""
        try:
            while (write := self._gathering) is not None:
                self._gathering = None
                self._writing_since_s = time.monotonic()
                try:
                    await self.log.write(write.changes, self._write_timeout_s)
                except TidemarkError as error:
                    self._give_up(write, error)
                    return
                except Exception as error:  # noqa: BLE001 - passed to waiting requests, and the state is loaded again
                    _log.exception("cannot write a group's records")
                    self._give_up(write, TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))
                    return
                write.done.set_result(None)
        finally:
            self._writer = self._writing_since_s = None

    def _give_up(self, write: _Write, error: TidemarkError) -> None:
        self._metrics.failed_writes.inc()
        for one in (write, self._gathering):
            if one is not None:
                one.done.set_exception(error)
                one.done.exception()  # retrieved: there may be no waiting request
        self._gathering = self._last = None
        self._load_again(str(error))

    # -- loading -----------------------------------------------------------------------------------------------

    def _load_again(self, why: str) -> None:
        if self._closed:
            return
        _log.warning("groups are loaded again", extra={"partition": str(self.log.partition), "why": why})
        self._coordinator = None
        self._wake_all()
        self._loader.cancel()
        self._loader = asyncio.create_task(self._load(), name=f"load {self.log.partition}")

    async def _load(self) -> None:
        while not self._closed:
            if self._writer is not None:  # after its end, each of its records is in the log or is not
                await asyncio.wait([self._writer])
            try:
                changes = await self.log.read()
                now = self._situation()
                coordinator = await asyncio.to_thread(GroupCoordinator.replay, changes, now.now_ms)
            except Exception as error:  # noqa: BLE001 - logged and retried, since no other part can
                # NOT_COORDINATOR may come from an expired lease only; at the end of the leadership `close` is called.
                if not (isinstance(error, TidemarkError) and error.code is ErrorCode.NOT_COORDINATOR):
                    _log.warning("cannot load groups", extra={"partition": str(self.log.partition)}, exc_info=error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._coordinator = coordinator
            self._metrics.loads.inc()
            _log.info(
                "groups are loaded",
                extra={
                    "partition": str(self.log.partition),
                    "groups": len(coordinator.groups),
                    "records": len(changes),
                    "leader_epoch": self.log.leader_epoch,
                },
            )
            self.refresh_topics()
            return

    def _wake_all(self) -> None:
        events, self._changed = self._changed, WeakValueDictionary()
        for event in tuple(events.values()):
            event.set()
