# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group: its heartbeats, and the hand-over of partitions they lead to (docs/groups.md).

Heartbeats go on whatever else happens; a hand-over runs beside them, one at a time. What the coordinator takes away is
first let go of by the application, then committed, then confirmed: before that nobody else is given it. A member that
cannot be sure any more that its partitions are its own stops giving records until it is.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.offset_commits import Commits, GroupPosition, raise_refused
from tidemark.client.group.settings import GroupSettings
from tidemark.client.metadata.cluster import ON_ITS_WAY
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.v1 import group_service_pb2 as pb

_log = logging.getLogger("tidemark.client")

JOINING: Final = 0
LEAVING: Final = -1
AWAY: Final = -2
_LOST: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER})
_CALL_TIMEOUT_S: Final = 10.0
_LEAVE_TIMEOUT_S: Final = 3.0
_FAREWELL_S: Final = 0.5
"""What of it is kept for leaving, when the last commit is not answered."""
_LOOK_S: Final = 0.5
_SESSION_TIMEOUT_S: Final = 45.0
"""Until the coordinator has told its own."""


class Reader(Protocol):
    """What the application reads through, as its membership sees it."""

    async def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Give no more of these; return when the application is done with what it has of them."""

    def processed(self) -> Mapping[TopicPartition, GroupPosition]:
        """How far the application is done with what it reads."""

    async def take_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Read these too, from where the group is."""

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, at once."""

    def suspend(self, *, suspended: bool) -> None:
        """While suspended nothing is given."""

    def fail(self, error: TidemarkError) -> None:
        """Nothing will come any more; the application is to be told."""

    @property
    def idle_s(self) -> float:
        """How long ago the application last asked for something."""


class Membership:
    """Joins by `start`, leaves by `stop`; lives on one event loop."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: GroupSettings,
        reader: Reader,
        *,
        commits: Commits | None = None,
        on_handed_over: Callable[[], None] = lambda: None,
    ) -> None:
        self.member_id = uuid.uuid4().hex
        self.member_epoch = JOINING
        self.owned: frozenset[TopicPartition] = frozenset()
        self.topics: frozenset[str] = frozenset()
        self._coordinator = coordinator
        self._settings = settings
        self._reader = reader
        self._on_handed_over = on_handed_over
        self._topic_ids: dict[str, str] = {}
        self._wanted: frozenset[TopicPartition] | None = None
        """What the coordinator assigned last; None: nothing since joining."""
        self._say_all = True
        self._interval_s = 1.0
        self._session_s = _SESSION_TIMEOUT_S
        self._lives_s = time.monotonic()
        self._confirm_by_s = math.inf
        """Until then it must be heard that what was taken away is given up."""
        self._committed: dict[TopicPartition, int] = {}
        self._commits = commits or Commits(settings)
        self._committing = asyncio.Lock()
        """One after the other: what was committed is known before more is."""
        self._life = 0
        """Which one it is in: what was read in an earlier one is committed in no later one."""
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self._poke = asyncio.Event()
        self._news = asyncio.Event()
        self._epoch_news = asyncio.Event()

    @property
    def may_be_out(self) -> bool:
        """Whether its partitions may be somebody else's: its coordinator's clocks began later than these."""
        now_s = time.monotonic()
        return now_s - self._lives_s > self._session_s or now_s > self._confirm_by_s

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self, topics: Iterable[str]) -> None:
        """Join, in the background; raises nothing: what forbids it goes to the reader."""
        self.topics = frozenset(topics)
        works = [self._beat(), self._hand_over(), self._watch()]
        if self._settings.auto_commit_interval_ms:
            works.append(self._commit_now_and_then())
        self._tasks = [asyncio.create_task(work, name=f"group {self._settings.group}") for work in works]
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Half a member is none: without one of its tasks nobody would read what it is given."""
        if task not in self._tasks or task.cancelling():
            return  # it was to end
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            _log.error("group %s: a member failed", self._settings.group, exc_info=error)
            self._reader.fail(
                TidemarkError(ErrorCode.INTERNAL, f"a member of {self._settings.group} failed: {error!r}")
            )

    def subscribe(self, topics: Iterable[str]) -> None:
        """Want other topics from now on."""
        self.topics = frozenset(topics)
        self._say_all = True
        self._poke.set()

    async def stop(self, *, commit: bool) -> None:
        """Leave, after a last commit of what was processed; in any case within a few seconds."""
        # The heartbeats go on meanwhile: an answer on its way may have the epoch that the last commit needs.
        beats, others = self._tasks[:1], self._tasks[1:]
        self._tasks = []
        until_s = time.monotonic() + _LEAVE_TIMEOUT_S
        try:
            await _ended(others)
            if commit and self._settings.auto_commit_interval_ms:
                await self._commit_processed(self.owned, _LEAVE_TIMEOUT_S - _FAREWELL_S)
        except TidemarkError as error:
            _log.warning("group %s: the last commit failed: %s", self._settings.group, error)
        finally:
            try:
                await _ended(beats)
            finally:  # also where this is cancelled: what it has is somebody else's soon
                self._reader.drop(self.owned)
                self.owned = frozenset()
        await self._leave(AWAY if self._settings.instance_id else LEAVING, until_s - time.monotonic())

    async def commit(self, positions: Iterable[GroupPosition], *, timeout_s: float) -> None:
        """Have the group remember positions.

        Raises:
            TidemarkError: what the coordinator refuses with, FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER when the partitions
                may be somebody else's by now; that of the first partition refused; REQUEST_TIMED_OUT.
        """
        life = self._life
        async with self._turn(timeout_s) as deadline_s:
            await self._commit(list(positions), deadline_s, life)

    @asynccontextmanager
    async def _turn(self, timeout_s: float) -> AsyncIterator[float]:
        """To commit; gives the (monotonic) deadline."""
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._committing.acquire()
        except TimeoutError:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"group {self._settings.group}: the commit before is still under way after {timeout_s:g} s",
            ) from None
        try:
            yield deadline_s
        finally:
            self._committing.release()

    async def _commit(self, found: list[GroupPosition], deadline_s: float, life: int) -> None:
        while found:
            if life != self._life:
                raise _begun_anew()
            epoch = self.member_epoch
            request = self._commits.request(found, self.member_id, epoch)
            left_s = deadline_s - time.monotonic()
            try:
                response = await self._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=left_s)
            except TidemarkError as error:
                if error.code is not ErrorCode.STALE_MEMBER_EPOCH or not await self._newer_epoch(epoch, deadline_s):
                    raise
                continue
            raise_refused(response.partitions)
            self._committed.update((one.partition, one.offset) for one in found)
            return

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """For as long as the member lives. An answer is held back by the coordinator until there is news."""
        while True:
            if self._leaving or self._reader.idle_s * 1000 > self._settings.max_poll_interval_ms:
                await asyncio.sleep(_LOOK_S)  # it has left, and comes back when the application does
                continue
            self._poke.clear()
            said_s, epoch, said_all = time.monotonic(), self.member_epoch, self._say_all
            self._say_all = False
            request = self._heartbeat(all_of_it=said_all)
            calling = asyncio.ensure_future(self._call(request, hold=not said_all))
            poked = asyncio.ensure_future(self._poke.wait())
            try:
                await asyncio.wait({calling, poked}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                poked.cancel()
                if not calling.done():
                    calling.cancel()  # what it may have been answered is asked for again
                    self._say_all = True
            current = calling.done() and not calling.cancelled() and epoch == self.member_epoch
            if current and not await self._take_answer(calling, said_s, _named(request)):
                return

    async def _call(self, request: pb.GroupHeartbeatRequest, *, hold: bool) -> pb.GroupHeartbeatResponse:
        wait_s = self._interval_s if hold else 0.0
        request.max_wait_ms = int(wait_s * 1000)
        response: pb.GroupHeartbeatResponse = await self._coordinator.call(
            lambda stub: stub.GroupHeartbeat, request, timeout_s=_CALL_TIMEOUT_S + wait_s, wait_s=wait_s
        )
        return response

    async def _take_answer(
        self,
        calling: asyncio.Future[pb.GroupHeartbeatResponse],
        said_s: float,
        said: frozenset[TopicPartition] | None,
    ) -> bool:
        """Whether to go on.

        Args:
            said_s: when it was asked, from where on the coordinator counts the session.
            said: what it said it has; None: nothing of that.
        """
        try:
            response = calling.result()
        except TidemarkError as error:
            self._say_all = True
            if error.code in _LOST:
                self._lost(error)
                return True
            if error.code is ErrorCode.UNRELEASED_INSTANCE_ID or error.retriable:
                _log.info("group %s: no heartbeat: %s", self._settings.group, error)
                await asyncio.sleep(min(1.0, self._interval_s))
                return True
            self._reader.fail(error)
            self._reader.drop(self.owned)
            return False
        before_s, self._lives_s = self._lives_s, said_s
        self._reader.suspend(suspended=False)
        self._interval_s = max(0.01, response.heartbeat_interval_ms / 1000)
        self._session_s = max(0.1, response.session_timeout_ms / 1000)
        if response.member_epoch != self.member_epoch:
            self.member_epoch = response.member_epoch
            self._epoch_news.set()
        if response.HasField("assignment"):
            self._topic_ids.update((part.topic, part.topic_id) for part in response.assignment.topics)
            self._wanted = frozenset(
                TopicPartition(part.topic, index) for part in response.assignment.topics for index in part.partitions
            )
            self._news.set()
        if self._wanted is not None:
            if said is not None and said <= self._wanted:
                self._confirm_by_s = math.inf
            elif not self.owned <= self._wanted and self._confirm_by_s == math.inf:
                self._confirm_by_s = before_s + self._settings.rebalance_timeout_ms / 1000
        return True

    def _heartbeat(self, *, all_of_it: bool) -> pb.GroupHeartbeatRequest:
        settings = self._settings
        request = pb.GroupHeartbeatRequest(
            group_id=settings.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=settings.instance_id,
            client_id=settings.client_id,
            sequence=self._commits.next_sequence(),
        )
        if all_of_it or self.member_epoch == JOINING:
            request.rebalance_timeout_ms = settings.rebalance_timeout_ms
            request.subscription.topics.extend(sorted(self.topics))
            request.assignor = settings.assignor
            request.owned.CopyFrom(self._owned())
        return request

    def _owned(self) -> pb.GroupPartitions:
        """What is read, and what was assigned and may be read any moment: what this leaves out others may read."""
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(self.owned | (self._wanted or frozenset())):
            by_topic.setdefault(topic, []).append(index)
        return pb.GroupPartitions(
            topics=[
                pb.GroupTopicPartitions(topic=topic, topic_id=self._topic_ids.get(topic, ""), partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
        )

    async def _leave(self, epoch: int, timeout_s: float = _LEAVE_TIMEOUT_S) -> None:
        if self.member_epoch == JOINING:
            return
        request = pb.GroupHeartbeatRequest(
            group_id=self._settings.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._settings.instance_id,
            sequence=self._commits.next_sequence(),
        )
        try:
            await self._coordinator.call(lambda stub: stub.GroupHeartbeat, request, timeout_s=timeout_s)
        except TidemarkError as error:
            _log.info("group %s: left without an answer: %s", self._settings.group, error)

    def _lost(self, error: TidemarkError) -> None:
        """The partitions may be somebody else's by now: begin anew."""
        _log.warning("group %s: begins anew: %s", self._settings.group, error)
        self._reader.drop(self.owned)
        self.owned, self._wanted = frozenset(), None
        self._committed.clear()
        self.member_epoch = JOINING
        self._life += 1
        self._confirm_by_s = math.inf
        self._say_all = True
        self._epoch_news.set()
        self._on_handed_over()

    async def _watch(self) -> None:
        """Give nothing while the session may be over; leave while the application does not ask for anything."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self._session_s / 4))
            if self.may_be_out:
                self._reader.suspend(suspended=True)
            if time.monotonic() > self._confirm_by_s:
                self._lost(_slow(self._settings.rebalance_timeout_ms))
                self._poke.set()
            idle_s = self._reader.idle_s
            if self.owned and idle_s * 1000 > self._settings.max_poll_interval_ms:
                await self._go(idle_s)

    async def _go(self, idle_s: float) -> None:
        """For as long as the application asks for nothing; no heartbeat is to overtake the farewell."""
        self._leaving = True
        try:
            await self._leave(LEAVING)
        finally:
            self._leaving = False
        self._lost(_silent(idle_s))

    # -- hand-over -----------------------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        """Bring what is read to what is assigned, as often as that changes."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted is not None and self._wanted != self.owned:
                try:
                    await self._step(self._wanted)
                except TidemarkError as error:
                    if error.code in _LOST:  # the next heartbeat would say so too
                        self._lost(error)
                        self._poke.set()
                        continue
                    # Who assigns it knows of it: whoever does not is behind, or will be told that it is gone.
                    if not error.retriable and error.code not in ON_ITS_WAY:
                        self._reader.fail(error)
                        return
                    _log.info("group %s: a hand-over is tried again: %s", self._settings.group, error)
                    await asyncio.sleep(_LOOK_S)
            if self._wanted is not None and self.member_epoch > JOINING:
                # Said also where there was nothing to do: of what was never heard of, somebody may wait for it.
                self._say_all = True
                self._poke.set()

    async def _step(self, wanted: frozenset[TopicPartition]) -> None:
        gone = self.owned - wanted
        if gone:
            await self._give_up(gone)
        added = (self._wanted or frozenset()) & (wanted - self.owned)
        if added:
            await self._reader.take_up(added)
            kept = added & (self._wanted or frozenset())  # it may have been fenced meanwhile
            self._reader.drop(added - kept)
            self.owned |= kept
        self._say_all = True
        self._poke.set()
        self._on_handed_over()

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        await self._reader.release(partitions)
        try:
            if self._settings.auto_commit_interval_ms:
                await self._commit_processed(partitions & self.owned, _CALL_TIMEOUT_S)
        except TidemarkError as error:
            _log.warning("group %s: what was processed is not committed: %s", self._settings.group, error)
        self._reader.drop(partitions)
        self.owned -= partitions
        for partition in partitions:
            self._committed.pop(partition, None)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self._commit_processed(self.owned, _CALL_TIMEOUT_S)
            except TidemarkError as error:
                _log.info("group %s: a commit is tried again later: %s", self._settings.group, error)

    async def _commit_processed(self, partitions: frozenset[TopicPartition], timeout_s: float) -> None:
        async with self._turn(timeout_s) as deadline_s:
            processed = self._reader.processed()
            news = [
                processed[partition]
                for partition in sorted(partitions & processed.keys())
                if processed[partition].offset != self._committed.get(partition)
            ]
            await self._commit(news, deadline_s, self._life)

    def began_at(self, partition: TopicPartition, offset: int) -> None:
        """That offset is remembered already."""
        self._committed[partition] = offset

    async def _newer_epoch(self, epoch: int, deadline_s: float) -> bool:
        """Wait for another epoch than that; False when none came in time."""
        self._say_all = True
        self._poke.set()
        while self.member_epoch == epoch:
            self._epoch_news.clear()
            try:
                async with asyncio.timeout(deadline_s - time.monotonic()):
                    await self._epoch_news.wait()
            except TimeoutError:
                return False
        return True


def _begun_anew() -> TidemarkError:
    return TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        "the member has begun anew since this was read: others may have read on from there, so it is not committed",
    )


def _silent(idle_s: float) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_MEMBER,
        f"the application asked for nothing in {idle_s:.0f} s, so others get its partitions; max_poll_interval_ms says "
        "how long that may be",
    )


def _slow(rebalance_timeout_ms: int) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_MEMBER,
        f"partitions were not given up within rebalance_timeout_ms, {rebalance_timeout_ms}, so others get them",
    )


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _named(request: pb.GroupHeartbeatRequest) -> frozenset[TopicPartition] | None:
    """What it says that the member has; None: it does not say."""
    if not request.HasField("owned"):
        return None
    return frozenset(TopicPartition(one.topic, index) for one in request.owned.topics for index in one.partitions)
