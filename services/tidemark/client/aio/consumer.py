# SPDX-License-Identifier: Apache-2.0
"""The async consumer: assigned partitions, committed records only (rules K1, K2, E4, E6)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any

import grpc

from tidemark.client.consuming.fetcher import MISPLACED, Fetcher
from tidemark.client.consuming.health import ConsumerMetrics, PartitionHealth, health_of, lag_of, total_lag
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.group.group_reader import GroupReader, RebalanceCallback
from tidemark.client.group.settings import GROUP_SETTINGS, group_settings
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import Cluster, unknown_partition
from tidemark.client.records import (
    ConsumerRecord,
    OffsetAndTimestamp,
    PartitionBatch,
    Timestamp,
    as_partition,
    records_of,
)
from tidemark.client.settings import consumer_settings
from tidemark.core.cluster_view import TopicView
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2 as pb

_log = logging.getLogger("tidemark.client")

Start = str | int | Timestamp
"""Where to begin: "earliest", "latest", an offset, or a Timestamp (the end, when no record is so young)."""


class Consumer(Lifecycle):
    """Reads partitions that it is told to read, or that its group gives it.

    Records of one partition come in order, each once; partitions take turns. A partition whose leader fails is read
    on from the next one. OFFSET_OUT_OF_RANGE, LOG_TRUNCATED and UNKNOWN_TOPIC_ID are raised, again and again, until
    that partition is sought or assigned elsewhere.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        group: id of the consumer group: `subscribe` shares topics with its other members, `commit` remembers how far it
            has read; None: offsets are the caller's to keep.
        settings: as `client.settings.consumer_settings`: fetch_max_wait_ms, max_bytes, max_partition_bytes,
            read_ahead_bytes, request_timeout_ms, out_of_range, rack; with a group, as `client.group.settings` too:
            instance_id, assignor, client_id, auto_commit_interval_ms, rebalance_timeout_ms, max_poll_interval_ms,
            offset_reset.

    async with Consumer("127.0.0.1:9192") as consumer:
        await consumer.assign("greetings")
        async for record in consumer:
            ...

    async with Consumer("127.0.0.1:9192", group="readers") as consumer:
        await consumer.subscribe(["greetings"])
        async for record in consumer:
            ...  # when the next one is asked for, this one is done with, and committed within seconds
    """

    def __init__(self, bootstrap: str | None = None, *, group: str | None = None, **settings: Any) -> None:
        for_group = {name: settings.pop(name) for name in GROUP_SETTINGS if name in settings} if group else {}
        self.group_settings = None if group is None else group_settings(group, **for_group)
        self.settings = consumer_settings(**settings)
        self.cluster = Cluster(bootstrap, timeout_s=self.settings.request_timeout_ms / 1000)
        self._group: GroupReader | None = None
        self._started: Fetcher | None = None
        self._held: Cursor | None = None
        """What the application was given last is of this one."""
        self._failed = False
        self._given_records = 0
        self._resets: set[asyncio.Task[None]] = set()
        self._records: list[ConsumerRecord] = []
        """Of the batch that is being iterated, from the last to the next."""
        self._reading: tuple[Cursor, int] | None = None

    async def start(self) -> None:
        """Reach the cluster; raises BROKER_NOT_AVAILABLE with the cause of each address."""
        await self.cluster.start()
        self._started = Fetcher(self.cluster, self.settings, on_out_of_range=self._on_out_of_range)
        self._started.start()
        if self.group_settings is not None:
            self._group = GroupReader(self.cluster, self._started, self.group_settings, self.starts)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = error is not None  # then the application may not be done with what it was given last
        await self.close()

    async def close(self) -> None:
        """Stop fetching; whoever waits for records is told. A member leaves its group, after a last commit."""
        if not self._failed:
            self._done_with_last()
        try:
            if self._group is not None:
                await self._group.stop()  # the application may commit when it is told of it
        finally:
            self._group = None
            await self._end()

    async def _end(self) -> None:
        for task in self._resets:
            task.cancel()
        fetcher, self._started = self._started, None
        try:
            await asyncio.gather(*self._resets, return_exceptions=True)
        finally:
            if fetcher is not None:
                await fetcher.stop()
            await self.cluster.close()

    @property
    def _fetcher(self) -> Fetcher:
        if self._started is None:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "the consumer is not started, or closed")
        return self._started

    # -- what is read --------------------------------------------------------------------------------------------------

    async def assign(
        self, topic: str, partitions: Iterable[int] | None = None, start: Start = "earliest"
    ) -> list[TopicPartition]:
        """Read partitions of a topic (None: all it has now) from `start` on, beside what is assigned already.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_REQUEST; REQUEST_TIMED_OUT when a start could not
                be looked up in time.
        """
        fetcher = self._fetcher
        if self._group is not None and self._group.is_member:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, "subscribe or assign: the group gives this consumer its own")
        view = await self.cluster.topic(topic, timeout_s=self.settings.request_timeout_ms / 1000)
        indexes = sorted(view.partitions if partitions is None else set(partitions))
        if indexes and indexes[-1] not in view.partitions:  # it may have been added just now
            timeout_s = self.settings.request_timeout_ms / 1000
            await self.cluster.partition_count(topic, timeout_s=timeout_s, beyond=indexes[-1])
            view = await self.cluster.topic(topic, timeout_s=timeout_s)
        for index in indexes:
            if index not in view.partitions:
                raise unknown_partition(TopicPartition(topic, index), len(view.partitions))
        offsets = await asyncio.gather(*(self._offset_of(TopicPartition(topic, index), start) for index in indexes))
        assigned = []
        for index, offset in zip(indexes, offsets, strict=True):
            where = TopicPartition(topic, index)
            before = fetcher.cursors.get(where)
            if before is not None:
                before.seek(offset)  # what is under way for it is of no use any more
            cursor = fetcher.cursors[where] = self._cursor(view, where, offset)
            fetcher.moved(cursor)
            assigned.append(where)
        return assigned

    async def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Share topics with the other members of the group; partitions come and go from now on.

        Args:
            topics: what to read, or the one topic; none: leave the group. A topic that does not exist yet is read from
                when it does.
            on_assigned: awaited with partitions that came, before the first record of them.
            on_revoked: awaited with partitions that go, when the application is done with what it was given of them and
                before that is committed and others read on.
            on_lost: the same for partitions that others may be reading by now, as this member was silent for too long.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME; INVALID_REQUEST without a group, or beside `assign`. What forbids the
                group comes with the next read: INCONSISTENT_GROUP_PROTOCOL, UNSUPPORTED_ASSIGNOR, GROUP_FULL,
                FENCED_INSTANCE_ID.
        """
        topics = frozenset([topics] if isinstance(topics, str) else topics)
        for topic in topics:
            check_topic_name(topic)
        group = self.reading_group
        if self._fetcher.cursors and not group.is_member:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, "subscribe or assign: this consumer has partitions assigned")
        self._done_with_last()
        await group.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)

    async def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        """Have the group remember offsets (the next to read); None: of everything that was given.

        Raises:
            TidemarkError: FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER when others may be reading these partitions by now,
                PARTITION_NOT_ASSIGNED, UNKNOWN_TOPIC, OFFSET_METADATA_TOO_LARGE; REQUEST_TIMED_OUT.
        """
        if offsets is None and self._held is not None:
            self._held.settle()  # or the next automatic commit would go back behind this one
        wanted = None if offsets is None else {as_partition(where): offset for where, offset in offsets.items()}
        await self.reading_group.commit(wanted, timeout_s=self.settings.request_timeout_ms / 1000)

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """What the group remembers of these (None: of all), without those it has read nothing of."""
        wanted = None if partitions is None else [as_partition(where) for where in partitions]
        found = await self.reading_group.fetch(wanted, timeout_s=self.settings.request_timeout_ms / 1000)
        return {where: one.offset for where, one in found.items() if one.offset >= 0}

    @property
    def reading_group(self) -> GroupReader:
        """The group; raises INVALID_REQUEST without one."""
        self._fetcher  # noqa: B018 - raises when closed
        if self._group is None:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST, "this consumer has no group: give it one, Consumer(group=...)"
            )
        return self._group

    def unassign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these no more."""
        for where in map(as_partition, partitions):
            cursor = self._fetcher.cursors.pop(where, None)
            if cursor is not None:
                cursor.seek(cursor.position)
        self._fetcher.regroup()

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Give nothing of these until `resume`; their positions stay."""
        for where in partitions:
            self._cursor_of(where).paused = True

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Give them again."""
        for where in partitions:
            self._cursor_of(where).paused = False
        self._fetcher.look_again()
        self._fetcher.wake()

    @property
    def assignment(self) -> list[TopicPartition]:
        """What is read, by topic and index."""
        return sorted(self._fetcher.cursors)

    async def seek(self, partition: TopicPartition | tuple[str, int], start: Start) -> None:
        """Go on elsewhere in an assigned partition."""
        cursor = self._cursor_of(partition)
        cursor.seek(await self._offset_of(cursor.partition, start))
        self._fetcher.moved(cursor)

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Offset of the next record that is given."""
        return self._cursor_of(partition).position

    def lag(self) -> dict[TopicPartition, int]:
        """Records of each partition that were not given yet, as last heard from its leader; -1: nothing heard yet."""
        return {where: lag_of(cursor) for where, cursor in sorted(self._fetcher.cursors.items())}

    def health(self) -> dict[TopicPartition, PartitionHealth]:
        """What each partition waits for: a silence has a reason."""
        fetcher = self._fetcher
        return health_of(fetcher.cursors, self.cluster, fetcher.nearest, suspended=fetcher.suspended)

    def metrics(self) -> ConsumerMetrics:
        """What was given, and what is read ahead."""
        cursors = self._fetcher.cursors.values()
        read_ahead_bytes = sum(cursor.buffered_bytes for cursor in cursors)
        follower_bytes = self._fetcher.follower_bytes
        return ConsumerMetrics(self._given_records, read_ahead_bytes, *total_lag(cursors), follower_bytes)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """High watermarks, exclusive (None: of what is assigned); never smaller than one seen before (rule E6)."""
        fetcher = self._fetcher
        wanted = self.assignment if partitions is None else [as_partition(where) for where in partitions]
        found = await asyncio.gather(*(self._look_up(where, latest=True) for where in wanted))
        ends = {}
        for where, (offset, _) in zip(wanted, found, strict=True):
            cursor = fetcher.cursors.get(where)
            ends[where] = offset if cursor is None else cursor.saw_high_watermark(offset, fetcher.lineage_of(where))
        return ends

    async def offset_for_timestamp(
        self, partition: TopicPartition | tuple[str, int], timestamp_us: int
    ) -> OffsetAndTimestamp | None:
        """The first record at or after a time, microseconds since 1970; None when none is so young."""
        found = await self._look_up(as_partition(partition), timestamp_us=timestamp_us)
        return None if found.offset < 0 else found

    # -- reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float | None = None) -> PartitionBatch | None:
        """The next rows of some partition, in record.schema.OFFSET_SCHEMA; None when none came within `timeout_s`.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE, LOG_TRUNCATED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC, CORRUPT_BATCH.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._done_with_last()
            found = self._take_batch()
            if found is not None:
                return found
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                if self._group is not None:
                    self._group.gave(None)
                return None
            await self._fetcher.wait_for_rows(left_s)

    async def batches(self) -> AsyncGenerator[PartitionBatch, None]:
        """`poll` for ever; `contextlib.aclosing` ends it where a loop is left early."""
        while True:
            found = await self.poll()
            if found is not None:
                yield found

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            self._done_with_last()
            record = self._take_record()
            if record is not None:
                return record
            await self._fetcher.wait_for_rows(None)

    def _done_with_last(self) -> None:
        """The application asks for more, so it is done with what it has."""
        if self._held is not None:
            self._held.settle()
            self._held = None
        if self._group is not None:
            self._group.asked()

    def not_done_with_last(self) -> None:
        """The application failed on what it was given last: that is not committed."""
        self._failed = True

    @property
    def wants_back(self) -> bool:
        """Whether what was given last, as far as it was not worked on, should be given back; from any thread."""
        return self._group is not None and self._group.wants_back

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        """The application has worked on what it was given last up to that offset, exclusive, and not beyond."""
        cursor = self._fetcher.cursors.get(partition)
        if cursor is not None and cursor is self._held:
            error, self._held = cursor.error, None
            cursor.seek(offset)
            cursor.error = error
            self._fetcher.moved(cursor)
        if self._group is not None:
            self._group.asked()

    def _next_rows(self) -> tuple[Cursor, Any] | None:
        """Rows of the first partition that has some, or its error; it then stands behind the others."""
        cursors = self._fetcher.cursors
        if self._group is not None and self._group.error is not None:
            raise copy(self._group.error)
        if self._fetcher.suspended:
            return None
        for where, cursor in list(cursors.items()):
            if not cursor.gives:
                continue
            if cursor.has_rows:
                cursors[where] = cursors.pop(where)
            generation = cursor.generation
            rows = cursor.next_rows()
            if cursor.generation != generation:  # it was damaged: a fetch under way, from beyond it, may wait for long
                self._fetcher.moved(cursor)
            if rows is not None:
                return cursor, rows
        return None

    def _take_batch(self) -> PartitionBatch | None:
        self._fetcher  # noqa: B018 - raises when closed
        self._records, self._reading = [], None  # `position` says which of the batch's rows were given already
        found = self._next_rows()
        if found is None:
            return None
        cursor, rows = found
        cursor.passed()
        self._given_records += rows.num_rows
        self._gave(cursor)
        self._fetcher.look_again()
        return PartitionBatch(*cursor.partition, rows)

    def _gave(self, cursor: Cursor) -> None:
        self._held = cursor
        if self._group is not None:
            self._group.gave(cursor.partition)

    def _take_record(self) -> ConsumerRecord | None:
        fetcher = self._fetcher
        reading = self._reading
        if reading is None or reading[0].generation != reading[1] or not reading[0].gives or fetcher.suspended:
            found = self._next_rows()
            if found is None:
                self._reading = None
                return None
            reading = self._reading = found[0], found[0].generation
            self._records = records_of(*found[0].partition, found[1])
            self._given_records += len(self._records)
            self._records.reverse()
        cursor = reading[0]
        record = self._records.pop()
        cursor.advance(record.offset + 1)
        self._gave(cursor)
        if not self._records:
            self._reading = None
            cursor.passed()
            fetcher.look_again()
        return record

    # -- lookups -------------------------------------------------------------------------------------------------------

    def _cursor_of(self, partition: TopicPartition | tuple[str, int]) -> Cursor:
        where = as_partition(partition)
        cursor = self._fetcher.cursors.get(where)
        if cursor is None:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{where} is not assigned")
        return cursor

    def _cursor(self, view: TopicView, where: TopicPartition, offset: int) -> Cursor:
        incarnation = view.partitions[where.partition].incarnation
        return Cursor(where, offset, topic_id=view.topic_id, incarnation=incarnation)

    def _on_out_of_range(self, cursor: Cursor, error: TidemarkError) -> bool:
        """Whether it goes on elsewhere."""
        if self.settings.out_of_range == "fail":
            return False
        task = asyncio.ensure_future(self._reset(cursor, error))
        self._resets.add(task)
        task.add_done_callback(self._resets.discard)
        cursor.retry_s = time.monotonic() + self.settings.request_timeout_ms / 1000
        return True

    async def _reset(self, cursor: Cursor, error: TidemarkError) -> None:
        generation = cursor.generation
        try:
            offset = await self._offset_of(cursor.partition, self.settings.out_of_range)
        except TidemarkError as failure:
            if cursor.generation == generation:
                cursor.error = failure
                self._fetcher.wake()
            return
        if cursor.generation == generation and offset > cursor.position:
            missed = offset - cursor.position
            _log.warning("%s: %d offsets were deleted before they were read: %s", cursor.partition, missed, error)
            cursor.seek(offset)
            self._fetcher.moved(cursor)
        else:
            cursor.retry_s = 0.0
            self._fetcher.look_again()

    async def starts(self, where: TopicPartition, start: Start) -> Cursor:
        """A cursor at a start; a partition that a group's coordinator has heard of before this client is waited for."""
        timeout_s = self.settings.request_timeout_ms / 1000
        await self.cluster.partition_count(where.topic, timeout_s=timeout_s, beyond=where.partition)
        offset = await self._offset_of(where, start)
        view = await self.cluster.topic(where.topic, timeout_s=timeout_s)
        if where.partition not in view.partitions:
            raise unknown_partition(where, len(view.partitions))
        return self._cursor(view, where, offset)

    async def _offset_of(self, where: TopicPartition, start: Start) -> int:
        if isinstance(start, int):
            if start < 0:
                raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{where}: there is no offset {start}")
            return start
        if isinstance(start, Timestamp):
            # The end first: a record that is written meanwhile is read then, whichever its time.
            end = await self._look_up(where, latest=True)
            found = await self._look_up(where, timestamp_us=start.us)
            return end.offset if found.offset < 0 else found.offset
        if start not in ("earliest", "latest"):
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST, f"start is {start!r}: want earliest, latest, an offset or a Timestamp"
            )
        return (await self._look_up(where, **{start: True})).offset

    async def _look_up(self, where: TopicPartition, **position: Any) -> OffsetAndTimestamp:
        """Ask the leader, or the next one, within the request timeout."""
        timeout_s = self.settings.request_timeout_ms / 1000
        deadline_s = time.monotonic() + timeout_s
        backoff = Backoff()
        while True:
            try:
                return await self._look_up_once(where, deadline_s, partial(pb.PartitionListOffsets, **position))
            except TidemarkError as error:
                left_s = deadline_s - time.monotonic()
                misplaced = error.code in MISPLACED and self.cluster.leader(where) is not None
                if not error.retriable and not misplaced:
                    raise
                if left_s <= 0:
                    raise TidemarkError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"{where}: no offset within {timeout_s} s; the last refusal: {error}",
                    ) from error
                self.cluster.note_refusal(where, error)
                await self.cluster.wait_for_update(min(backoff.next_s(), left_s))

    async def _look_up_once(self, where: TopicPartition, deadline_s: float, part: Any) -> OffsetAndTimestamp:
        leader = await self.cluster.leader_in_time(where, deadline_s=deadline_s)
        request = pb.ListOffsetsRequest(
            partitions=[
                part(
                    topic=where.topic,
                    partition=where.partition,
                    current_leader_epoch=leader.leader_epoch,
                    topic_id=leader.topic_id,
                )
            ]
        )
        timeout_s = max(0.05, min(2.0, deadline_s - time.monotonic()))
        try:
            response = await self.cluster.stub(leader.address).ListOffsets(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise errors.from_rpc_error(failure, address=leader.address) from None
        result = response.partitions[0]
        if result.HasField("error"):
            raise errors.from_proto(result.error)
        return OffsetAndTimestamp(result.offset, result.timestamp_us)
