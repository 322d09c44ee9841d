# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group: its heartbeats, and the reconciliation of its partitions (docs/groups.md).

Heartbeats never stop for a reconciliation. Before a revocation, the application processes the returned records of the
partitions; then the member commits and confirms. Only then does the coordinator assign them to another member. A member
whose session may have ended returns no records until the coordinator answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.offset_commits import CommitPatience, Commits, GroupPosition, OpenTransaction
from tidemark.client.group.settings import GroupSettings
from tidemark.client.metadata.cluster import ON_ITS_WAY
from tidemark.core.groups.state import AWAY, JOINING, LEAVING
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.request_limits import in_requests
from tidemark.runtime.clock import timeout
from tidemark.v1 import group_service_pb2 as pb

_log = logging.getLogger("tidemark.client")

_LOST: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER})
_CALL_TIMEOUT_S: Final = 10.0
_LEAVE_TIMEOUT_S: Final = 3.0
_LAST_HEARTBEAT_S: Final = 0.5
"""Part of `_LEAVE_TIMEOUT_S` that the last commit leaves for the last heartbeat, which has this time in any case."""
_LOOK_S: Final = 0.5
_SESSION_TIMEOUT_S: Final = 45.0
"""Session timeout before the first response of the coordinator."""


class Reader(Protocol):
    """The consumer, as its membership uses it."""

    async def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Return no more records of these partitions; wait until the application has processed the returned ones."""

    def processed(self) -> Mapping[TopicPartition, GroupPosition]:
        """Return the positions up to which the application has processed records."""

    async def take_up(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Read these partitions, too, from the committed offsets; returns those that are read now."""

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions immediately."""

    def suspend(self, *, suspended: bool) -> None:
        """Return no records while `suspended` is true."""

    def fail(self, error: TidemarkError) -> None:
        """Raise this error with the next read: the member has failed."""

    @property
    def idle_s(self) -> float:
        """Time for which the application has processed records, in seconds."""


class Membership:
    """Joins by `start`, leaves by `stop`; used on one event loop."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: GroupSettings,
        reader: Reader,
        *,
        commits: Commits | None = None,
        on_reconciled: Callable[[], None] = lambda: None,
    ) -> None:
        self.member_id = uuid.uuid4().hex
        self.member_epoch = JOINING
        self.owned: frozenset[TopicPartition] = frozenset()
        self._taking: frozenset[TopicPartition] = frozenset()
        """Partitions that the application is told of, and that are not read yet."""
        self.topics: frozenset[str] = frozenset()
        self._coordinator = coordinator
        self._settings = settings
        self._reader = reader
        self._on_reconciled = on_reconciled
        self._topic_ids: dict[str, str] = {}
        self._wanted: frozenset[TopicPartition] | None = None
        """The last assignment; None before the first one since joining."""
        self._full_heartbeat = True
        self._interval_s = 1.0
        self._session_s = _SESSION_TIMEOUT_S
        self._session_since_s = time.monotonic()
        self._confirm_by_s = math.inf
        """Time by which the coordinator must have confirmed that revoked partitions were released."""
        self._committed: dict[TopicPartition, int] = {}
        self._commits = commits or Commits(settings)
        self._committing = asyncio.Lock()
        """Lock that the commit in flight holds, so that `_committed` is known before the next commit."""
        self._may_be_in = False
        """Whether the coordinator may have this member: a heartbeat was sent since the last loss of the membership."""
        self._joins = 0
        """Number of joins: records read before the last join are not committed after it."""
        self._releases: Counter[TopicPartition] = Counter()
        """Number of releases: records read before the last release of a partition are not committed after it."""
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self._poke = asyncio.Event()
        self._new_assignment = asyncio.Event()
        self._new_epoch = asyncio.Event()

    @property
    def may_be_out(self) -> bool:
        """Whether other members may have this member's partitions: its timers start before those of the coordinator."""
        now_s = time.monotonic()
        return now_s - self._session_since_s > self._session_s or now_s > self._confirm_by_s

    @property
    def waiting(self) -> frozenset[TopicPartition]:
        """The assigned partitions that are not read yet."""
        return (self._wanted or frozenset()) - self.owned

    def topic_id(self, topic: str) -> str:
        """The id of a topic in the last assignment that has the topic; "" without one."""
        return self._topic_ids.get(topic, "")

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self, topics: Iterable[str]) -> None:
        """Join, in the background; refusals go to `Reader.fail`."""
        self.topics = frozenset(topics)
        works = [self._beat(), self._reconcile(), self._watch()]
        if self._settings.auto_commit_interval_ms:
            works.append(self._auto_commit())
        self._tasks = [asyncio.create_task(work, name=f"group {self._settings.group}") for work in works]
        for task in self._tasks:
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Fail the member if one of its tasks failed, since its partitions would not be read."""
        if task not in self._tasks or task.cancelling():
            return  # cancelled by `stop`
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            _log.error("group %s: a member failed", self._settings.group, exc_info=error)
            self._reader.fail(
                TidemarkError(ErrorCode.INTERNAL, f"a member of {self._settings.group} failed: {error!r}")
            )

    def _fail(self, error: TidemarkError) -> None:
        _log.warning("group %s: the member failed: %s", self._settings.group, error)
        self._reader.fail(error)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the subscription of the member; the next heartbeat sends it."""
        self.topics = frozenset(topics)
        self._full_heartbeat = True
        self._poke.set()

    async def stop(self, *, commit: bool) -> None:
        """Commit the processed records and leave, within a few seconds; a cancelled stop leaves, too."""
        # Heartbeats continue during the commit: a response may bring the epoch that the commit needs.
        beats, others = self._tasks[:1], self._tasks[1:]
        self._tasks = []
        until_s = time.monotonic() + _LEAVE_TIMEOUT_S
        try:
            await _ended(others)
            if commit and self._settings.auto_commit_interval_ms:
                await self._commit_processed(self.owned, _LEAVE_TIMEOUT_S - _LAST_HEARTBEAT_S)
        except TidemarkError as error:
            _log.warning("group %s: the last commit failed: %s", self._settings.group, error)
        finally:
            try:
                await _ended(beats)
            finally:  # runs also after a cancellation, since other members get the partitions
                self._reader.drop(self.owned)
                self.owned = frozenset()
                left_s = max(_LAST_HEARTBEAT_S, until_s - time.monotonic())
                await self._leave(AWAY if self._settings.instance_id else LEAVING, left_s)

    async def commit(
        self, positions: Iterable[GroupPosition], *, timeout_s: float, transaction: OpenTransaction | None = None
    ) -> None:
        """Commit positions, in a transaction if given.

        Raises:
            TidemarkError: the coordinator's refusal; FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER if other members may have
                the partitions; PARTITION_NOT_ASSIGNED if one has left meanwhile; the error of the first refused
                partition; REQUEST_TIMED_OUT.
        """
        found = list(positions)
        check_held = self._held_since_now(found)
        async with self._turn(timeout_s) as deadline_s:
            await self._commit(found, deadline_s, check_held, transaction)

    @asynccontextmanager
    async def _turn(self, timeout_s: float) -> AsyncIterator[float]:
        """Wait for the commit in flight; yields the (monotonic) deadline."""
        deadline_s = time.monotonic() + timeout_s
        try:
            async with timeout(timeout_s):
                await self._committing.acquire()
        except TimeoutError:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"group {self._settings.group}: the previous commit is still in flight after {timeout_s:g} s",
            ) from None
        try:
            yield deadline_s
        finally:
            self._committing.release()

    async def _commit(
        self,
        found: Sequence[GroupPosition],
        deadline_s: float,
        check_held: Callable[[], None],
        transaction: OpenTransaction | None = None,
    ) -> None:
        for some in in_requests(found):
            await self._commit_some(some, deadline_s, check_held, transaction)

    async def _commit_some(
        self,
        found: Sequence[GroupPosition],
        deadline_s: float,
        check_held: Callable[[], None],
        transaction: OpenTransaction | None,
    ) -> None:
        patience = CommitPatience(deadline_s)
        while found:
            check_held()
            epoch = self.member_epoch
            request = self._commits.request(found, self.member_id, epoch, transaction)
            left_s = deadline_s - time.monotonic()
            if transaction is None:
                for one in found:
                    self._committed.pop(one.partition, None)  # unknown until the answer, which may be lost
            try:
                response = await self._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=left_s)
            except TidemarkError as error:
                if error.code is not ErrorCode.STALE_MEMBER_EPOCH or not await self._newer_epoch(epoch, deadline_s):
                    raise
                continue
            if await patience.is_to_be_retried(response.partitions):
                continue
            if transaction is None:
                self._committed.update((one.partition, one.offset) for one in found)
            return

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Send heartbeats. The coordinator holds a response until there is a new assignment."""
        while True:
            if self._leaving or self._reader.idle_s * 1000 > self._settings.max_poll_interval_ms:
                await asyncio.sleep(_LOOK_S)  # the member has left, and joins again when the application polls
                continue
            self._poke.clear()
            sent_s, epoch, full = time.monotonic(), self.member_epoch, self._full_heartbeat
            self._full_heartbeat = False
            request, self._may_be_in = self._heartbeat(full=full), True
            calling = asyncio.ensure_future(self._call(request, hold=not full))
            calling.add_done_callback(_retrieve)
            poked = asyncio.ensure_future(self._poke.wait())
            try:
                await asyncio.wait({calling, poked}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                poked.cancel()
                if not calling.done():
                    calling.cancel()  # the response may be lost, so the next heartbeat asks again
                    self._full_heartbeat = True
            current = calling.done() and not calling.cancelled() and epoch == self.member_epoch
            if current and not await self._take_response(calling, sent_s, _named(request)):
                return

    async def _call(self, request: pb.GroupHeartbeatRequest, *, hold: bool) -> pb.GroupHeartbeatResponse:
        wait_s = self._interval_s if hold else 0.0
        request.max_wait_ms = int(wait_s * 1000)
        response: pb.GroupHeartbeatResponse = await self._coordinator.call(
            lambda stub: stub.GroupHeartbeat, request, timeout_s=_CALL_TIMEOUT_S + wait_s, wait_s=wait_s
        )
        return response

    async def _take_response(
        self,
        calling: asyncio.Future[pb.GroupHeartbeatResponse],
        sent_s: float,
        reported: frozenset[TopicPartition] | None,
    ) -> bool:
        """Handle a response; returns whether to continue.

        Args:
            calling: the completed call.
            sent_s: time at which the heartbeat was sent; the session counts from there.
            reported: partitions that the heartbeat reported as owned; None: it did not report them.
        """
        try:
            response = calling.result()
        except TidemarkError as error:
            self._full_heartbeat = True
            if error.code in _LOST:
                self._lost(error)
                return True
            if error.code is ErrorCode.UNRELEASED_INSTANCE_ID or error.retriable:
                _log.info("group %s: no heartbeat: %s", self._settings.group, error)
                await asyncio.sleep(min(1.0, self._interval_s))
                return True
            self._fail(error)
            self._reader.drop(self.owned)
            return False
        before_s, self._session_since_s = self._session_since_s, sent_s
        self._reader.suspend(suspended=False)
        self._interval_s = max(0.01, response.heartbeat_interval_ms / 1000)
        self._session_s = max(0.1, response.session_timeout_ms / 1000)
        if response.member_epoch != self.member_epoch:
            self.member_epoch = response.member_epoch
            self._new_epoch.set()
        if response.HasField("assignment"):
            self._topic_ids.update((part.topic, part.topic_id) for part in response.assignment.topics)
            self._wanted = frozenset(
                TopicPartition(part.topic, index) for part in response.assignment.topics for index in part.partitions
            )
            self._new_assignment.set()
        if self._wanted is not None:
            if reported is not None and reported <= self._wanted:
                self._confirm_by_s = math.inf
            elif not self.owned | self._taking <= self._wanted and self._confirm_by_s == math.inf:
                self._confirm_by_s = before_s + self._settings.rebalance_timeout_ms / 1000
        return True

    def _heartbeat(self, *, full: bool) -> pb.GroupHeartbeatRequest:
        settings = self._settings
        request = pb.GroupHeartbeatRequest(
            group_id=settings.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=settings.instance_id,
            client_id=settings.client_id,
            sequence=self._commits.next_sequence(),
        )
        if full or self.member_epoch == JOINING:
            request.rebalance_timeout_ms = settings.rebalance_timeout_ms
            request.subscription.topics.extend(sorted(self.topics))
            request.assignor = settings.assignor
            request.owned.CopyFrom(self._owned())
        return request

    def _owned(self) -> pb.GroupPartitions:
        """Return the partitions read or assigned; the coordinator may give others to other members."""
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(self.owned | self._taking | (self._wanted or frozenset())):
            by_topic.setdefault(topic, []).append(index)
        return pb.GroupPartitions(
            topics=[
                pb.GroupTopicPartitions(topic=topic, topic_id=self._topic_ids.get(topic, ""), partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
        )

    async def _leave(self, epoch: int, timeout_s: float = _LEAVE_TIMEOUT_S) -> None:
        if not self._may_be_in:
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
            _log.info("group %s: left without a response: %s", self._settings.group, error)

    def _lost(self, error: TidemarkError) -> None:
        """Drop all partitions, since other members may have them, and join again."""
        _log.warning("group %s: the member joins again: %s", self._settings.group, error)
        self._reader.drop(self.owned)
        self.owned, self._taking, self._wanted = frozenset(), frozenset(), None
        self._committed.clear()
        self.member_epoch, self._may_be_in = JOINING, False
        self._joins += 1
        self._confirm_by_s = math.inf
        self._full_heartbeat = True
        self._new_epoch.set()
        self._on_reconciled()

    async def _watch(self) -> None:
        """Suspend the reader while the session may have ended; leave the group after `max_poll_interval_ms`."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self._session_s / 4))
            if self.may_be_out:
                self._reader.suspend(suspended=True)
            if time.monotonic() > self._confirm_by_s:
                self._lost(_slow(self._settings.rebalance_timeout_ms))
                self._poke.set()
            idle_s = self._reader.idle_s
            if self.owned and idle_s * 1000 > self._settings.max_poll_interval_ms:
                await self._leave_idle(idle_s)

    async def _leave_idle(self, idle_s: float) -> None:
        """Leave until the application polls again; heartbeats pause, so that none follows the last one.

        The application may poll before the coordinator answers, and other members may have the partitions by then.
        """
        self._leaving = True
        self._lost(_idle(idle_s))
        self._may_be_in = True
        try:
            await self._leave(LEAVING)
            self._may_be_in = False
        finally:
            self._leaving = False

    # -- reconciliation ------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """After each assignment, make the assigned partitions the partitions that are read."""
        while True:
            await self._new_assignment.wait()
            self._new_assignment.clear()
            while self._wanted is not None and self._wanted != self.owned:
                if self._new_assignment.is_set():  # arrived while this member waited for a partition without a leader
                    self._new_assignment.clear()
                    self._confirm()
                try:
                    await self._step(self._wanted)
                except TidemarkError as error:
                    if error.code in _LOST:  # the next heartbeat would also get this refusal
                        self._lost(error)
                        self._poke.set()
                        continue
                    # ON_ITS_WAY: the coordinator has newer metadata than the broker that refused.
                    if not error.retriable and error.code not in ON_ITS_WAY:
                        self._fail(error)
                        return
                    _log.info("group %s: the reconciliation is retried: %s", self._settings.group, error)
                    await asyncio.sleep(_LOOK_S)
            self._confirm()

    def _confirm(self) -> None:
        """Confirm an assignment even if it is unchanged, because the coordinator may wait for the confirmation."""
        if self._wanted is not None and self.member_epoch > JOINING:
            self._full_heartbeat = True
            self._poke.set()

    async def _step(self, wanted: frozenset[TopicPartition]) -> None:
        gone = self.owned - wanted
        if gone:
            await self._release(gone)
        added = (self._wanted or frozenset()) & (wanted - self.owned)
        if added:
            joins = self._joins
            self._taking = added
            try:
                taken = await self._reader.take_up(added)
            finally:
                self._taking = frozenset()
            if joins == self._joins:
                self.owned |= taken  # the next step releases those that are not wanted any more
            else:  # the positions are too old, since another member may have read further
                self._reader.drop(taken)
            if not taken and not gone:
                await asyncio.sleep(_LOOK_S)  # no leader of these partitions answers
                return
        self._full_heartbeat = True
        self._poke.set()
        self._on_reconciled()

    async def _release(self, partitions: frozenset[TopicPartition]) -> None:
        await self._reader.release(partitions)
        try:
            if self._settings.auto_commit_interval_ms:
                await self._commit_processed(partitions & self.owned, _CALL_TIMEOUT_S)
        except TidemarkError as error:
            _log.warning("group %s: the commit of revoked partitions failed: %s", self._settings.group, error)
        self._reader.drop(partitions)
        self.owned -= partitions
        self._releases.update(partitions)
        for partition in partitions:
            self._committed.pop(partition, None)

    # -- commits -------------------------------------------------------------------------------------------------------

    async def _auto_commit(self) -> None:
        while True:
            await asyncio.sleep(self._settings.auto_commit_interval_ms / 1000)
            try:
                await self._commit_processed(self.owned, _CALL_TIMEOUT_S)
            except TidemarkError as error:
                _log.info("group %s: the automatic commit is retried later: %s", self._settings.group, error)

    async def _commit_processed(self, partitions: frozenset[TopicPartition], timeout_s: float) -> None:
        async with self._turn(timeout_s) as deadline_s:
            processed = self._reader.processed()
            changed = [
                processed[partition]
                for partition in sorted(partitions & processed.keys())
                if processed[partition].offset != self._committed.get(partition)
            ]
            await self._commit(changed, deadline_s, self._held_since_now(changed))

    def _held_since_now(self, found: Iterable[GroupPosition]) -> Callable[[], None]:
        """Return a check that this member has held the partitions without interruption since now.

        Otherwise another member may have committed later offsets. The coordinator would accept the older ones of a
        partition that has come back.
        """
        joins, releases = self._joins, {one.partition: self._releases[one.partition] for one in found}

        def check() -> None:
            if joins != self._joins:
                raise _rejoined()
            for partition, count in releases.items():
                if self._releases[partition] != count:
                    raise _released(partition)

        return check

    def began_at(self, partition: TopicPartition, offset: int) -> None:
        """Note the committed offset of a partition."""
        self._committed[partition] = offset

    async def _newer_epoch(self, epoch: int, deadline_s: float) -> bool:
        """Wait for another member epoch; False after the timeout."""
        self._full_heartbeat = True
        self._poke.set()
        while self.member_epoch == epoch:
            self._new_epoch.clear()
            try:
                async with timeout(deadline_s - time.monotonic()):
                    await self._new_epoch.wait()
            except TimeoutError:
                return False
        return True


