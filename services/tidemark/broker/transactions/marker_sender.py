# SPDX-License-Identifier: Apache-2.0
"""Sends the markers of decided transactions to the leaders of their partitions (rules X12, X14, X15).

Waiting markers are sent in one call for each broker. A marker is sent again until its partition has answered or is
deleted. The coordinator drops the marker when its leadership ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidemark.broker.coordination.broker_calls import BrokerCalls
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.transactions.metrics import TransactionMetrics
from tidemark.broker.transactions.transaction_shard import TransactionShard
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicDescription
from tidemark.rpc import errors
from tidemark.rpc.codecs.transaction import identity_to_proto, partition_to_proto
from tidemark.runtime.slices import Pace
from tidemark.v1 import transaction_service_pb2 as pb
from tidemark.v1.transaction_service_pb2_grpc import TransactionCoordinationStub

_BATCH: Final = 2000
"""Largest number of markers in one call."""
_CALLS_MAX: Final = 8
"""Calls in flight to one broker: a partition without enough replicas delays only its own call."""
_DEADLINE_S: Final = 10.0
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0

WriteMarkers = Callable[[pb.WriteMarkersRequest], Awaitable[pb.WriteMarkersResponse]]
ExistingTopics = Callable[[Collection[str]], Awaitable[Mapping[str, TopicDescription]]]

_log = logging.getLogger(__name__)


class _Sent(NamedTuple):
    """The marker of a producer for one partition."""

    shard: TransactionShard
    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    coordinator_epoch: int
    partition: TransactionPartition


class MarkerSender:
    """All markers of this broker's coordinators.

    Args:
        own: WriteMarkers of this broker.
        existing: the topics of these names that ZooKeeper has now.
        retry_s: time before the first retry; later ones wait for longer.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        own: WriteMarkers,
        existing: ExistingTopics,
        metrics: TransactionMetrics,
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._metadata = metadata
        self._existing = existing
        self._metrics = metrics
        self._retry_s = retry_s
        self._brokers = BrokerCalls(
            broker_id, metadata, own, lambda channel: TransactionCoordinationStub(channel).WriteMarkers, _DEADLINE_S
        )
        self._new: deque[tuple[TransactionShard, str]] = deque()
        self._unanswered: set[_Sent] = set()
        self._queues: dict[BrokerId, deque[_Sent]] = {}
        self._calls: Counter[BrokerId] = Counter()
        self._retries: list[_Sent] = []
        self._unreported: list[_Sent] = []
        self._router: asyncio.Task[None] | None = None
        self._retrier: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, shard: TransactionShard, transactional_ids: Iterable[str]) -> None:
        """Send the markers of these ids, whose decisions are committed; markers in flight are not sent twice."""
        self._new.extend((shard, one) for one in transactional_ids)
        if self._router is None:
            self._router = self._start(self._route_new(), "markers: route")

    async def stop(self) -> None:
        """Stop sending, and close the channels."""
        for task in tuple(self._tasks):
            task.cancel()
        await self._brokers.close()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _route_new(self) -> None:
        pace = Pace()
        try:
            while self._new:
                shard, transactional_id = self._new.popleft()
                for marker in shard.markers(transactional_id):
                    for partition in marker.partitions:
                        sent = _Sent(shard, *marker[:4], partition)
                        if sent not in self._unanswered:
                            self._unanswered.add(sent)
                            self._route(sent)
                        if pace.is_due:
                            await pace.give_way()
        finally:
            self._router = None
        self._send_queued()

    def _route(self, sent: _Sent) -> None:
        leader = self._leader_of(sent.partition)
        if leader is None:
            self._retry(sent)
        else:
            self._queues.setdefault(leader, deque()).append(sent)

    def _leader_of(self, partition: TransactionPartition) -> BrokerId | None:
        view = self._metadata.view
        topic = view.topics.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or known is None or topic.topic_id != partition.topic_id:
            return None
        return known.leader if known.leader in view.brokers else None

    def _send_queued(self) -> None:
        for leader in tuple(self._queues):
            queue = self._queues[leader]
            while queue and self._calls[leader] < _CALLS_MAX:
                batch = [queue.popleft() for _ in range(min(_BATCH, len(queue)))]
                self._calls[leader] += 1
                self._start(self._send(leader, batch), f"markers: to broker {leader}")
            if not queue:
                del self._queues[leader]

    async def _send(self, leader: BrokerId, batch: Sequence[_Sent]) -> None:
        ordered, request = _request_of(batch)
        try:
            response = await self._brokers.call(leader, request)
            outcomes = [errors.error_in(one) for one in response.outcomes]
            self._answered(list(zip(ordered, outcomes, strict=True)))
        except TidemarkError as error:
            _log.info("markers are not written, they are sent again", extra={"broker": leader, "why": str(error)})
            self._again(ordered)
        except Exception:  # noqa: BLE001 - the transactions would stay open
            _log.exception("cannot send markers")
            self._again(ordered)
        finally:
            self._calls[leader] -= 1
        self._send_queued()

    def _answered(self, outcomes: Iterable[tuple[_Sent, TidemarkError | None]]) -> None:
        done: list[_Sent] = []
        for sent, error in outcomes:
            if error is None or error.code is ErrorCode.PRODUCER_FENCED:
                done.append(sent)
            elif error.code is ErrorCode.COORDINATOR_FENCED:  # a newer coordinator completes the transaction
                _log.warning("a marker was refused and will not be sent again", extra=_facts(sent, error))
                self._unanswered.discard(sent)
            else:
                if not error.retriable:
                    _log.warning("a marker was refused and will be sent again", extra=_facts(sent, error))
                self._again((sent,))
        self._report(done)

    def _report(self, done: Collection[_Sent]) -> None:
        """Report to the coordinators the partitions that have their marker, or were deleted."""
        groups: dict[tuple[TransactionShard, str, ProducerIdentity], list[_Sent]] = {}
        for sent in done:
            groups.setdefault(sent[:3], []).append(sent)
        for (shard, transactional_id, producer), some in groups.items():
            if shard.marked(transactional_id, producer, [sent.partition for sent in some]):
                self._unanswered.difference_update(some)
                self._metrics.markers.inc(len(some))
            else:
                self._unreported.extend(some)
                self._wake()

    # -- later ---------------------------------------------------------------------------------------------------

    def _again(self, batch: Iterable[_Sent]) -> None:
        for sent in batch:
            self._metrics.marker_retries.inc()
            self._retry(sent)

    def _retry(self, sent: _Sent) -> None:
        self._retries.append(sent)
        self._wake()

    def _wake(self) -> None:
        if self._retrier is None:
            self._retrier = self._start(self._retry_later(), "markers: retry")

    async def _retry_later(self) -> None:
        wait_s = self._retry_s
        try:
            while self._retries or self._unreported:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, max(_RETRY_MAX_S, self._retry_s))
                await self._retry_once()
        finally:
            self._retrier = None

    async def _retry_once(self) -> None:
        unreported, self._unreported = self._unreported, []
        self._report(unreported)
        retries, self._retries = self._retries, []
        missing: list[_Sent] = []
        for sent in retries:
            if sent.shard.is_closed:
                self._unanswered.discard(sent)
            elif self._is_unknown(sent.partition):
                missing.append(sent)
            else:
                self._route(sent)
        self._send_queued()
        deleted = await self._deleted(missing)
        self._report(deleted)
        self._retries.extend(frozenset(missing).difference(deleted))

    async def _deleted(self, missing: Sequence[_Sent]) -> list[_Sent]:
        """The markers whose partition does not exist any more (rule X15).

        This broker's metadata may be older than the partition, so the state in ZooKeeper decides.
        """
        if not missing:
            return []
        try:
            found = await self._existing({sent.partition.topic for sent in missing})
        except Exception as error:  # noqa: BLE001 - retried: the transactions would stay open
            _log.warning("cannot determine whether topics of transactions exist; retrying", extra={"why": str(error)})
            return []
        return [sent for sent in missing if not _exists(sent.partition, found)]

    def _is_unknown(self, partition: TransactionPartition) -> bool:
        topic = self._metadata.view.topics.get(partition.topic)
        return topic is None or topic.topic_id != partition.topic_id or partition.partition not in topic.partitions


def _exists(partition: TransactionPartition, topics: Mapping[str, TopicDescription]) -> bool:
    topic = topics.get(partition.topic)
    return topic is not None and topic.topic_id == partition.topic_id and partition.partition in topic.partitions


def _request_of(batch: Iterable[_Sent]) -> tuple[list[_Sent], pb.WriteMarkersRequest]:
    """The request, and the markers in the order of their outcomes."""
    groups: dict[tuple[ProducerIdentity, bool, int], list[_Sent]] = {}
    for sent in batch:
        groups.setdefault((sent.producer, sent.commit, sent.coordinator_epoch), []).append(sent)
    request = pb.WriteMarkersRequest()
    for (producer, commit, coordinator_epoch), some in groups.items():
        request.markers.add(
            producer=identity_to_proto(producer),
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            partitions=[partition_to_proto(sent.partition) for sent in some],
        )
    return [sent for some in groups.values() for sent in some], request


def _facts(sent: _Sent, error: TidemarkError) -> dict[str, object]:
    return {
        "transactional_id": sent.transactional_id,
        "partition": f"{sent.partition.topic}-{sent.partition.partition}",
        "why": str(error),
    }
