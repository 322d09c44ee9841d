# SPDX-License-Identifier: Apache-2.0
"""Fetch with long poll, ListOffsets and OffsetsForLeaderEpoch (rules K1, E4, E6, X4)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Final

from tidemark.broker.clients.read_replica import checked_envelopes, damaged_offset
from tidemark.broker.clients.typed_batches import READ_AHEAD, prune_batches, read_pruned
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.log_repairs import LogRepairs
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.typed_layouts import NO_LAYOUTS, TypedLayouts
from tidemark.core.quotas.quotas import QuotaKind
from tidemark.core.replication.effects import HighWatermarkAdvanced, LeadershipChanged
from tidemark.core.replication.events import PreferredReplicaNamed
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import ReadableRange
from tidemark.core.security.acls import Operation, topic
from tidemark.model import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    invalid_request,
)
from tidemark.ports import Clock, Log, TimestampOffset
from tidemark.record.envelope import end_of_batches
from tidemark.record.transactions import AbortedTransaction
from tidemark.record.typed.batch import TimeRange
from tidemark.rpc import errors
from tidemark.rpc.codecs.fetch import Fetched, Results
from tidemark.rpc.limits.answer_size import ErrorRoom
from tidemark.rpc.quotas.enforcement import NO_QUOTAS, CallerQuotas
from tidemark.rpc.request_limits import check_named, check_wait
from tidemark.rpc.security.access import Access
from tidemark.runtime.slices import InSlices, Pace
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import record_pb2

_WAIT_MS_MAX: Final = 30_000
_FOLLOWER_CHECK_S: Final = 1.0
"""Interval in which a fetch at a follower checks that the follower is in contact with its leader. No event wakes the
fetch when contact is lost (rule K1)."""
FETCH_QUOTAS: Final = (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)
HOLD_S: Final = 1.0
"""Longest delay of a single call of a caller over a quota; a fetch may wait for its `max_wait_ms`.

