# SPDX-License-Identifier: Apache-2.0
"""The async Consumer: reads committed records of assigned partitions (rules K1, K2, E4, E6)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack, cast

from tidemark.client.aio.delivery import Delivery
from tidemark.client.argument_types import (
    check_names,
    int64,
    integers,
    offsets_of,
    partition_of,
    partitions_of,
    positive,
    seconds,
    texts,
)
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.health import (
    ConsumerMetrics,
    PartitionHealth,
    health_of,
    lag_of,
    log_missing,
    total_lag,
    unknown_topics,
    waiting_for,
)
from tidemark.client.consuming.offset_lookup import OffsetLookup, Start, check_start, move_into_range
from tidemark.client.consuming.partition_cursor import Cursor, cursor_at
from tidemark.client.consuming.record_reader import RecordReader
from tidemark.client.consuming.typed_topics import TypedTopics
from tidemark.client.group.group_reader import GroupReader, RebalanceCallback, in_callback
from tidemark.client.group.settings import ConsumerAndGroupOptions, GroupOptions, group_settings
from tidemark.client.lifecycle import TURN_S, Lifecycle
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.tls import Credentials
from tidemark.client.records import ConsumerRecord, OffsetAndTimestamp, PartitionBatch
from tidemark.client.serializers import Deserializer
from tidemark.client.settings import consumer_settings
from tidemark.core.topic_name import check_topic_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven
from tidemark.runtime.slices import Pace

_Found = TypeVar("_Found")
_NOT_SETTINGS: Final = frozenset(
    {"bootstrap", "group", "key_deserializer", "value_deserializer", "value_class", "tls", "token_file"}
)
_ARGUMENTS: Final = _NOT_SETTINGS | ConsumerAndGroupOptions.__annotations__.keys()


class Consumer(Lifecycle):
    """Reads committed records of partitions that `assign` or its consumer group assigns to it.

    Records of one partition come in order, each once; partitions take turns. After a leader failure the consumer
    continues at the next leader. After OFFSET_OUT_OF_RANGE, LOG_TRUNCATED or UNKNOWN_TOPIC_ID every read raises the
    error again, until the application seeks or assigns that partition again. A member of a group gets no error of a
    deleted or recreated topic: the member waits for the next assignment.

    async with Consumer("127.0.0.1:9192") as consumer:
        await consumer.assign("greetings")
        async for record in consumer:
            ...

    async with Consumer("127.0.0.1:9192", group="readers") as consumer:
        await consumer.subscribe(["greetings"])
        async for record in consumer:
            ...  # asking for the next record marks this one as processed; it is committed within seconds

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        group: id of the consumer group, for `subscribe` and `commit`; None: the application keeps offsets.
        key_deserializer: "json", "text" or a function that reads the bytes of the keys of iterated records; None: keys
            are bytes.
        value_deserializer: the same for values.
        value_class: dataclass or model of which the values of a topic with a schema are instances; None: dicts.
        tls: the TLS files; None: the files that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        settings: fetch_max_wait_ms, max_bytes, max_partition_bytes, read_ahead_bytes, request_timeout_ms,
            out_of_range, rack, client_id, isolation_level, schema_versions (`client.settings.consumer_settings`
            explains); for a group instance_id, assignor, auto_commit_interval_ms, rebalance_timeout_ms,
            max_poll_interval_ms, offset_reset (`client.group.settings.group_settings`). Names end with their units.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_GROUP_ID.
        TypeError: an argument has a wrong type or an unknown name, or needs a group.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        group: str | None = None,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        value_class: type | None = None,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        **settings: Unpack[ConsumerAndGroupOptions],
    ) -> None:
        check_names("a Consumer", settings, _ARGUMENTS)
        given = cast("dict[str, Any]", settings)
        for_group = {name: given.pop(name) for name in GroupOptions.__annotations__ if name in given}
        if for_group and group is None:
            raise TypeError(f"{min(for_group)} is for members of a group: give group, too")
        self.settings = consumer_settings(**given)
        client_id = self.settings.client_id
        self.group_settings = (
            None if group is None else replace(group_settings(group, **for_group), client_id=client_id)
        )
        self.reader = RecordReader(key_deserializer, value_deserializer, value_class)
        self._timeout_s = self.settings.request_timeout_ms / 1000
        credentials = Credentials(tls, token_file)
        self.cluster = Cluster(bootstrap, timeout_s=self._timeout_s, tls=credentials, client_id=client_id)
        self._offsets = OffsetLookup(self.cluster, self._timeout_s, self.settings.isolation_level)
        self._group: GroupReader | None = None
        self._started: Fetcher | None = None
        self._typed_topics: TypedTopics | None = None
        self._delivery: Delivery | None = None
        self._failed = False
        self._pace = Pace(TURN_S)
        self._tasks: set[asyncio.Task[None]] = set()
        """Lookups in the background: of positions to reset, and of subscribed topics."""

    async def start(self) -> None:
        """Find a broker that answers; raises BROKER_NOT_AVAILABLE with the error of each address."""
        if self._started is not None:
            return
        await self.cluster.start()
        fetcher = Fetcher(self.cluster, self.settings, on_out_of_range=self._on_out_of_range)
        fetcher.start()
        self.cluster.used_topics.users.append(lambda: {where.topic for where in fetcher.cursors})
        settings = self.group_settings
        group = None if settings is None else GroupReader(self.cluster, fetcher, settings, self.starts)
        self._read(fetcher, group, TypedTopics(self.cluster, self.settings, fetcher, self.reader.check_typed))

    def _read(self, fetcher: Fetcher, group: GroupReader | None, topics: TypedTopics) -> None:
        self._started, self._group, self._typed_topics = fetcher, group, topics
        self._delivery = Delivery(fetcher, group, topics, self.reader, self._in_background)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = error is not None  # then the application may not process the last returned record
        await self.close()

    async def close(self) -> None:
        """Stop fetching, and end waiting reads with CLIENT_CLOSED. A member of a group commits and leaves the group."""
        if not self._failed and self._delivery is not None:
            self._delivery.done()
        try:
            if self._group is not None:
                await self._group.stop()  # `on_revoked` may commit
        finally:
            self._group = None
            await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        fetcher, self._started, self._delivery = self._started, None, None
        async with contextlib.AsyncExitStack() as ending:  # a cancellation ends one wait, and skips no step
            ending.push_async_callback(self.cluster.close)
            if self._typed_topics is not None:
                ending.push_async_callback(self._typed_topics.schemas.close)
            if fetcher is not None:
                ending.push_async_callback(fetcher.stop)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _fetcher(self) -> Fetcher:
        if self._started is None:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "the consumer is not started, or closed")
        return self._started

    @property
    def _reading(self) -> Delivery:
        self._fetcher  # noqa: B018 - raises when closed
        return cast(Delivery, self._delivery)

    @property
    def _typed(self) -> TypedTopics:
        self._fetcher  # noqa: B018 - raises when closed
        return cast(TypedTopics, self._typed_topics)

    # -- assignment --------------------------------------------------------------------------------------------------

    async def assign(
        self, topic: str, partitions: Iterable[int] | None = None, start: Start = "earliest"
    ) -> list[TopicPartition]:
        """Read partitions of a topic from a start, in addition to those already assigned.

        Args:
            topic: name of the topic.
            partitions: indexes; None: all partitions that the topic has now.
            start: "earliest", "latest", an offset, or a Timestamp.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_REQUEST; REQUEST_TIMED_OUT if the start could not
                be looked up in time.

        Example: `await consumer.assign("orders", [0, 1], start="latest")`
        """
        fetcher = self._fetcher
        if self._group is not None and self._group.is_member:
            raise invalid_request("subscribe or assign: the group assigns partitions")
        wanted = None if partitions is None else set(integers("partitions", partitions))
        check_start(start)
        view = await self.cluster.with_partitions(topic, wanted, timeout_s=self._timeout_s)
        indexes = sorted(range(view.count) if wanted is None else wanted)
        offsets = await self._offsets.find_each([TopicPartition(topic, index) for index in indexes], start)
        typed = await self._typed.open(topic)
        for where, offset in offsets.items():
            before = fetcher.cursors.get(where)
            if before is not None:
                before.withheld = True
                before.seek(offset)  # `seek` discards the response of a fetch in flight
            fetcher.cursors[where] = cursor_at(view, where, offset, typed)
        fetcher.moved(*(fetcher.cursors[where] for where in offsets))
        return list(offsets)

    async def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Share topics with the other members of the group.

        The asyncio consumer awaits the callbacks; the sync consumer calls the callbacks on another thread.

        Args:
            topics: topics to read, or one topic; empty: leave the group. A topic may be created later.
            on_assigned: called with assigned partitions, before their first record is returned; may `seek`.
            on_revoked: called with revoked partitions, after the application has processed their returned records.
                After that, their offsets are committed, and another member continues to read.
            on_lost: called with partitions that other members may read already, because the group evicted this member,
                or that are open when a member closes that has failed.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME; INVALID_REQUEST without a group, or after `assign`. A later read raises
                the coordinator's refusal: INCONSISTENT_GROUP_PROTOCOL, UNSUPPORTED_ASSIGNOR, GROUP_FULL,
                FENCED_INSTANCE_ID.

        Example: `await consumer.subscribe(["orders"], on_assigned=print)`
        """
        topics = frozenset([topics] if isinstance(topics, str) else texts("topics", topics))
        for callback in (on_assigned, on_revoked, on_lost):
            if callback is not None and not callable(callback):
                raise TypeError(f"a callback of subscribe is {callback!r}, not a function")
        for topic in topics:
            check_topic_name(topic)
        group = self.reading_group
        if self._fetcher.cursors and not group.is_member:
            raise invalid_request("subscribe or assign: this consumer has partitions assigned")
        if not in_callback():  # else the application may be processing a record
            self._reading.done()
        await group.subscribe(topics, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        self.cluster.follow(topics)
        self._in_background(log_missing(self.cluster, topics, self._timeout_s))

    async def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        """Commit offsets for the group.

        Args:
            offsets: of the next record, by partition; None: of all returned records, in callbacks of processed ones.

        Raises:
            TidemarkError: FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER if other members may read these partitions already,
                PARTITION_NOT_ASSIGNED, UNKNOWN_TOPIC, UNKNOWN_PARTITION, UNKNOWN_TOPIC_ID, REQUEST_TIMED_OUT;
                INVALID_REQUEST without a group, or for an offset below 0.

        Example: `await consumer.commit({("orders", 0): 42})`
        """
        wanted = None if offsets is None else offsets_of("offsets", offsets)
        held = None if self._delivery is None else self._delivery.held
        if offsets is None and held is not None and not in_callback():
            held.settle()  # otherwise the next automatic commit would commit an earlier offset
        await self.reading_group.commit(wanted, timeout_s=self._timeout_s)

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group; omits partitions without one.

        Args:
            partitions: TopicPartition, or pairs of topic and index; None: all.

        Raises:
            TidemarkError: INVALID_REQUEST without a group; REQUEST_TIMED_OUT.
            TypeError: an argument has a wrong type.

        Example: `await consumer.committed([("orders", 0)])`
        """
        wanted = None if partitions is None else partitions_of("partitions", partitions)
        found = await self.reading_group.fetch(wanted, timeout_s=self._timeout_s)
        return {where: one.offset for where, one in found.items() if one.offset >= 0}

    @property
    def reading_group(self) -> GroupReader:
        """The connection to the group; raises INVALID_REQUEST without a group."""
        self._fetcher  # noqa: B018 - raises when closed
        if self._group is None:
            raise invalid_request("this consumer has no group: make it with Consumer(group=...)")
        return self._group

    def unassign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Stop reading partitions.

        Args:
            partitions: TopicPartition, or pairs of topic and index.

        Raises:
            TidemarkError: INVALID_REQUEST for a member of a group.
            TypeError: an argument has a wrong type.

        Example: `consumer.unassign([("orders", 0)])`
        """
        wanted = partitions_of("partitions", partitions)
        if self._group is not None and self._group.is_member:
            raise invalid_request("the group assigns partitions: pause them, or subscribe to other topics")
        for where in wanted:
            cursor = self._fetcher.cursors.pop(where, None)
            if cursor is not None:
                cursor.withheld = True
                cursor.seek(cursor.position)
        self._fetcher.regroup()

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Return no records of these partitions until `resume`; their positions do not change.

        Args:
            partitions: TopicPartition, or pairs of topic and index.

        Raises:
            TidemarkError: INVALID_REQUEST for a partition that is not assigned.
            TypeError: an argument has a wrong type.

        Example: `consumer.pause([("orders", 0)])`
        """
        for cursor in [self._cursor_of(where) for where in partitions_of("partitions", partitions)]:
            cursor.paused = True

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Return records of these partitions again.

        Args:
            partitions: TopicPartition, or pairs of topic and index.

        Raises:
            TidemarkError: INVALID_REQUEST for a partition that is not assigned.
            TypeError: an argument has a wrong type.

        Example: `consumer.resume([("orders", 0)])`
        """
        cursors = [self._cursor_of(where) for where in partitions_of("partitions", partitions)]
        for cursor in cursors:
            cursor.paused = False
        self._fetcher.resumed(cursors)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, by topic and index.

        Example: `len(consumer.assignment)`
        """
        return sorted(self._fetcher.cursors)

    async def seek(self, partition: TopicPartition | tuple[str, int], start: Start) -> None:
        """Continue at another offset of an assigned partition.

        Args:
            partition: the partition.
            start: "earliest", "latest", an offset, or a Timestamp.

        Raises:
            TidemarkError: INVALID_REQUEST for a partition that is not assigned; REQUEST_TIMED_OUT if the start could
                not be looked up in time.
            TypeError: an argument has a wrong type.

        Example: `await consumer.seek(("orders", 0), Timestamp(1_700_000_000_000_000))`
        """
        offset = await self._offsets.find(self._cursor_of(partition).partition, start)
        cursor = self._cursor_of(partition)  # the group may have revoked the partition, or assigned it again
        cursor.seek(offset)
        if cursor is self._reading.held:
            self._reading.held = None
        self._fetcher.moved(cursor)

    async def seek_to_committed(self) -> None:
        """Go back to the group's committed offsets in all assigned partitions, as after an aborted transaction.

        A partition without a committed offset goes back to its first position. Waits for the end of transactions that
        may still change the offsets.

        Raises:
            TidemarkError: INVALID_REQUEST without a group; REQUEST_TIMED_OUT. LEADER_NOT_AVAILABLE if a topic was
                created again just now; retry.

        Example: `await consumer.seek_to_committed()`
        """
        await self.reading_group.seek_to_committed(timeout_s=self._timeout_s)
        self._reading.held = None

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record to return of an assigned partition.

        Args:
            partition: TopicPartition, or a pair of topic and index.

        Raises:
            TidemarkError: INVALID_REQUEST for a partition that is not assigned.
            TypeError: an argument has a wrong type.

        Example: `consumer.position(("orders", 0))`
        """
        return self._cursor_of(partition).position

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of records of each partition not returned yet, by the last fetch; -1 before the first.

        Example: `sum(consumer.lag().values())`
        """
        return {where: lag_of(cursor) for where, cursor in sorted(self._fetcher.cursors.items())}

    def health(self) -> dict[TopicPartition, PartitionHealth]:
        """Return the state of each assigned partition, and the reason if it returns no records.

        A subscribed topic that does not exist has one entry, with the partition -1.

        Example: `consumer.health()[TopicPartition("orders", 0)].state`
        """
        fetcher = self._fetcher
        topics, waiting = (
            (frozenset(), frozenset()) if self._group is None else (self._group.topics, self._group.waiting)
        )
        missing = unknown_topics(topics, self.cluster) | waiting_for(sorted(waiting), self.cluster)
        return missing | health_of(fetcher.cursors, self.cluster, fetcher.nearest, suspended=fetcher.suspended)

    def metrics(self) -> ConsumerMetrics:
        """Count returned records and bytes read ahead.

        Example: `consumer.metrics().given_records`
        """
        cursors = self._fetcher.cursors.values()
        read_ahead_bytes = sum(cursor.buffered_bytes for cursor in cursors)
        sums = self._fetcher.follower_bytes, self._fetcher.throttled_s
        return ConsumerMetrics(self._reading.given_records, read_ahead_bytes, *total_lag(cursors), *sums)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """Return high watermarks (last stable offsets under read_committed), exclusive; they never fall (rule E6).

        Args:
            partitions: TopicPartition, or pairs of topic and index; None: the assignment.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, REQUEST_TIMED_OUT.
            TypeError: an argument has a wrong type.

        Example: `await consumer.end_offsets([("orders", 0)])`
        """
        fetcher = self._fetcher
        wanted = self.assignment if partitions is None else partitions_of("partitions", partitions)
        ends = {}
        for where, offset in (await self._offsets.find_each(wanted, "latest")).items():
            cursor = fetcher.cursors.get(where)
            ends[where] = offset if cursor is None else cursor.saw_high_watermark(offset, fetcher.lineage_of(where))
        return ends

    async def offset_for_timestamp(
        self, partition: TopicPartition | tuple[str, int], timestamp_us: int
    ) -> OffsetAndTimestamp | None:
        """Find the first record at or after a time; None without such a record.

        Args:
            partition: TopicPartition, or a pair of topic and index.
            timestamp_us: microseconds since 1970.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, REQUEST_TIMED_OUT.
            TypeError: an argument has a wrong type.

        Example: `await consumer.offset_for_timestamp(("orders", 0), 1_700_000_000_000_000)`
        """
        where, stamp_us = partition_of("partition", partition), int64("timestamp_us", timestamp_us)
        found = await self._offsets.look_up(where, timestamp_us=stamp_us)
        return None if found.offset < 0 else found

    # -- reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float | None = None, columns: Iterable[str] | None = None) -> PartitionBatch | None:
        """Return the next rows of one partition; None if no row arrived in time.

        A position that has passed markers or aborted records ends the wait early: the position may be at the end
        (KAFKA-12980). The rows are in record.schema.OFFSET_SCHEMA. Rows of a topic with a schema have the columns of
        its newest version, or that in `schema_versions`, and `_key`, `_offset`, `_timestamp`, `_headers`, `_deleted`.

        Args:
            timeout_s: longest wait in seconds; None, for the asyncio consumer only: no limit.
            columns: see `batches`. A call with other columns than the one before discards rows that were fetched.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE, LOG_TRUNCATED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC, CORRUPT_BATCH;
                INVALID_REQUEST for a column that a topic lacks; CLIENT_CLOSED.

        Example: `batch = await consumer.poll(timeout_s=1.0)`
        """
        wanted = None if columns is None else texts("columns", columns)
        return await self._in_time(lambda: self._next_batch(wanted), timeout_s)

    async def poll_records(self, timeout_s: float | None = None, max_records: int = 500) -> list[ConsumerRecord]:
        """Return the next records of one partition; an empty list if no record came in time, and early as `poll`.

        The next call marks these records as processed. A record that cannot be deserialized ends the list, and the next
        call raises its error.

        Args:
            timeout_s: longest wait in seconds; None, for the asyncio consumer only: no limit.
            max_records: largest number of records; the next calls return other records that have arrived.

        Raises:
            TidemarkError: the errors of `poll`; INVALID_PAYLOAD of the first record; INVALID_REQUEST for `max_records`
                below 1.

        Example: `records = await consumer.poll_records(timeout_s=1.0, max_records=1000)`
        """
        most = positive("max_records", max_records)
        return await self._in_time(lambda: self._reading.next_records(most), timeout_s) or []

    async def _in_time(self, take: Callable[[], _Found | None], timeout_s: float | None) -> _Found | None:
        """The first result of `take` that is not None; None after the timeout, or if positions passed no records."""
        deadline_s = None if timeout_s is None else time.monotonic() + seconds("timeout_s", timeout_s)
        if self._pace.is_due:
            await self._pace.give_way()
        while True:
            self._reading.done()
            found = take()
            if found is not None:
                return found
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and (left_s <= 0 or self._reading.passed):
                self._fetcher.look_again()
                await asyncio.sleep(0)  # otherwise calls with timeout_s=0 would keep fetches from running
                self._reading.give_nothing()
                return None
            await self._fetcher.wait_for_rows(left_s)

    async def batches(self, columns: Iterable[str] | None = None) -> AsyncGenerator[PartitionBatch, None]:
        """Yield the results of `poll` without end. Use `contextlib.aclosing` if an `async for` may be left early.

        Args:
            columns: for topics with a schema: names of columns, such as "delay", paths such as "leg.origin", and of
                `_key`, `_partition`, `_offset`, `_timestamp`, `_headers`, `_deleted`. Brokers send these only. The rows
                come in the version that `poll` returns. None: all rows, as `poll`.

        Raises:
            TidemarkError: INVALID_REQUEST for a column that a topic lacks; the errors of `poll`.

        Example: `async for batch in consumer.batches(columns=["carrier", "delay"]): print(batch.rows)`
        """
        wanted = None if columns is None else texts("columns", columns)
        topics = self._typed
        try:
            while True:
                found = await self._in_time(lambda: self._next_batch(wanted), None)
                if found is not None:
                    yield found
        finally:
            topics.want(None)

    def _next_batch(self, columns: list[str] | None) -> PartitionBatch | None:
        self._typed.want(columns)  # each time, since an earlier loop over `batches` may end late, and want all columns
        return self._reading.next_batch()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        if time.perf_counter() > self._pace.until_s:
            await self._pace.give_way()  # the application may await nothing else while rows are buffered
        record = None if self._delivery is None else self._delivery.next_of_held()
        while record is None:
            self._reading.done()
            record = self._reading.next_record()
            if record is None:
                await self._fetcher.wait_for_rows(None)
        return record

    def not_done_with_last(self) -> None:
        """Keep the last returned records out of the commit, since the application failed on them."""
        self._failed = True

    @property
    def held_partition(self) -> TopicPartition | None:
        """The partition of the last returned records; None if it has left or moved since. Any thread may call."""
        held = None if self._delivery is None else self._delivery.held
        return None if held is None or held.withheld else held.partition

    @property
    def wants_back(self) -> bool:
        """See `Delivery.wants_back`; any thread may call."""
        return self._delivery is None or self._delivery.wants_back

    def works_on(self, record: ConsumerRecord | None) -> None:
        """See `GroupReader.working_on`; any thread may call."""
        if self._group is not None:
            self._group.working_on = record

    async def commit_before(self, record: ConsumerRecord) -> None:
        """Commit all returned records: those of the last batch before this one, and all earlier ones."""
        await self.reading_group.commit(None, timeout_s=self._timeout_s, before=record)

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        """See `Delivery.give_back`."""
        self._reading.give_back(partition, offset)

    def _cursor_of(self, partition: TopicPartition | tuple[str, int]) -> Cursor:
        where = partition_of("partition", partition)
        if where not in self._fetcher.cursors:
            raise invalid_request(f"{where} is not assigned")
        return self._fetcher.cursors[where]

    def _on_out_of_range(self, cursor: Cursor, error: TidemarkError) -> bool:
        """Whether `out_of_range` moves the position; starts the lookup."""
        if self.settings.out_of_range == "fail":
            return False
        found = self._offsets.find(cursor.partition, self.settings.out_of_range)
        self._in_background(move_into_range(self._fetcher, cursor, found, error))
        cursor.retry_s = time.monotonic() + self._timeout_s
        return True

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def starts(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Cursor]:
        """Make cursors at an offset, "earliest" or "latest"; waits for partitions that only the coordinator knows yet.

        A partition whose leader does not answer soon has no cursor, so that the others are read meanwhile.
        """
        indexes: dict[str, list[int]] = {}
        for topic, index in starts:
            indexes.setdefault(topic, []).append(index)
        for topic, some in indexes.items():
            await self.cluster.with_partitions(topic, some, timeout_s=self._timeout_s)
        offsets = {where: start for where, start in starts.items() if isinstance(start, int)}
        for position in ("earliest", "latest"):
            offsets |= await self._offsets.find_soon([one for one in starts if starts[one] == position], position)
        made: dict[TopicPartition, Cursor] = {}
        for topic, some in indexes.items():
            view = await self.cluster.with_partitions(topic, some, timeout_s=self._timeout_s)
            typed = await self._typed.open(topic)
            for where in (TopicPartition(topic, index) for index in some):
                if where in offsets:
                    made[where] = cursor_at(view, where, offsets[where], typed)
        return made
