# SPDX-License-Identifier: Apache-2.0
"""Fetches records: one loop for each broker fills the cursors' buffers, within limits (rules K1, K2, E4).

Each partition is read from its leader, or from the replica that `client.consuming.preferred_replica` chooses.

A fetch in flight is cancelled when its response has become useless: after a seek, and after a leader change in the
metadata. A fetch is also cancelled when a partition joins the loop or is resumed. A leader that does not answer thus
delays the consumer only until the metadata names the next leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidemark.client.consuming.fetch_stream import FetchStream
from tidemark.client.consuming.isolation import aborted_in, check_level, level_of, readable_end
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.preferred_replica import PreferredReplicas
from tidemark.client.metadata.cluster import REPLACED_LEADER_S, Cluster, Leader
from tidemark.client.settings import ConsumerSettings
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, unknown_topic
from tidemark.rpc import errors
from tidemark.rpc.codecs.fetch import Fetched
from tidemark.rpc.quotas.told import told_wait_s
from tidemark.rpc.request_limits import NAMED_MAX
from tidemark.runtime.clock import timeout
from tidemark.v1 import broker_service_pb2 as pb

_log = logging.getLogger("tidemark.client")

_PAUSE_S: Final = 0.05
_SHORT_WAIT_MS: Final = 50
"""Wait time of a fetch that omits some partitions of the broker, which may be fetched again soon."""
_TICK_S: Final = 0.2
_GONE_S: Final = 2.0
"""Time for which a topic must be missing to count as deleted."""

MISPLACED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors of stale metadata, of the broker or of this client; newer metadata show the leader."""


class _Asked(NamedTuple):
    cursor: Cursor
    generation: int
    leader: Leader
    read_from: pb.ReadFrom.ValueType


class _LeaderLoop:
    """The fetch loop of one broker: its task, its partitions, and its fetch stream."""

    def __init__(self, stream: FetchStream) -> None:
        self.stream = stream
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.left_out: frozenset[TopicPartition] = frozenset()
        """Paused partitions, without which the last fetch may wait long."""
        self.free_at_s = 0.0
        """Time before which no fetch is sent to this broker, because of a quota (rule Q2)."""

    def interrupt(self) -> None:
        """Cancel the fetch in flight, and compute the next one."""
        self.stream.break_off()
        self.wake.set()


