# SPDX-License-Identifier: Apache-2.0
"""Reading as a member of a consumer group: what the membership decides becomes cursors, and the other way round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, cast

from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.membership import Membership
from tidemark.client.group.offset_commits import Commits, GroupPosition, raise_refused
from tidemark.client.group.settings import GroupSettings
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition
from tidemark.v1 import group_service_pb2 as pb

HandOver = Callable[[list[TopicPartition]], Awaitable[None]]
"""Told of partitions that come or go."""

_FETCH_TIMEOUT_S = 10.0
_COMING_S = 3.0
"""So long an application that leaves may still be told of what came, before it is told that it goes."""


class GroupReader:
    """The `Reader` of a membership; on one event loop.

    Args:
        starts: makes a cursor of a partition at a start.
    """

    def __init__(
        self,
        cluster: Cluster,
        fetcher: Fetcher,
        settings: GroupSettings,
        starts: Callable[[TopicPartition, Any], Awaitable[Cursor]],
    ) -> None:
        self.error: TidemarkError | None = None
        self._settings = settings
        self._fetcher = fetcher
        self._starts = starts
        self._coordinator = Coordinator(cluster, settings.group)
        self._commits = Commits(settings)
        self._membership: Membership | None = None
        self._handlers: tuple[HandOver | None, HandOver | None, HandOver | None] = (None, None, None)
        self._in_hand: TopicPartition | None = None
        self._let_go = asyncio.Event()
        self._working_since_s: float | None = None
        self._told: set[asyncio.Future[None]] = set()
        self._coming: asyncio.Future[None] | None = None
        """Tells the application of partitions that came."""
        self._mine: set[TopicPartition] = set()
        """The application was told that these came, and nothing of them since."""

    # -- the consumer's side -------------------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        """Whether it has subscribed."""
        return self._membership is not None

    @property
    def member_id(self) -> str:
        """Its id in the group; empty while it is no member."""
        return "" if self._membership is None else self._membership.member_id

    @property
    def member_epoch(self) -> int:
        """The generation of its group that it reads in; 0 while it joins, and while it is no member."""
        return 0 if self._membership is None else self._membership.member_epoch

    async def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: HandOver | None,
        on_revoked: HandOver | None,
        on_lost: HandOver | None,
    ) -> None:
        """Become a member, or want other topics; no topics: leave."""
        wanted = frozenset(topics)
        if self.error is not None or not wanted:
            await self._leave()  # that is told to whom what it has was told
        self._handlers = (on_assigned, on_revoked, on_lost)
        if not wanted:
            return
        self.gave(None)
        if self._membership is None:
            self._membership = Membership(self._coordinator, self._settings, self, commits=self._commits)
            self._membership.start(wanted)
        else:
            self._membership.subscribe(wanted)

    async def stop(self) -> None:
        """Leave, after a last commit."""
        await self._leave()
        await asyncio.gather(*self._told, return_exceptions=True)

    async def _leave(self) -> None:
        try:
            if self._coming is not None and not self._coming.done() and self._coming is not asyncio.current_task():
                await asyncio.wait([self._coming], timeout=_COMING_S)
            while self._membership is not None and self.error is None and self._mine:
                going, self._mine = self._mine, set()
                await self._tell(self._handlers[1], going)
        finally:
            self._mine.clear()
            membership, self._membership = self._membership, None
            failed, self.error = self.error, None
            if membership is not None:
                try:
                    await membership.stop(commit=failed is None)
                finally:
                    self.suspend(suspended=False)

    def asked(self) -> None:
        """The application is done with what it had, and asks for more."""
        if self.is_suspended:
            self.suspend(suspended=True)  # the process may have stood still: nobody has looked at the clock since
        self._working_since_s = None
        if self._in_hand is not None:
            self._in_hand = None
            self._let_go.set()

    def gave(self, partition: TopicPartition | None) -> None:
        """The application works, on something of that partition or on something else."""
        self._working_since_s = time.monotonic()
        self._in_hand = partition

    @property
    def wants_back(self) -> bool:
        """Whether what was given and not worked on yet should be given back: others wait for it, or may have it."""
        if self.is_suspended:
            return True
        cursor = None if self._in_hand is None else self._fetcher.cursors.get(self._in_hand)
        return self._in_hand is not None and (cursor is None or cursor.withheld)

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is given: what it reads may be somebody else's, as of this very moment; from any thread."""
        return self._fetcher.suspended or (self._membership is not None and self._membership.may_be_out)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None, *, timeout_s: float) -> None:
        """Have the group remember what was given, or these."""
        if offsets is None:
            positions = [_position(cursor, cursor.position, cursor.position_epoch) for cursor in self._cursors()]
        else:
            positions = [self._at(where, offset) for where, offset in offsets.items()]
        if self._membership is not None:
            await self._membership.commit(positions, timeout_s=timeout_s)
        elif positions:
            request = self._commits.request(positions, "", NO_EPOCH)
            response = await self._coordinator.call(lambda stub: stub.CommitOffsets, request, timeout_s=timeout_s)
            raise_refused(response.partitions)

    async def fetch(
        self, partitions: Iterable[TopicPartition] | None, *, timeout_s: float
    ) -> dict[TopicPartition, pb.CommittedOffset]:
        """What the group remembers of these; None: of all."""
        request = pb.FetchOffsetsRequest(group_id=self._settings.group, member_epoch=NO_EPOCH)
        for where in partitions or ():
            request.partitions.add(topic=where.topic, partition=where.partition)
        if partitions is not None and not request.partitions:
            return {}
        if self._membership is not None:
            request.member_id, request.member_epoch = self.member_id, self._membership.member_epoch
        response = await self._coordinator.call(lambda stub: stub.FetchOffsets, request, timeout_s=timeout_s)
        return {TopicPartition(one.topic, one.partition): one for one in response.offsets}

    def _cursors(self) -> list[Cursor]:
        """What it reads; of a member, what the group gave it."""
        mine = self._fetcher.cursors if self._membership is None else self._membership.owned
        return [cursor for where, cursor in self._fetcher.cursors.items() if where in mine]

    def _at(self, where: TopicPartition, offset: int) -> GroupPosition:
        if offset < 0:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{where}: there is no offset {offset}")
        cursor = self._fetcher.cursors.get(where)
        if cursor is None:
            return GroupPosition(where, offset, NO_EPOCH, "", "")
        epoch = cursor.position_epoch if offset == cursor.position else NO_EPOCH
        return _position(cursor, offset, epoch)

    # -- the membership's side -----------------------------------------------------------------------------------------

    @property
    def idle_s(self) -> float:
        """How long the application has worked on what it has."""
        return 0.0 if self._working_since_s is None else time.monotonic() - self._working_since_s

    async def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Give no more of these; return when the application is done with what it has of them."""
        cursors = self._fetcher.cursors
        for where in partitions & cursors.keys():
            cursors[where].withheld = True
        while self._in_hand in partitions and self._in_hand in cursors:
            self._let_go.clear()
            await self._let_go.wait()
        going = partitions & self._mine
        self._mine -= going
        await self._tell(self._handlers[1], going)

    def processed(self) -> dict[TopicPartition, GroupPosition]:
        """How far the application is done."""
        return {
            where: _position(cursor, cursor.processed, cursor.processed_epoch)
            for where, cursor in self._fetcher.cursors.items()
        }

    async def take_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Read these too, from where the group is."""
        membership = self._membership
        known = await self.fetch(sorted(partitions), timeout_s=_FETCH_TIMEOUT_S)
        made: dict[TopicPartition, Cursor] = {}
        for where in sorted(partitions):
            offset = known[where].offset if where in known else -1
            made[where] = await self._starts(where, offset if offset >= 0 else self._reset(where))
            if membership is not None and offset >= 0:
                membership.began_at(where, offset)
        self._mine |= partitions
        self._coming = asyncio.ensure_future(self._tell(self._handlers[0], partitions))
        await self._coming
        for where, cursor in made.items():
            self._fetcher.cursors[where] = cursor
            self._fetcher.moved(cursor)

    def _reset(self, where: TopicPartition) -> str:
        if self._settings.offset_reset != "fail":
            return self._settings.offset_reset
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the group {self._settings.group} has read nothing of {where} yet, and offset_reset is fail: set its "
            "offsets with `tidemark group reset-offsets`, or say earliest or latest",
        )

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, at once."""
        mine = frozenset(partitions)
        dropped = mine & self._fetcher.cursors.keys()
        lost = sorted(mine & self._mine)
        self._mine -= mine
        for where in dropped:
            cursor = self._fetcher.cursors.pop(where)
            cursor.withheld = True
            cursor.seek(cursor.position)
        self._fetcher.regroup()
        self._let_go.set()
        if lost and self._handlers[2] is not None and self._membership is not None:
            telling = asyncio.ensure_future(self._tell(self._handlers[2], lost))
            self._told.add(telling)
            telling.add_done_callback(self._told.discard)

    def suspend(self, *, suspended: bool) -> None:
        """While suspended nothing is given."""
        if self._fetcher.suspended != suspended:
            self._fetcher.suspended = suspended
            self._fetcher.wake()

    def fail(self, error: TidemarkError) -> None:
        """The application is told with its next read."""
        self.error = error
        self._fetcher.wake()

    async def _tell(self, handler: HandOver | None, partitions: Collection[TopicPartition]) -> None:
        if handler is None or not partitions:
            return
        try:
            await handler(sorted(partitions))
        except asyncio.CancelledError as error:  # of a worker that it awaited, or of this hand-over
            if cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise
            self._application_failed(error)
        except Exception as error:  # noqa: BLE001 - the application's own; it is told with its next read
            self._application_failed(error)

    def _application_failed(self, error: BaseException) -> None:
        self.fail(TidemarkError(ErrorCode.INTERNAL, f"the application failed in a hand-over: {error!r}"))


def _position(cursor: Cursor, offset: int, epoch: int) -> GroupPosition:
    return GroupPosition(cursor.partition, offset, epoch, cursor.topic_id, cursor.incarnation)