def _rejoined() -> TidemarkError:
    return TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        "the member joined again after reading these records; other members may have read further, so no offset is "
        "committed",
    )


def _released(partition: TopicPartition) -> TidemarkError:
    return TidemarkError(
        ErrorCode.PARTITION_NOT_ASSIGNED,
        f"{partition} has left this member since the commit began; another member may have read further, so no offset "
        "is committed",
    )


def _idle(idle_s: float) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_MEMBER,
        f"the application did not poll for {idle_s:.0f} s, longer than max_poll_interval_ms, so other members get its "
        "partitions",
    )


def _slow(rebalance_timeout_ms: int) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_MEMBER,
        f"revoked partitions were not released within rebalance_timeout_ms, {rebalance_timeout_ms}: other members get "
        "them",
    )


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _named(request: pb.GroupHeartbeatRequest) -> frozenset[TopicPartition] | None:
    """Return the owned partitions that the heartbeat reports; None: it reports none."""
    if not request.HasField("owned"):
        return None
    return frozenset(TopicPartition(one.topic, index) for one in request.owned.topics for index in one.partitions)


def _retrieve(task: asyncio.Future[pb.GroupHeartbeatResponse]) -> None:
    """Read the error of a heartbeat that no task waits for; asyncio would report an unread one."""
    if not task.cancelled():
        task.exception()
