# SPDX-License-Identifier: Apache-2.0
"""DeleteRecords: deletes the records at the front of a partition (rule L1).

The leader moves its log start offset, never past the high watermark. The leader answers when every follower that
fetches from it or is in sync has moved its own log start. The answer names the followers that have not done so. Log
start offsets are checkpointed like high watermarks. If every in-sync replica that the answer does not name is killed
before its checkpoint, or its disk fails, records may come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidemark.broker.clients.fetch import Purgatory
from tidemark.broker.node.session_lease import Lease
from tidemark.core.internal_topics import INTERNAL_TOPICS
from tidemark.core.replication import effects as ef
from tidemark.core.replication.events import Event, LogStartRequested
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc.request_limits import check_wait
from tidemark.v1 import delete_records_pb2 as pb

HIGH_WATERMARK: Final = -1
"""Value of `before_offset` that deletes all committed records."""
_TIMEOUT_MS: Final = 10_000
_TIMEOUT_MS_MAX: Final = 60_000


class _Start(NamedTuple):
    """Log start offsets of a leadership: the leader's own, and the followers' state."""

    own: Offset
    low_watermark: Offset
    behind: tuple[BrokerId, ...]
    waits: bool


class DeleteRecords:
    """Served by leaders; `on_low_watermark` carries out the effect that wakes waiting requests."""

    def __init__(
        self, queries: BrokerQueries, submit: Callable[[Event], None], lease: Lease, now_ms: Callable[[], int]
    ) -> None:
        self._queries = queries
        self._submit = submit
        self._lease = lease
        self._now_ms = now_ms
        self._waiting = Purgatory()

    def on_low_watermark(self, effect: ef.LowWatermarkMoved) -> None:
        """Wake the requests that wait for the partition's followers."""
        self._waiting.wake(effect.partition)

    async def delete(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """Delete the records below an offset, and wait for the followers.

        Raises:
            TidemarkError: NOT_LEADER, UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH. OFFSET_OUT_OF_RANGE beyond the high
                watermark. INVALID_REQUEST below -1, for a negative wait and for an internal topic. OFFSET_NOT_AVAILABLE
                while a new leader may not state its high watermark (rule E6).
        """
        check_wait(request.timeout_ms, "timeout_ms")
        partition = TopicPartition(request.topic, request.partition)
        if request.topic in INTERNAL_TOPICS:
            sentence = f"{request.topic} is an internal topic: its records are the state of groups or of transactions"
            raise TidemarkError(ErrorCode.INVALID_REQUEST, sentence, {"topic": request.topic})
        target, epoch = self._target(partition, request)
        view = self._queries.replica(partition)
        assert view is not None, "a led partition has a replica"
        self._submit(LogStartRequested(partition, view.identity, epoch, target))
        timeout_ms = request.timeout_ms or _TIMEOUT_MS
        until_ms = self._now_ms() + min(timeout_ms, _TIMEOUT_MS_MAX)
        while True:
            start = self._start(partition, epoch, target)
            left_ms = until_ms - self._now_ms()
            if not start.waits or left_ms <= 0:
                return pb.DeleteRecordsResponse(
                    low_watermark=start.low_watermark, log_start_offset=start.own, behind=start.behind
                )
            event = self._waiting.watch((partition,))
            try:  # check again after a second: the assigned replicas may have changed, or no further event may come
                await self._waiting.wait(event, min(left_ms, 1000) / 1000)
            finally:
                self._waiting.forget((partition,), event)

    def _target(self, partition: TopicPartition, request: pb.DeleteRecordsRequest) -> tuple[Offset, LeaderEpoch]:
        stated = self._queries.stated_offsets(
            partition,
            topic_id=request.topic_id,
            current_leader_epoch=LeaderEpoch(request.current_leader_epoch),
            now_ms=self._now_ms(),
        )
        self._lease.check(partition)
        view = self._queries.replica(partition)
        if request.incarnation and view is not None and request.incarnation != view.identity.incarnation:
            raise TidemarkError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"{partition} was deleted and recreated meanwhile: no record was deleted"
            )
        if request.before_offset == HIGH_WATERMARK:
            return stated.high_watermark, stated.leader_epoch
        if request.before_offset < 0:
            raise invalid_request(
                f"{partition}: {request.before_offset} is not an offset: give an offset from 0, or -1 for all "
                "committed records"
            )
        if request.before_offset > stated.high_watermark:
            raise TidemarkError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition}: records before {request.before_offset} cannot be deleted, as only those before "
                f"{stated.high_watermark} are committed: give an offset up to that, or -1",
                {"high_watermark": str(stated.high_watermark), "log_start_offset": str(stated.log_start_offset)},
            )
        return Offset(request.before_offset), stated.leader_epoch

    def _start(self, partition: TopicPartition, epoch: LeaderEpoch, target: Offset) -> _Start:
        """The log start offsets of the replicas.

        Raises NOT_LEADER if the leadership has ended: the next leader may not have received the deletion.
        """
        found = self._queries.log_starts(partition, epoch)
        view = self._queries.replica(partition)
        if found is None or view is None:
            raise TidemarkError(
                ErrorCode.NOT_LEADER,
                f"{partition}: the leader changed while records were deleted; retry with the next leader",
                {"leader": str(view.leader if view else -1), "leader_epoch": str(view.leader_epoch if view else -1)},
            )
        own, theirs = found
        others = [broker_id for broker_id in view.assigned if broker_id != view.leader]
        behind = tuple(one for one in others if theirs.get(one, Offset(-1)) < target)
        waits = own < target or any(one in theirs or one in view.isr for one in behind)
        return _Start(own, min([own, *theirs.values()]), behind, waits)