class Fetcher:
    """Fetches for the cursors of one consumer; used on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        on_out_of_range: Callable[[Cursor, TidemarkError], bool] = lambda cursor, error: False,
    ) -> None:
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.suspended = False
        """Whether no records are returned, because the group may have assigned the partitions to other members."""
        self.coordinated = False
        """Whether a coordinator assigns the partitions: partitions of deleted topics wait until it revokes them."""
        self.nearest = PreferredReplicas(settings.rack, lambda: cluster.view)
        self.follower_bytes = 0
        """Number of bytes that were read from followers."""
        self.throttled_s = 0.0
        """Sum of the waits that brokers requested, because of quotas."""
        self._freed_bytes = 0
        self._worth_bytes = min(settings.max_partition_bytes, settings.read_ahead_bytes) // 8
        self._regroup_due = False
        self._on_out_of_range = on_out_of_range
        self._cluster = cluster
        self._settings = settings
        self._isolation_level = level_of(settings.isolation_level)
        self._leaders: dict[str, _LeaderLoop] = {}
        self._arrived = asyncio.Event()
        self._homeless_since_s: dict[TopicPartition, float] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Start to follow the metadata."""
        self._cluster.listen(self.regroup)
        self._ticking = asyncio.create_task(self._tick(), name="consumer tick")

    async def stop(self) -> None:
        """End every loop, and wake `wait_for_rows`."""
        self._stopped = True
        self._arrived.set()
        tasks = [loop.task for loop in self._leaders.values()] + [self._ticking]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._leaders.clear()

    async def wait_for_rows(self, timeout_s: float | None) -> None:
        """Return when rows or an error arrived, at the latest after `timeout_s`."""
        self.look_again()  # removed batches without rows have left room
        self._arrived.clear()
        if self._stopped or self.has_rows:
            return
        try:
            async with timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    @property
    def has_rows(self) -> bool:
        """Whether `poll` would return rows or raise."""
        return not self.suspended and any(cursor.has_rows for cursor in self.cursors.values())

    def wake(self) -> None:
        """Wake `wait_for_rows`."""
        self._arrived.set()

    def freed(self, size_bytes: int) -> None:
        """The application has taken a batch of this size from a buffer: compute the next fetches once they are worth a
        request, which names all partitions that have room.
        """
        self._freed_bytes += size_bytes
        if self._freed_bytes >= self._worth_bytes:
            self._freed_bytes = 0
            self.look_again()

    def look_again(self) -> None:
        """Compute the next fetches: a buffer has room, or a pause is over."""
        for loop in self._leaders.values():
            loop.wake.set()

    def moved(self, *cursors: Cursor) -> None:
        """Cancel the fetches of cursors that were assigned, in one call, or moved by a seek."""
        for cursor in cursors:
            cursor.retry_s = 0.0
        loops = self._leaders.values()
        if any(all(cursor.partition not in loop.partitions for loop in loops) for cursor in cursors):
            self.regroup()
        for loop in self._leaders.values():
            if any(cursor.partition in loop.partitions for cursor in cursors):
                loop.interrupt()

    def resumed(self, cursors: Iterable[Cursor]) -> None:
        """Fetch for cursors that were paused. A fetch without these may wait for records of other cursors."""
        partitions = {cursor.partition for cursor in cursors}
        for loop in self._leaders.values():
            if partitions & loop.left_out:
                loop.interrupt()
        self.look_again()
        self.wake()

    # -- brokers -------------------------------------------------------------------------------------------------------

    def regroup(self) -> None:
        """Distribute the partitions over the loops, by the current metadata."""
        self._regroup_due = False
        if self._stopped:
            return
        grouped: dict[str, set[TopicPartition]] = {}
        now_s = time.monotonic()
        self.nearest.keep(self.cursors.keys())
        for partition, cursor in self.cursors.items():
            leader = None if cursor.error is not None else self._leader_of(cursor)
            self.nearest.revalidate(partition, leader, now_s)
            if leader is not None:
                grouped.setdefault(self.nearest.address(partition, leader), set()).add(partition)
        for address in grouped:
            if address not in self._leaders:
                self._leaders[address] = self._start_loop(address)
        for address, loop in self._leaders.items():
            partitions = frozenset(grouped.get(address, ()))
            if partitions != loop.partitions:
                for joining in partitions - loop.partitions:
                    self.cursors[joining].retry_s = 0.0  # the pause was for the previous leader
                loop.partitions = partitions
                loop.interrupt()

    def _regroup_if_due(self) -> None:
        """Regroup once for all changes of one response, since each partition that joins a loop cancels its fetch."""
        if self._regroup_due:
            self.regroup()

    def _start_loop(self, address: str) -> _LeaderLoop:
        self._cluster.used(address)
        loop = _LeaderLoop(FetchStream(self._cluster, address))
        loop.task = asyncio.create_task(self._run(address, loop), name=f"fetch from {address}")
        loop.task.add_done_callback(lambda task: self._on_loop_ended(task, loop))
        return loop

    def _on_loop_ended(self, task: asyncio.Task[None], loop: _LeaderLoop) -> None:
        """Report a failed loop, which only a defect can cause, as the error of its partitions."""
        failure = None if task.cancelled() else task.exception()
        if failure is None:
            return
        _log.error("a fetch loop failed", exc_info=failure)
        for partition in loop.partitions & self.cursors.keys():
            self._end(self.cursors[partition], TidemarkError(ErrorCode.INTERNAL, f"{partition}: {failure!r}"))

    def lineage_of(self, partition: TopicPartition) -> int:
        """Return the lineage of a partition by the current metadata."""
        topic = self._cluster.topic_now(partition.topic)
        view = None if topic is None else topic.partitions.get(partition.partition)
        return 0 if view is None else view.lineage

    def _leader_of(self, cursor: Cursor) -> Leader | None:
        """Return the leader; None without one. A recreated partition ends the cursor (rule C7), unless its topic was
        recreated, too, and a coordinator revokes it: coordinators compare the ids of topics only."""
        leader = self._cluster.leader(cursor.partition)
        if leader is None:
            return None
        if (leader.topic_id, leader.incarnation) != (cursor.topic_id, cursor.incarnation):
            if not self.coordinated or leader.topic_id == cursor.topic_id:
                self._end(cursor, _recreated(cursor.partition))
            return None
        return leader

    def _end(self, cursor: Cursor, error: TidemarkError) -> None:
        cursor.error = error
        self._arrived.set()

    async def _tick(self) -> None:
        """Refresh the metadata of partitions without leader, and detect deleted topics."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            if self.nearest.drop_silent(now_s):
                self.regroup()
            self._end_deleted(now_s)

    def _end_deleted(self, now_s: float) -> None:
        """End the cursors of topics that stay missing, unless a coordinator revokes them; refresh the metadata of
        partitions without leader."""
        cursors = {where: one for where, one in self.cursors.items() if one.error is None}
        homeless = [where for where in cursors if self._cluster.leader(where) is None]
        self._homeless_since_s = {where: self._homeless_since_s.get(where, now_s) for where in homeless}
        for where, since_s in self._homeless_since_s.items():
            self._cluster.refresh()
            if self.coordinated:
                continue
            topic = self._cluster.view.topics.get(where.topic)
            error = unknown_topic(where.topic) if topic is None else topic.error
            if now_s - since_s > _GONE_S and error is not None and error.code is ErrorCode.UNKNOWN_TOPIC:
                self._end(cursors[where], error)

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def _run(self, address: str, loop: _LeaderLoop) -> None:
        try:
            while True:
                if (wait_s := loop.free_at_s - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                loop.wake.clear()
                asked = self._wanting(loop)
                if not asked:
                    await loop.wake.wait()
                else:
                    await self._fetch(address, loop, asked)
        finally:
            loop.stream.close()

    def _wanting(self, loop: _LeaderLoop) -> list[_Asked]:
        """List the cursors to fetch for, as many as a request may name.

        The cursor that got records longest ago is the first. Cursors that this fetch leaves out are the first of the
        next fetch.
        """
        room = self._make_room()
        now_s = time.monotonic()
        asked: list[_Asked] = []
        self._leave_the_damaged(loop, now_s)
        for partition, cursor in self.cursors.items():
            if partition not in loop.partitions:
                continue
            if len(asked) == NAMED_MAX:
                self.cursors |= {one.cursor.partition: self.cursors.pop(one.cursor.partition) for one in asked}
                break
            leader = self._cluster.leader(partition)
            wanted = room and leader is not None and self._has_room(cursor, now_s)
            self.nearest.asked(partition, now_s, wanted=wanted)
            if wanted and leader is not None:
                asked.append(_Asked(cursor, cursor.generation, leader, self.nearest.read_from(partition, now_s)))
        return asked

    def _make_room(self) -> bool:
        """Whether more bytes may be read ahead. Rows of paused or withheld partitions are discarded if they fill more
        than half of a full buffer.
        """
        most_bytes = self._settings.read_ahead_bytes
        given_bytes = sum(cursor.buffered_bytes for cursor in self.cursors.values() if cursor.gives)
        kept = [cursor for cursor in self.cursors.values() if cursor.buffered_bytes and not cursor.gives]
        if given_bytes + sum(cursor.buffered_bytes for cursor in kept) < most_bytes:
            return True
        if 2 * given_bytes >= most_bytes:
            return False
        for cursor in kept:
            cursor.generation += 1
            cursor.forget_buffer()
        return True

    def _has_room(self, cursor: Cursor, now_s: float) -> bool:
        waits = cursor.error is not None or cursor.retry_s > now_s or not cursor.gives
        return not waits and cursor.buffered_bytes < self._settings.max_partition_bytes

    def _leave_the_damaged(self, loop: _LeaderLoop, now_s: float) -> None:
        """Read damaged batches again from the leader, which has its own copy."""
        if not self.nearest.rack:
            return
        for partition in loop.partitions & self.cursors.keys():
            if self.cursors[partition].is_damaged and self.nearest.replica(partition) is not None:
                self.nearest.leave(partition, now_s)
                self._regroup_due = True
        self._regroup_if_due()

    def _may_ask(self, partition: TopicPartition) -> bool:
        cursor = self.cursors.get(partition)
        return cursor is not None and cursor.gives

    async def _fetch(self, address: str, loop: _LeaderLoop, asked: list[_Asked]) -> None:
        """Send one fetch, and take its response."""
        settings = self._settings
        all_asked = len(asked) == sum(self._may_ask(partition) for partition in loop.partitions)
        loop.left_out = loop.partitions - {one.cursor.partition for one in asked} if all_asked else frozenset()
        max_wait_ms = settings.fetch_max_wait_ms if all_asked else min(_SHORT_WAIT_MS, settings.fetch_max_wait_ms)
        request = pb.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=settings.max_bytes,
            partitions=[self._part(question) for question in asked],
            rack=settings.rack,
            isolation_level=self._isolation_level,
        )
        timeout_s = (max_wait_ms + settings.request_timeout_ms) / 1000
        try:
            response = await loop.stream.ask(request, timeout_s=timeout_s)
        except TidemarkError as error:
            _log.debug("fetch failed: %s", error)
            self._cluster.refresh(avoid=address)
            for question in asked:
                if question.read_from == pb.READ_FROM_FOLLOWER:
                    self.nearest.leave(question.cursor.partition, time.monotonic())
                else:
                    question.cursor.refusal = error
                    self._pause(question.cursor)
            self.regroup()
            return
        if response is None:
            return
        self._throttled(loop, asked, told_wait_s(response.throttle_time_ms))
        for question, result in zip(asked, response, strict=False):
            # Discard results after a seek or a leader change: the new leader got the same fetch.
            if question.cursor.generation == question.generation and question.cursor.partition in loop.partitions:
                self._take(question, result, address)
        self._regroup_due |= self.nearest.drop_quiet([one.cursor.partition for one in asked], time.monotonic())
        self._regroup_if_due()

    def _throttled(self, loop: _LeaderLoop, asked: list[_Asked], wait_s: float) -> None:
        """Send this broker no fetch for a while; fetches to other brokers continue."""
        if wait_s <= 0:
            return
        now_s = time.monotonic()
        loop.free_at_s = now_s + wait_s
        self.throttled_s += wait_s
        for question in asked:  # a follower that gets no request does not count as silent
            self.nearest.asked(question.cursor.partition, now_s, wanted=False)

    def _part(self, question: _Asked) -> pb.PartitionFetch:
        cursor, leader = question.cursor, question.leader
        return pb.PartitionFetch(
            topic=cursor.partition.topic,
            partition=cursor.partition.partition,
            current_leader_epoch=leader.leader_epoch,
            fetch_offset=cursor.fetch_offset,
            last_fetched_epoch=cursor.last_epoch,
            max_bytes=self._settings.max_partition_bytes,
            topic_id=cursor.topic_id,
            incarnation=cursor.incarnation,
            read_from=question.read_from,
            check_batches=cursor.is_damaged,
            column_ids=cursor.column_ids,
        )

    def _take(self, question: _Asked, fetched: Fetched, address: str) -> None:
        cursor, from_follower = question.cursor, question.read_from == pb.READ_FROM_FOLLOWER
        result, batches = fetched
        if (error := errors.error_in(result)) is not None:
            if from_follower:
                self._back_to_the_leader(cursor, error)
                return
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._on_out_of_range(cursor, error):
                return
            if error.code is ErrorCode.LOG_TRUNCATED and self._is_replaced(question):
                cursor.refusal = error
                self._cluster.refresh(avoid=question.leader.address)
                self._pause(cursor)
                return
            if error.code is ErrorCode.LOG_TRUNCATED and cursor.lowers_epoch(error):
                return
            damaged = error.code is ErrorCode.CORRUPT_BATCH  # the broker found no valid copy either
            if damaged or (not error.retriable and error.code not in MISPLACED):
                self._end(cursor, error)
                return
            _log.debug("fetch of %s refused: %s", cursor.partition, error)
            cursor.refusal = error
            self._cluster.note_refusal(cursor.partition, error)
            self._pause(cursor)
            return
        cursor.refusal, cursor.doubted_s = None, None
        high_watermark = result.heard_high_watermark if from_follower else result.high_watermark
        cursor.saw_high_watermark(readable_end(result, high_watermark), self.lineage_of(cursor.partition))
        if result.HasField("preferred_read_replica") and question.read_from == pb.READ_FROM_NEAREST:
            self._to_the_nearest(question, result)
            return
        if not batches:
            return
        try:
            check_level(self._isolation_level, fetched, address)
        except TidemarkError as refusal:
            self._end(cursor, refusal)
            return
        if not cursor.take(batches, aborted_in(result)):
            self._pause(cursor)
            self._arrived.set()
            return
        self.follower_bytes += len(batches) if from_follower else 0
        self.nearest.returned_records(cursor.partition)
        # Move the cursor to the end of the list, since the first partition of a fetch may use all its bytes.
        self.cursors[cursor.partition] = self.cursors.pop(cursor.partition)
        self._arrived.set()

    def _is_replaced(self, question: _Asked) -> bool:
        """Whether a leader with LOG_TRUNCATED may have a successor, which has written the record before the position.

        Not for longer than REPLACED_LEADER_S: metadata of a restored ZooKeeper never show a later epoch.
        """
        cursor, now_s = question.cursor, time.monotonic()
        if cursor.last_epoch <= question.leader.leader_epoch:
            return False
        if cursor.doubted_s is None:
            cursor.doubted_s = now_s
        return now_s < cursor.doubted_s + REPLACED_LEADER_S

    def _to_the_nearest(self, question: _Asked, result: pb.PartitionFetchResult) -> None:
        cursor, replica = question.cursor, result.preferred_read_replica
        has_more = readable_end(result, result.high_watermark) > cursor.fetch_offset
        now_s = time.monotonic()
        if self.nearest.prefer(cursor.partition, question.leader, replica, has_more=has_more, now_s=now_s):
            _log.debug("%s is read from broker %d, in the rack of this consumer", cursor.partition, replica)
        self._regroup_due = True

    def _back_to_the_leader(self, cursor: Cursor, error: TidemarkError) -> None:
        """Ask the leader after a refusal of a follower; the leader's answer decides (rule K1)."""
        _log.debug("fetch of %s refused by a follower: %s", cursor.partition, error)
        self.nearest.leave(cursor.partition, time.monotonic())
        if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE:
            self._cluster.note_refusal(cursor.partition, error)
        self._regroup_due = True

    def _pause(self, cursor: Cursor) -> None:
        cursor.retry_s = time.monotonic() + _PAUSE_S
        # needed even if another broker is leader then
        asyncio.get_running_loop().call_later(_PAUSE_S * 1.1, self.look_again)


def _recreated(partition: TopicPartition) -> TidemarkError:
    return TidemarkError(
        ErrorCode.UNKNOWN_TOPIC_ID,
        f"{partition} was deleted and created again; assign it again to read it",
    )