The call may have a short deadline.
"""
_RESPONSE_BYTES_MAX: Final = 7 << 20
"""A response may exceed this by one batch of the largest size; even then gRPC accepts the message."""


class Purgatory:
    """Requests that wait for an event of their partitions: a new high watermark or a change of leadership."""

    def __init__(self) -> None:
        self.closed = False
        self._by_partition: dict[TopicPartition, set[asyncio.Event]] = {}

    def on_high_watermark(self, effect: HighWatermarkAdvanced) -> None:
        """Wake the requests that wait on the partition."""
        self.wake(effect.partition)

    def on_leadership(self, effect: LeadershipChanged) -> None:
        """Wake the requests that wait on the partition."""
        self.wake(effect.partition)

    def close(self) -> None:
        """Wake all requests; later ones do not wait."""
        self.closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all requests, for example at the stop of the broker."""
        for partition in self._by_partition:
            self.wake(partition)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> None:
        """Wait until the event is set or the time has passed, which sets it; the caller got the event from `watch`.

        One timer takes a fifth of the calls of `asyncio.timeout`, at each wait of each consumer.
        """
        timer = asyncio.get_running_loop().call_later(timeout_s, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()

    def watch(self, partitions: Iterable[TopicPartition]) -> asyncio.Event:
        """An event that is set at the next event of one of the partitions."""
        event = asyncio.Event()
        for partition in partitions:
            self._by_partition.setdefault(partition, set()).add(event)
        return event

    def forget(self, partitions: Iterable[TopicPartition], event: asyncio.Event) -> None:
        """Remove the event of an answered request."""
        for partition in partitions:
            waiting = self._by_partition.get(partition)
            if waiting is not None:
                waiting.discard(event)
                if not waiting:
                    del self._by_partition[partition]

    def wake(self, partition: TopicPartition) -> None:
        """Wake the requests that wait on the partition."""
        for event in self._by_partition.get(partition, ()):
            event.set()


class FetchService:
    """Serves Fetch, ListOffsets and OffsetsForLeaderEpoch.

    Args:
        searches: searches by time at the same time, fewer than threads of `pool`: a batch may state a timestamp that
            its rows do not have, and a search then decompresses batch after batch.
    """

    def __init__(
        self,
        queries: BrokerQueries,
        logs: LogThreads,
        purgatory: Purgatory,
        metadata: MetadataCache,
        lease: Lease,
        clock: Clock,
        metrics: BrokerMetrics,
        pool: ThreadPoolExecutor,
        repairs: LogRepairs,
        submit: Callable[[PreferredReplicaNamed], None] = lambda event: None,
        layouts: TypedLayouts = NO_LAYOUTS,
        searches: int = 1,
    ) -> None:
        self._submit = submit
        self._queries = queries
        self._logs = logs
        self._purgatory = purgatory
        self._clock = clock
        self._metrics = metrics
        self._pool = pool
        self._repairs = repairs
        self._layouts = layouts
        self._searches = asyncio.Semaphore(searches)
        self._metadata = metadata
        self._lease = lease

    async def fetch_once(self, request: pb.FetchRequest, access: Access | None, quotas: CallerQuotas) -> Results:
        """A single fetch, as `fetch_next`; a call over a quota is first delayed for up to HOLD_S."""
        check_wait(request.max_wait_ms, "max_wait_ms")
        await quotas.hold(*FETCH_QUOTAS, at_most_s=max(HOLD_S, min(request.max_wait_ms, _WAIT_MS_MAX) / 1000))
        return await self.fetch_next(request, access, quotas)

    async def fetch_next(self, request: pb.FetchRequest, access: Access | None, quotas: CallerQuotas) -> Results:
        """Like `fetch`; a caller that is over a quota gets the wait, and no records (rule Q2)."""
        throttle_time_ms = quotas.wait_ms(*FETCH_QUOTAS)
        if not throttle_time_ms:
            return await self.fetch(request, access, quotas)
        check_named(request.partitions, "partitions")
        check_wait(request.max_wait_ms, "max_wait_ms")
        return _told_to_wait(request, throttle_time_ms)

    async def fetch(
        self, request: pb.FetchRequest, access: Access | None = None, quotas: CallerQuotas = NO_QUOTAS
    ) -> Results:
        """The partitions in order, once `min_bytes` are available, a partition is refused, or `max_wait_ms` have
        passed.

        Args:
            access: the client's rights, checked before each read; None: all rights.
            quotas: the client's quotas, which the response is counted for.

        Raises:
            TidemarkError: INVALID_REQUEST for a negative wait, or too many partitions.
        """
        check_named(request.partitions, "partitions")
        check_wait(request.max_wait_ms, "max_wait_ms")
        partitions = [TopicPartition(part.topic, part.partition) for part in request.partitions]
        deadline_ms = self._clock.now_ms() + min(request.max_wait_ms, _WAIT_MS_MAX)
        began_s, waited_s = time.perf_counter(), 0.0
        quota_bytes = quotas.response_bytes_max()
        min_bytes = min(request.min_bytes, quota_bytes)
        max_bytes = int(min(max(request.max_bytes, 1), _RESPONSE_BYTES_MAX, quota_bytes))
        as_follower = pb.READ_FROM_FOLLOWER in [part.read_from for part in request.partitions]
        event = self._purgatory.watch(partitions)
        try:
            while True:
                event.clear()
                results, size_bytes, settled = await self._read_all(request, access, max_bytes)
                is_over = size_bytes >= min_bytes or settled or self._purgatory.closed
                left_ms = 0 if is_over else deadline_ms - self._clock.now_ms()
                if left_ms <= 0:
                    if size_bytes and (
                        throttle_time_ms := quotas.wait_ms(*FETCH_QUOTAS)
                    ):  # other partitions used all bytes of the answer
                        results, size_bytes = _told_to_wait(request, throttle_time_ms), 0
                    self._count(request, results)
                    took_s = time.perf_counter() - began_s - waited_s
                    self._metrics.fetched(took_s)
                    quotas.debit(QuotaKind.CONSUMER_BYTE_RATE, size_bytes)
                    quotas.debit(QuotaKind.REQUEST_PERCENTAGE, took_s)
                    results.throttle_time_ms = quotas.wait_ms(*FETCH_QUOTAS)
                    return results
                del results  # up to a whole answer, for as long as the request waits
                left_s, from_s = left_ms / 1000, time.perf_counter()
                try:
                    await self._purgatory.wait(event, min(left_s, _FOLLOWER_CHECK_S) if as_follower else left_s)
                finally:
                    waited_s += time.perf_counter() - from_s
        except BaseException:  # even if the caller cancels, because the broker has read for the request
            quotas.debit(QuotaKind.REQUEST_PERCENTAGE, time.perf_counter() - began_s - waited_s)
            raise
        finally:
            self._purgatory.forget(partitions, event)

    async def _read_all(
        self, request: pb.FetchRequest, access: Access | None, max_bytes: int
    ) -> tuple[Results, int, bool]:
        """The available batches of each partition, their bytes, and whether the request must not wait for more."""
        results = Results()
        size_bytes, settled = 0, False
        denied: dict[str, record_pb2.Error] = {}
        several = len(request.partitions) > 1
        pace, room = Pace() if several else None, ErrorRoom()
        for part in request.partitions:
            if pace is not None and pace.is_due:
                await pace.give_way()
            facts = pb.PartitionFetchResult(topic=part.topic, partition=part.partition, high_watermark=-1)
            data = b""
            try:
                if access is not None and part.topic not in denied:
                    _check_read(access, part.topic, denied)
                if part.topic in denied:
                    facts.error.CopyFrom(room.fit(denied[part.topic]))
                    self._metrics.fetch_refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    settled = True
                else:
                    data = await self._read_one(request, part, facts, max_bytes - size_bytes, first=not size_bytes)
            except TidemarkError as error:
                facts.error.CopyFrom(room.fit(self._explained(error, part.topic, part.partition)))
                self._metrics.fetch_refused(error.code)
                settled = True
            settled |= facts.HasField("preferred_read_replica")
            size_bytes += len(data)
            results.append(Fetched(facts, data))
        return results, size_bytes, settled

    def _count(self, request: pb.FetchRequest, results: list[Fetched]) -> None:
        given_bytes = of_followers_bytes = named = 0
        for part, (facts, batches) in zip(request.partitions, results, strict=True):
            size_bytes = len(batches)
            if size_bytes:
                self._metrics.topics.fetched(part.topic, size_bytes)
            given_bytes += size_bytes
            if part.read_from == pb.READ_FROM_FOLLOWER:
                of_followers_bytes += size_bytes
            named += facts.HasField("preferred_read_replica")
        self._metrics.fetched_bytes.value += given_bytes
        self._metrics.follower_fetched_bytes.value += of_followers_bytes
        self._metrics.preferred_read_replicas.value += named

    async def _read_one(
        self,
        request: pb.FetchRequest,
        part: pb.PartitionFetch,
        facts: pb.PartitionFetchResult,
        room_bytes: int,
        *,
        first: bool,
    ) -> bytes:
        """Read the batches; other results go into `facts`."""
        partition = TopicPartition(part.topic, part.partition)
        if part.fetch_offset < 0:
            raise invalid_request(
                f"{partition}: fetch_offset is {part.fetch_offset}: give an offset from 0, as of ListOffsets"
            )
        committed_only = request.isolation_level == pb.READ_COMMITTED
        readable = self._readable(partition, part, committed_only=committed_only)
        nearest = self._nearest(partition, part, request.rack) if part.read_from == pb.READ_FROM_NEAREST else None
        data = b""
        if nearest is None and part.fetch_offset < readable.end_offset and (room_bytes > 0 or first):
            max_bytes = min(room_bytes, part.max_bytes) if part.max_bytes > 0 else room_bytes
            data = await self._read_columns(partition, part, readable.end_offset, max(max_bytes, 1))
            aborted = self._aborted(partition, part.fetch_offset, data) if committed_only and data else ()
            # The read left the event loop: its result counts only if this replica kept its role and epoch.
            self._readable(partition, part, committed_only=committed_only)
            for one in aborted:
                facts.aborted_transactions.add(
                    producer_id=one.producer_id, first_offset=one.first_offset, last_offset=one.last_offset
                )
        self._lease.check(partition)
        if committed_only and readable.last_stable_offset is not None:
            facts.last_stable_offset = readable.last_stable_offset
        if nearest is not None:
            facts.preferred_read_replica = nearest
            self._submit(PreferredReplicaNamed(partition, nearest))
        if part.read_from == pb.READ_FROM_FOLLOWER:
            facts.heard_high_watermark = readable.high_watermark
        else:
            facts.high_watermark = readable.high_watermark
        facts.log_start_offset = readable.log_start_offset
        facts.log_end_offset = readable.log_end_offset
        return data

    def _aborted(self, partition: TopicPartition, fetch_offset: int, data: bytes) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap fetched batches (rule X4)."""
        end_offset = end_of_batches(data)
        return self._open_log(partition).aborted_transactions(Offset(fetch_offset), Offset(end_offset))

    def _nearest(self, partition: TopicPartition, part: pb.PartitionFetch, rack: str) -> BrokerId | None:
        return self._queries.preferred_replica(
            partition,
            rack=rack,
            brokers=self._metadata.view.brokers,
            fetch_offset=Offset(part.fetch_offset),
            now_ms=self._clock.now_ms(),
        )

    def _readable(self, partition: TopicPartition, part: pb.PartitionFetch, *, committed_only: bool) -> ReadableRange:
        if part.read_from == pb.READ_FROM_FOLLOWER:
            identity = ReplicaIdentity(part.topic_id, part.incarnation)
            epoch = LeaderEpoch(part.current_leader_epoch)
            return self._queries.readable_here(
                partition,
                identity=identity,
                current_leader_epoch=epoch,
                fetch_offset=Offset(part.fetch_offset),
                last_fetched_epoch=LeaderEpoch(part.last_fetched_epoch),
                in_sync_replicas=self._metadata.in_sync_replicas(partition, identity, epoch),
                now_ms=self._clock.now_ms(),
                committed_only=committed_only,
            )
        return self._queries.readable(
            partition,
            topic_id=part.topic_id,
            incarnation=part.incarnation,
            current_leader_epoch=LeaderEpoch(part.current_leader_epoch),
            fetch_offset=Offset(part.fetch_offset),
            last_fetched_epoch=LeaderEpoch(part.last_fetched_epoch),
            now_ms=self._clock.now_ms(),
            committed_only=committed_only,
        )

    def _explained(self, error: TidemarkError, topic: str, partition: int) -> record_pb2.Error:
        return errors.to_proto(self._metadata.explain(error, TopicPartition(topic, partition)))

    async def _read_columns(
        self, partition: TopicPartition, part: pb.PartitionFetch, end_offset: Offset, max_bytes: int
    ) -> bytes:
        """Read the batches; of a typed topic without the columns that the reader does not ask for."""
        if not self._layouts.is_typed(part.topic):
            return await self._read_whole(partition, part, end_offset, max_bytes)
        times = TimeRange(
            part.timestamp_from_us if part.HasField("timestamp_from_us") else None,
            part.timestamp_until_us if part.HasField("timestamp_until_us") else None,
        )
        if not part.column_ids and times == (None, None):
            return await self._read_whole(partition, part, end_offset, max_bytes)
        check_named(part.column_ids, "column ids of a partition")
        if not part.check_batches:
            return await self._read_whole(partition, part, end_offset, max_bytes, times)
        data = await self._read_whole(partition, part, end_offset, min(max_bytes * READ_AHEAD, _RESPONSE_BYTES_MAX))
        loop = asyncio.get_running_loop()
        layouts, column_ids = self._layouts, frozenset(part.column_ids)
        return await loop.run_in_executor(
            self._pool, lambda: prune_batches(data, part.topic, layouts, column_ids, max_bytes, times)
        )

    async def _read_whole(
        self,
        partition: TopicPartition,
        part: pb.PartitionFetch,
        end_offset: Offset,
        max_bytes: int,
        times: TimeRange | None = None,
    ) -> bytes:
        """Read the batches; damage that the read finds is repaired first (rule T6).

        `times` is given for a read of some columns or timestamps.

        Raises:
            TidemarkError: CORRUPT_BATCH: no replica has given a good copy in time.
        """
        offset = Offset(part.fetch_offset)
        repaired: set[int] = set()
        while True:
            try:
                if times is not None:
                    return await self._read_pruned(partition, part, end_offset, max_bytes, times)
                return await self._read_checked(partition, offset, end_offset, max_bytes, part.check_batches)
            except TidemarkError as error:
                damaged = damaged_offset(error, offset)
                if damaged is None:
                    raise
                if damaged not in repaired and await self._repairs.repair(partition, damaged):
                    repaired.add(damaged)
                elif offset < damaged < end_offset:
                    end_offset = Offset(damaged)  # the valid batches before the damaged batch
                elif self._repairs.is_running(partition):
                    sentence = f"{partition}: the batch at offset {damaged} is being repaired; retry"
                    raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, sentence) from error
                else:
                    raise

    async def _read_pruned(
        self, partition: TopicPartition, part: pb.PartitionFetch, end_offset: Offset, max_bytes: int, times: TimeRange
    ) -> bytes:
        log, layouts, column_ids = self._open_log(partition), self._layouts, frozenset(part.column_ids)
        offset = Offset(part.fetch_offset)
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: read_pruned(log, offset, end_offset, part.topic, layouts, column_ids, max_bytes, times)
        )

    async def _read_checked(
        self, partition: TopicPartition, offset: Offset, end_offset: Offset, max_bytes: int, check: bool
    ) -> bytes:
        data = await self._read(partition, offset, end_offset, max_bytes)
        if check:
            await asyncio.get_running_loop().run_in_executor(self._pool, checked_envelopes, partition, data, offset)
        return data

    async def _read(self, partition: TopicPartition, offset: Offset, end_offset: Offset, max_bytes: int) -> bytes:
        log = self._open_log(partition)
        data = log.read(offset, end_offset=end_offset, max_bytes=max_bytes, cached_only=True)
        if data is not None:
            return data
        loop = asyncio.get_running_loop()
        cold = await loop.run_in_executor(
            self._pool, lambda: log.read(offset, end_offset=end_offset, max_bytes=max_bytes)
        )
        return cold or b""

    def _open_log(self, partition: TopicPartition) -> Log:
        log = self._logs.log(partition)
        if log is None:
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: its log is not open; retry")
        return log

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Offsets by position or timestamp."""
        response = pb.ListOffsetsResponse()
        async for part in InSlices(request.partitions):
            result = response.partitions.add(topic=part.topic, partition=part.partition, offset=-1, timestamp_us=-1)
            try:
                await self._list_one(part, result, committed_only=request.isolation_level == pb.READ_COMMITTED)
            except TidemarkError as error:
                result.error.CopyFrom(self._explained(error, part.topic, part.partition))
        return response

    async def _list_one(
        self, part: pb.PartitionListOffsets, result: pb.PartitionListOffsetsResult, *, committed_only: bool
    ) -> None:
        partition = TopicPartition(part.topic, part.partition)
        stated = self._queries.stated_offsets(
            partition,
            topic_id=part.topic_id,
            current_leader_epoch=LeaderEpoch(part.current_leader_epoch),
            now_ms=self._clock.now_ms(),
        )
        self._lease.check(partition)
        result.leader_epoch = stated.leader_epoch
        end_offset = stated.last_stable_offset if committed_only else stated.high_watermark
        position = part.WhichOneof("position")
        if position == "earliest":
            result.offset = stated.log_start_offset
            return
        if position == "latest":
            result.offset = end_offset
            return
        if position is None:
            raise invalid_request("name a position: earliest, latest, timestamp or max")
        log = self._open_log(partition)
        found = await self._search(
            partial(log.max_timestamp, end_offset=end_offset)
            if position == "max_timestamp"
            else partial(log.offset_for_timestamp, part.timestamp_us, end_offset=end_offset)
        )
        self._lease.check(partition)
        if found is not None:
            result.offset, result.timestamp_us = found.offset, found.timestamp_us

    async def _search(self, search: Callable[..., TimestampOffset | None]) -> TimestampOffset | None:
        """Search on a thread, until the caller leaves: the end of a call does not interrupt a thread."""
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise CancelledError

        async with self._searches:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: search(check=check))
            finally:
                left.set()

    async def epoch_ends(self, request: pb.OffsetsForLeaderEpochRequest) -> pb.OffsetsForLeaderEpochResponse:
        """End offsets of leader epochs (rule E2, KIP-320)."""
        response = pb.OffsetsForLeaderEpochResponse()
        async for part in InSlices(request.partitions):
            result = response.partitions.add(topic=part.topic, partition=part.partition, leader_epoch=-1, end_offset=-1)
            partition = TopicPartition(part.topic, part.partition)
            try:
                end = self._queries.epoch_end(
                    partition,
                    current_leader_epoch=LeaderEpoch(part.current_leader_epoch),
                    leader_epoch=LeaderEpoch(part.leader_epoch),
                )
                self._lease.check(partition)
            except TidemarkError as error:
                result.error.CopyFrom(self._explained(error, part.topic, part.partition))
            else:
                result.leader_epoch, result.end_offset = end.leader_epoch, end.start_offset
        return response


def _told_to_wait(request: pb.FetchRequest, throttle_time_ms: int) -> Results:
    results = Results(_without_records(part) for part in request.partitions)
    results.throttle_time_ms = throttle_time_ms
    return results


def _without_records(part: pb.PartitionFetch) -> Fetched:
    facts = pb.PartitionFetchResult(topic=part.topic, partition=part.partition)
    facts.high_watermark = facts.log_start_offset = facts.log_end_offset = -1
    return Fetched(facts)


def _check_read(access: Access, name: str, denied: dict[str, record_pb2.Error]) -> None:
    """Add the denial of a topic that may not be read. The denial is decided and logged once for all partitions in a
    request.
    """
    try:
        access.require(Operation.READ, topic(name))
    except TidemarkError as error:
        if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        denied[name] = errors.to_proto(error)
