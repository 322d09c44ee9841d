# SPDX-License-Identifier: Apache-2.0
"""Connects a consumer's cursors with its consumer group: assignments, commits, and callbacks of the application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeGuard, cast

from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.membership import Membership
from tidemark.client.group.offset_commits import CommitPatience, Commits, GroupPosition, OpenTransaction
from tidemark.client.group.settings import GroupSettings
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.records import ConsumerRecord
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.rpc.request_limits import in_requests
from tidemark.v1 import group_service_pb2 as pb

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None]]
"""Awaited with the partitions that were assigned, revoked or lost."""

_FETCH_TIMEOUT_S = 10.0
_ASSIGNED_CALL_S = 3.0
"""Time for a running `on_assigned` when the consumer leaves, before `on_revoked` is called.

A running `on_revoked` has the rebalance timeout: after that, other members have its partitions.
"""
_callers: ContextVar[frozenset[asyncio.Future[None]]] = ContextVar("callers", default=frozenset())
"""Callbacks and leaves that wait for the running code, which must not wait for them; a callback's thread has a copy."""


class GroupReader:
    """The `Reader` of a membership; used on one event loop.

    Args:
        cluster: metadata and channels.
        fetcher: fetches for the cursors.
        settings: settings of the group.
        starts: makes cursors of partitions at their starts, of those whose leaders answer soon.
    """

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        settings: GroupSettings,
        starts: Callable[[Mapping[TopicPartition, Any]], Awaitable[dict[TopicPartition, Cursor]]],
    ) -> None:
        self.error: TidemarkError | None = None
        self._cluster = cluster
        self._settings = settings
        self._fetcher = fetcher
        self._starts = starts
        self._coordinator = Coordinator(cluster, settings.group)
        self._commits = Commits(settings)
        self._membership: Membership | None = None
        self._callbacks: tuple[RebalanceCallback | None, ...] = (None, None, None)
        """The callbacks `on_assigned`, `on_revoked` and `on_lost` of the application."""
        self._processing: TopicPartition | None = None
        self._processing_ended = asyncio.Event()
        self._lost_in_process: Cursor | None = None
        """The cursor of the records that the application processes, if the member has lost the partition meanwhile."""
        self._working_since_s: float | None = None
        self._ending: set[asyncio.Future[None]] = set()
        """Running `on_lost`, and a leave; `on_assigned` of other partitions waits for their end."""
        self._assigned_call: asyncio.Future[None] | None = None
        """The task of the running `on_assigned`."""
        self._revoked_call: asyncio.Future[None] | None = None
        """The task of the running `on_revoked` of a rebalance."""
        self._leavers: set[asyncio.Future[None]] = set()
        """Running callbacks that leave the group: the end of the membership does not cancel them."""
        self._announced: set[TopicPartition] = set()
        """Partitions of which the application got `on_assigned`, and neither `on_revoked` nor `on_lost`."""
        self.working_on: ConsumerRecord | None = None
        """The record that the application processes, and before which it has processed those of the polled batch; None
        while it polls. Any thread may set it, since that of the application goes through a batch alone."""
        self._seen: ConsumerRecord | None = None
        """The last known `working_on`."""
        self._left: TopicPartition | None = None
        """A partition that was revoked or lost between the return of its records and the commit of their offsets."""

    # -- the consumer's side -------------------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        """Whether the consumer has subscribed to topics."""
        return self._membership is not None

    @property
    def topics(self) -> frozenset[str]:
        """The topics that the consumer has subscribed to."""
        return frozenset() if self._membership is None else self._membership.topics

    @property
    def waiting(self) -> frozenset[TopicPartition]:
        """Assigned partitions that are not read yet, because their start is not known."""
        return frozenset() if self._membership is None else self._membership.waiting

    @property
    def member_id(self) -> str:
        """Member id in the group; "" without a subscription."""
        return "" if self._membership is None else self._membership.member_id

    @property
    def member_epoch(self) -> int:
        """Member epoch; 0 while joining, and without a subscription."""
        return 0 if self._membership is None else self._membership.member_epoch

    async def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> None:
        """Join the group or change the subscription; without topics: leave the group."""
        wanted = frozenset(topics)
        if self.error is not None or not wanted:
            await self._leave()  # leave with the callbacks of the previous subscription
        self._callbacks = (on_assigned, on_revoked, on_lost)
        if not wanted:
            return
        if not in_callback():
            self.gave(None)
        if self._membership is None:
            self._membership = Membership(self._coordinator, self._settings, self, commits=self._commits)
            self._fetcher.coordinated = True
            self._membership.start(wanted)
        else:
            self._membership.subscribe(wanted)

    async def stop(self) -> None:
        """Commit the processed records and leave the group."""
        await self._leave()
        if ending := self._ending - _callers.get():
            await asyncio.wait(ending)  # a cancelled stop does not cancel them

    async def _leave(self) -> None:
        leaving = asyncio.get_running_loop().create_future()
        self._ending.add(leaving)
        callers = _callers.get()
        self._leavers |= callers
        try:
            await self._end_of_running_calls(callers)
            with _waiting(leaving):
                while self._membership is not None and self._announced:
                    going, self._announced = self._announced, set()
                    await self._call(self._callbacks[1 if self.error is None else 2], going)
        finally:
            self._announced.clear()
            membership, self._membership = self._membership, None
            failed, self.error = self.error, None
            try:
                if membership is not None:
                    await membership.stop(commit=failed is None)
            finally:
                if membership is not None:
                    self._fetcher.coordinated = False
                    self.suspend(suspended=False)
                self._ending.discard(leaving)
                leaving.set_result(None)
                self._leavers -= callers

    async def _end_of_running_calls(self, callers: Collection[asyncio.Future[None]]) -> None:
        """Wait for running callbacks except `callers`; a rebalance may begin another `on_revoked` meanwhile.

        Nothing is awaited after the last look, since the end of the membership cancels a callback that runs.
        """
        if _runs(self._assigned_call) and self._assigned_call not in callers:
            await asyncio.wait([self._assigned_call], timeout=_ASSIGNED_CALL_S)
        until_s = time.monotonic() + self._settings.rebalance_timeout_ms / 1000
        while _runs(self._revoked_call) and self._revoked_call not in callers and time.monotonic() < until_s:
            await asyncio.wait([self._revoked_call], timeout=until_s - time.monotonic())

    def asked(self) -> None:
        """Note that the application has processed the returned records, and polls."""
        if self.is_suspended:
            self.suspend(suspended=True)  # the process may have been suspended, so that `_watch` has not run
        self._working_since_s = None
        if self._processing is not None:
            self._processing = self._lost_in_process = None
            self._processing_ended.set()

    def gave(self, partition: TopicPartition | None) -> None:
        """Note that the application processes records, of this partition if given."""
        self._working_since_s = time.monotonic()
        self._processing = partition

    def _settle_before(self, record: ConsumerRecord | None) -> Cursor | None:
        """Note that the records before this one are processed; the cursor, unless the record is of an earlier batch."""
        cursor = None if record is None else self._fetcher.cursors.get(TopicPartition(*record[:2]))
        if record is None or cursor is None or not cursor.processed <= record.offset < cursor.position:
            return None
        if record.offset > cursor.processed:
            cursor.processed, cursor.processed_epoch = record.offset, cursor.position_epoch
        return cursor

    @property
    def is_suspended(self) -> bool:
        """Whether no records may be returned, because other members may have the partitions now; for any thread."""
        return self._fetcher.suspended or (self._membership is not None and self._membership.may_be_out)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None,
        *,
        timeout_s: float,
        transaction: OpenTransaction | None = None,
        before: ConsumerRecord | None = None,
    ) -> None:
        """Commit these offsets, in a transaction if given.

        None: the offsets of all returned records; in a callback of a rebalance, of all processed records. The
        application may be processing a returned record of another partition meanwhile. `before`: the first record of
        the polled batch that was not returned.

        The commit of all records is refused with FENCED_MEMBER_EPOCH if the member has lost the partition of the last
        returned records before they were committed, and before the application polled again.

        A transaction may have results of records whose partition has left. The partition may even be assigned again,
        with its position set back. So the commit in the transaction is refused with FENCED_MEMBER_EPOCH.
        """
        if transaction is not None and self._left is not None:
            left, self._left = self._left, None
            raise _left_before_commit(left)
        if offsets is None and in_callback():
            processed = self.processed()
            positions = [processed[cursor.partition] for cursor in self._cursors()]
        elif offsets is None:
            lost = self._lost_in_process
            if lost is not None and _returned_end(lost, before) > lost.covered:
                raise _lost_before_commit(lost.partition)
            within = self._settle_before(before)
            positions = [_processed(one) if one is within else _returned(one) for one in self._cursors()]
        else:
            positions = [self._at(where, offset) for where, offset in offsets.items()]
        cursors = [self._fetcher.cursors.get(one.partition) for one in positions]  # some may leave during the commit
        places = [None if cursor is None else (cursor.seeks, cursor.position) for cursor in cursors]
        if self._membership is not None:
            await self._membership.commit(positions, timeout_s=timeout_s, transaction=transaction)
        else:
            await self._commit_without_members(positions, time.monotonic() + timeout_s, transaction)
        for one, cursor, place in zip(positions, cursors, places, strict=True):
            if cursor is None or place is None:
                continue
            cursor.covered = one.offset
            seeks, reached = place
            if transaction is None and cursor.seeks == seeks and one.offset <= reached:
                cursor.committed, cursor.committed_epoch = one.offset, one.leader_epoch

    async def _commit_without_members(
        self, positions: Sequence[GroupPosition], deadline_s: float, transaction: OpenTransaction | None
    ) -> None:
        patience = CommitPatience(deadline_s)
        for some in in_requests(positions) if positions else ():
            retries = True
            while retries:
                request = self._commits.request(some, "", NO_EPOCH, transaction)
                left_s = deadline_s - time.monotonic()
                response = await self._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=left_s)
                retries = await patience.is_to_be_retried(response.partitions)

    async def seek_to_committed(self, *, timeout_s: float) -> None:
        """Move all cursors back to the committed offsets, or without one to the first position."""
        self._left = self._lost_in_process = None
        cursors = {cursor.partition: cursor for cursor in self._cursors()}
        known = await self.fetch(sorted(cursors), timeout_s=timeout_s)
        # Others left during the wait. All are checked first, so that a failed call moves none.
        cursors = {where: one for where, one in cursors.items() if self._fetcher.cursors.get(where) is one}
        offsets = {where: known[where] for where in cursors if where in known and known[where].offset >= 0}
        for where in offsets:
            self._check_same(cursors[where], offsets[where])
        for where, cursor in cursors.items():
            committed = offsets.get(where)
            cursor.seek(cursor.began if committed is None else committed.offset)
            cursor.covered = cursor.position
            if committed is not None:
                cursor.follows(committed.leader_epoch)
        self._fetcher.moved(*cursors.values())

    async def fetch(
        self, partitions: Iterable[TopicPartition] | None, *, timeout_s: float, as_member: bool = False
    ) -> dict[TopicPartition, pb.CommittedOffset]:
        """Fetch the committed offsets of these partitions; None: of all.

        With `as_member`, the fetch of an evicted member is refused.
        """
        named = list(partitions or ())
        if partitions is not None and not named:
            return {}
        found: dict[TopicPartition, pb.CommittedOffset] = {}
        for some in in_requests(named):
            request = pb.FetchOffsetsRequest(group_id=self._settings.group, member_epoch=NO_EPOCH, require_stable=True)
            request.partitions.extend(map(ref_to_proto, some))
            if self._membership is not None and as_member:
                request.member_id, request.member_epoch = self.member_id, self._membership.member_epoch
            response = await self._coordinator.call(lambda stub: stub.FetchOffsets, request, timeout_s=timeout_s)
            found |= {TopicPartition(one.topic, one.partition): one for one in response.offsets}
        return found

    def _cursors(self) -> list[Cursor]:
        """List the cursors; for a member of a group, only cursors of its assignment."""
        mine = self._fetcher.cursors if self._membership is None else self._membership.owned
        return [cursor for where, cursor in self._fetcher.cursors.items() if where in mine]

    def _at(self, where: TopicPartition, offset: int) -> GroupPosition:
        if offset < 0:
            raise invalid_request(f"{where}: {offset} is not an offset")
        cursor = self._fetcher.cursors.get(where)
        if cursor is None:
            return GroupPosition(where, offset, NO_EPOCH, "", "")
        epoch = cursor.position_epoch if offset == cursor.position else NO_EPOCH
        return _position(cursor, offset, epoch)

    # -- the membership's side -----------------------------------------------------------------------------------------

    @property
    def idle_s(self) -> float:
        """Time for which the application has processed the returned records, or the same record of them, in seconds."""
        if self.working_on is not None and self.working_on is not self._seen:
            self._seen, self._working_since_s = self.working_on, time.monotonic()
        return 0.0 if self._working_since_s is None else time.monotonic() - self._working_since_s

    async def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop returning records of these partitions; wait until the application has processed the returned ones."""
        cursors = self._fetcher.cursors
        for where in partitions & cursors.keys():
            cursors[where].withheld = True
        while self._processing in partitions and self._processing in cursors:
            self._processing_ended.clear()
            await self._processing_ended.wait()
        going = partitions & self._announced
        self._announced -= going
        self._revoked_call = asyncio.ensure_future(self._call(self._callbacks[1], going))
        await self._revoked_call

    def processed(self) -> dict[TopicPartition, GroupPosition]:
        """Return the positions up to which the application has processed records, or has committed them itself."""
        self._settle_before(self.working_on)
        return {where: _processed_or_committed(cursor) for where, cursor in self._fetcher.cursors.items()}

    async def take_up(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Read these partitions, too, from the committed offsets, after `on_assigned`; returns those that are read.

        A partition without a committed offset is not read while its leader does not answer. A partition of a topic that
        was created again is not read before the metadata of this client have the assigned topic.
        """
        membership = self._membership
        known = await self.fetch(sorted(partitions), timeout_s=_FETCH_TIMEOUT_S, as_member=True)
        committed = {where: known[where] for where in partitions if where in known and known[where].offset >= 0}
        made = self._of_assigned_topics(
            await self._starts(
                {
                    where: committed[where].offset if where in committed else self._reset(where)
                    for where in sorted(partitions)
                }
            )
        )
        for where in made.keys() & committed.keys():
            self._check_same(made[where], committed[where])
            made[where].follows(committed[where].leader_epoch)
            if membership is not None:
                membership.began_at(where, committed[where].offset)
        while self._ending:
            await asyncio.wait(self._ending)
        self._announced |= made.keys()
        for cursor in made.values():
            cursor.withheld = True  # until the end of `on_assigned`, which may seek and pause
        self._fetcher.cursors.update(made)
        self._assigned_call = asyncio.ensure_future(self._call(self._callbacks[0], made))
        try:
            await self._assigned_call
        except asyncio.CancelledError:
            for where in self._among_cursors(made):
                del self._fetcher.cursors[where]
            raise
        kept = [made[where] for where in self._among_cursors(made)]
        for cursor in kept:
            cursor.withheld = False
        self._fetcher.moved(*kept)
        return frozenset(made)

    def _of_assigned_topics(self, made: Mapping[TopicPartition, Cursor]) -> dict[TopicPartition, Cursor]:
        """The cursors of the assigned topics, without those of deleted topics of the same names."""
        membership = self._membership
        assigned = {
            where: cursor
            for where, cursor in made.items()
            if membership is None or membership.topic_id(where.topic) in ("", cursor.topic_id)
        }
        if len(assigned) < len(made):
            self._cluster.refresh()
        return assigned

    def _check_same(self, cursor: Cursor, committed: pb.CommittedOffset) -> None:
        """Refuse an offset of another incarnation of the partition: metadata of a broker may be old for a moment."""
        if (cursor.topic_id, cursor.incarnation) != (committed.topic_id, committed.incarnation):
            self._cluster.refresh()
            raise TidemarkError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{cursor.partition} was deleted and created again, and not every broker knows this yet; retry",
            )

    def _among_cursors(self, made: Mapping[TopicPartition, Cursor]) -> list[TopicPartition]:
        """The partitions of which these cursors are still read."""
        return [where for where, cursor in made.items() if self._fetcher.cursors.get(where) is cursor]

    def _reset(self, where: TopicPartition) -> str:
        if self._settings.offset_reset != "fail":
            return self._settings.offset_reset
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the group {self._settings.group} has no committed offset of {where}, and offset_reset is fail: set its "
            "offsets with `tidemark group reset-offsets`, or set offset_reset to earliest or latest",
        )

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions immediately; calls `on_lost` for those that the application got."""
        mine = frozenset(partitions)
        dropped = mine & self._fetcher.cursors.keys()
        lost = sorted(mine & self._announced)
        self._announced -= mine
        for where in dropped:
            cursor = self._fetcher.cursors.pop(where)
            if where == self._processing and where in lost:
                self._lost_in_process = cursor
            if cursor.position > cursor.covered:
                self._left = where
            cursor.withheld = True
            cursor.seek(cursor.position)
        self._fetcher.regroup()
        self._processing_ended.set()
        if lost and self._callbacks[2] is not None and self._membership is not None:
            lost_call = asyncio.ensure_future(self._call_lost(self._callbacks[2], lost))
            self._ending.add(lost_call)
            lost_call.add_done_callback(self._ending.discard)

    async def _call_lost(self, on_lost: RebalanceCallback, partitions: list[TopicPartition]) -> None:
        if self._assigned_call is not None and not self._assigned_call.done():
            await asyncio.wait([self._assigned_call])
        await self._call(on_lost, partitions)

    def suspend(self, *, suspended: bool) -> None:
        """Return no records while `suspended` is true."""
        if self._fetcher.suspended != suspended:
            self._fetcher.suspended = suspended
            self._fetcher.wake()

    def fail(self, error: TidemarkError) -> None:
        """Raise this error with the next read."""
        self.error = error
        self._fetcher.wake()

    async def _call(self, callback: RebalanceCallback | None, partitions: Collection[TopicPartition]) -> None:
        """Run a callback in a task of its own, which continues even if the callback leaves the group."""
        if callback is None or not partitions:
            return
        with _waiting(_this_task()):
            calling = asyncio.create_task(self._run(callback, partitions))
        try:
            await asyncio.wait([calling])
        except asyncio.CancelledError:
            if calling not in self._leavers:
                calling.cancel()
                await asyncio.wait([calling])
            raise

    async def _run(self, callback: RebalanceCallback, partitions: Collection[TopicPartition]) -> None:
        task = _this_task()
        try:
            with _waiting(task):
                await callback(sorted(partitions))
        except asyncio.CancelledError as error:  # cancelled by a task that the callback awaited, or from outside
            if task.cancelling():
                raise
            self._application_failed(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the application's error; the next read raises it
            self._application_failed(error)

    def _application_failed(self, error: BaseException) -> None:
        self.fail(TidemarkError(ErrorCode.INTERNAL, f"a callback of subscribe failed: {error!r}"))


def _this_task() -> asyncio.Task[None]:
    return cast("asyncio.Task[None]", asyncio.current_task())


def in_callback() -> bool:
    """Whether this code, or its thread, runs in a callback of a rebalance."""
    return any(not caller.done() for caller in _callers.get())


@contextlib.contextmanager
def _waiting(caller: asyncio.Future[None]) -> Iterator[None]:
    token = _callers.set(frozenset(one for one in _callers.get() if not one.done()) | {caller})
    try:
        yield
    finally:
        _callers.reset(token)


def _runs(call: asyncio.Future[None] | None) -> TypeGuard[asyncio.Future[None]]:
    return call is not None and not call.done()


def _processed_or_committed(cursor: Cursor) -> GroupPosition:
    if cursor.committed > cursor.processed:
        return _position(cursor, cursor.committed, cursor.committed_epoch)
    return _processed(cursor)


def _processed(cursor: Cursor) -> GroupPosition:
    return _position(cursor, cursor.processed, cursor.processed_epoch)


def _returned(cursor: Cursor) -> GroupPosition:
    return _position(cursor, cursor.position, cursor.position_epoch)


def _returned_end(cursor: Cursor, before: ConsumerRecord | None) -> int:
    """The offset after the last record of a partition that the application got."""
    return cursor.position if before is None or before[:2] != cursor.partition else before.offset


def _position(cursor: Cursor, offset: int, epoch: int) -> GroupPosition:
    return GroupPosition(cursor.partition, offset, epoch, cursor.topic_id, cursor.incarnation)


def _left_before_commit(where: TopicPartition) -> TidemarkError:
    return TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"{where} was revoked or lost after its records were returned, and before their offsets were committed. The "
        "member that has it reads them again, so the transaction can only be aborted. Then call seek_to_committed()",
    )


def _lost_before_commit(where: TopicPartition) -> TidemarkError:
    return TidemarkError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"{where} was lost after its records were returned, and before their offsets were committed. The member that "
        "has it reads them again",
    )
