# SPDX-License-Identifier: Apache-2.0
"""Sends batches: takes closed batches, keeps one stream to each leader, and resolves each batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from tidemark.client.metadata.backoff import AttemptTimeout
from tidemark.client.metadata.cluster import Cluster, Leader
from tidemark.client.producing.accumulator import Accumulator
from tidemark.client.producing.batching import PendingBatch
from tidemark.client.producing.deleted_topics import DeletedTopics
from tidemark.client.producing.metrics import ProducerMetrics
from tidemark.client.producing.partition_queue import PartitionQueue
from tidemark.client.producing.partitioner import Partitioner
from tidemark.client.producing.produce_stream import Answer, Attempt, Group, ProduceStream
from tidemark.client.producing.splitting import names_records
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.settings import ProducerSettings
from tidemark.core.cluster_view import ClusterView
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.errors import AuthorizationError
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.clock import timeout
from tidemark.v1 import broker_service_pb2 as pb

_log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 4 << 20
REQUESTS_MAX: Final = 2
"""Largest number of requests in flight: meanwhile batches gather; more requests would only be smaller."""
GATHERED_BYTES_MAX: Final = 1 << 20
"""Waiting batches of this size are sent although the response to one request is missing."""
GROUP_BYTES_MAX: Final = 1 << 20
"""Soft limit of one partition in one request; the last batch may exceed it."""
_TICK_S: Final = 0.1
_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.2
_CALL_S: Final = 5.0
END_S: Final = 5.0
"""Time in which buffered records are sent once the event loop or the interpreter ends."""
_CLOSED: Final = TidemarkError(ErrorCode.CLIENT_CLOSED, "the producer was closed before the acknowledgement")

OLD_IDENTITY: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_NOT_FOUND})
"""Refusals of an identity that is out of date: the transaction timed out, or a newer producer has started. Only the
coordinator knows the cause (rule X13)."""


class TransactionWrites:
    """The writes of one transaction; without an identity: no transaction has begun.

    Attributes:
        sent: an attempt of a batch may have reached a broker, or offsets may have reached a coordinator.
        failure: of the first failed record; the transaction cannot commit.
    """

    __slots__ = ("failure", "identity", "sent")

    def __init__(self, identity: ProducerIdentity | None = None) -> None:
        self.identity = identity
        self.sent = False
        self.failure: TidemarkError | None = None


def cannot_commit(transactional_id: str, cause: TidemarkError) -> TidemarkError:
    """The error of a transaction that can only be aborted, because of `cause`."""
    return TidemarkError(
        ErrorCode.TRANSACTION_ABORTABLE,
        f"transactional id {transactional_id!r}: the transaction cannot commit any more: {cause.message}",
        cause.metadata,
    )


def no_transaction(transactional_id: str) -> TidemarkError:
    """The error of a send outside of a transaction."""
    return TidemarkError(
        ErrorCode.INVALID_TXN_STATE,
        f"transactional id {transactional_id!r}: no transaction is open: send within `with producer.transaction():`, "
        f"or from a producer without a transactional_id",
    )


class Sender:
    """Sends the batches of a producer; used on one event loop, but any thread may use its accumulator."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        typed: Callable[[str], TypedFormat | None] = lambda topic: None,
        partitioner: Partitioner | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        """The process that sends the records; a forked child has a copy of them."""
        self.ended = threading.Event()
        """Event that is set once every record has its outcome and no more can be added."""
        self.accumulator = Accumulator(
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            delivery_timeout_s=settings.delivery_timeout_ms / 1000,
            wake=self._wake,
            typed=typed,
            partitioner=partitioner,
            is_led=lambda partition: cluster.leader(partition) is not None,
        )
        self.accumulator.home = threading.get_ident()
        self._linger_s = settings.linger_ms / 1000
        self._deleted_topics = DeletedTopics(cluster)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._view: ClusterView | None = None
        self._window = REMEMBERED_BATCHES
        """Number of batches of a partition that all brokers of `_view` remember (rule P1)."""
        self._id_attempt = AttemptTimeout(_CALL_S)
        self._pauses: dict[TopicPartition, tuple[float, Leader | None, float]] = {}
        """End of the pause, the leader that refused, and the length of the next pause."""
        self._streams: dict[str, ProduceStream] = {}
        self._woken = False
        self._pumping = False
        self._linger: asyncio.TimerHandle | None = None
        self._flushing = 0
        self._acknowledged = [0, 0, 0]
        """Numbers of acknowledged records, batches and bytes."""
        self._failed_records = 0
        self._refusals = 0
        self._throttled_s = 0.0
        self._resolved = asyncio.Event()
        self._identities: asyncio.Task[None] | None = None
        self._no_identity: TidemarkError | None = None
        """Error of the last request for a producer id that failed."""
        self._ticking: asyncio.Task[None] | None = None
        self._stopped = False
        self._ending = False
        """Whether the producer was dropped, or its event loop ends: the sender stops once the buffer is empty."""
        self._failed_before_end = 0
        self.transaction = TransactionWrites()
        if settings.transactional_id:
            self.accumulator.refuse(no_transaction(settings.transactional_id))

    def start(self) -> None:
        """Start to check deadlines and to follow the metadata."""
        self._cluster.listen(self._schedule_pump)
        self._cluster.used_topics.users.append(self._topics_in_use)
        self._cluster.used_topics.forgotten.append(self._forget)
        self._ticking = asyncio.create_task(self._tick(), name="producer tick")

    def _wake(self) -> None:
        """Note, on any thread, that a batch was opened or closed."""
        if not self._woken and not self._stopped:
            self._woken = True
            if threading.get_ident() == self.accumulator.home:
                self.loop.call_soon(self._on_wake)
            else:
                self.loop.call_soon_threadsafe(self._on_wake)

    async def flush(self, *, later: bool = False) -> None:
        """Wait until every record added before this call has its outcome; `later`: also records added meanwhile."""
        self._flushing += 1
        try:
            self._pump()
            until_s = math.inf if later else time.monotonic()
            while any(queue.opened_s <= until_s for queue in self._active.values()):
                self._resolved.clear()
                await self._resolved.wait()
        finally:
            self._flushing -= 1

    async def wait_for_room(self) -> None:
        """Wait until the buffer has room."""
        began_s = time.monotonic()
        try:
            while self.accumulator.is_full:
                self._resolved.clear()
                self._pump()
                await self._resolved.wait()
        finally:
            self.accumulator.waited_s += time.monotonic() - began_s

    def end_soon(self) -> None:
        """Stop once every added record has its outcome; called on the event loop."""
        if not self._ending:
            self._ending = True
            self._failed_before_end = self._failed_records
            self._flushing += 1
            self._pump()

    def fail_rest(self) -> int:
        """Accept and send no more records, and fail the remaining batches.

        Returns:
            The number of records that failed since `end_soon`, if it was called, or otherwise caused by this call.
        """
        failed = self._failed_before_end if self._ending else self._failed_records
        self._stopped = True
        self.accumulator.end()
        self._flushing += 1
        self._take_batches()
        for queue in list(self._active.values()):
            queue.abandon(_CLOSED)
            with contextlib.suppress(RuntimeError):  # a task of a closed event loop waits for the flush
                self._resolve(queue)
        self.ended.set()
        return self._failed_records - failed

    async def stop(self) -> None:
        """Fail the remaining batches and close the streams. To send these batches, call `flush` before."""
        self.fail_rest()
        if self._linger is not None:
            self._linger.cancel()
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:  # before any wait, so that a cancelled stop leaves no stream
            stream.break_off(_CLOSED)
        tasks = [task for task in (self._ticking, self._identities) if task not in (None, asyncio.current_task())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await stream.close()

    def pin(self, topic: str, topic_id: str) -> None:
        """Send the later records of that name to the topic with that id only, even if the name has another id then."""
        self._deleted_topics.pin(topic, topic_id)

    # -- transactions --------------------------------------------------------------------------------------------------

    def begin_transaction(self, identity: ProducerIdentity) -> None:
        """Send the records from now on as writes of a transaction; all earlier records have their outcomes."""
        assert not self._active, "a transaction begins after the flush or the abort of the last one"
        self.transaction = TransactionWrites(identity)
        self._queues.clear()
        self.accumulator.admit()

    def fail_transaction(self, cause: TidemarkError) -> None:
        """Fail all records without outcome, and refuse further records: the transaction of `cause` cannot commit."""
        if self.transaction.failure is not None:
            return
        self.transaction.failure = cause
        error = cannot_commit(self._settings.transactional_id, cause)
        self.accumulator.refuse(error)
        self._flushing += 1
        self._take_batches()
        self._flushing -= 1
        for queue in list(self._active.values()):
            queue.abandon(error)
            self._resolve(queue)

    # -- batches -------------------------------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        self._woken = False
        self._pump()

    def _schedule_pump(self) -> None:
        if not self._pumping and not self._stopped:
            self._pumping = True
            self.loop.call_soon(self._pump)

    def _topics_in_use(self) -> set[str]:
        """Topics with records that wait, or with sequences of a transaction that may be open."""
        queues = self._queues if self._settings.transactional_id else self._active
        return {partition.topic for partition in queues}

    def _forget(self, topics: AbstractSet[str]) -> None:
        self._queues = {where: queue for where, queue in self._queues.items() if where.topic not in topics}
        self._pauses = {where: pause for where, pause in self._pauses.items() if where.topic not in topics}
        self.accumulator.forget(topics)

    def _take_batches(self) -> None:
        due_s = time.monotonic() - self._linger_s
        flushing = self._flushing > 0
        refusing: list[PartitionQueue] = []
        for batch in self.accumulator.take_closed(lambda batch: flushing or batch.opened_s <= due_s):
            if not self._stopped:  # the event loop may have ended
                self._cluster.use(batch.partition.topic)
            queue = self._queues.get(batch.partition)
            if queue is None:
                queue = self._queues[batch.partition] = PartitionQueue(
                    batch.partition,
                    self._deleted_topics.topic_id(batch.partition.topic),
                    max_in_flight=self._settings.max_in_flight,
                    idempotent=self._settings.idempotent,
                    codec=self._settings.codec,
                    transactional=bool(self._settings.transactional_id),
                )
                self._join_transaction(queue)
            elif not len(queue):
                self._renew(queue, self._deleted_topics.recreated(batch.partition.topic, queue.topic_id))
            self._active[batch.partition] = queue
            if not queue.put(batch):
                refusing.append(queue)
        for queue in refusing:
            self._resolve(queue)
        opened_s = self.accumulator.oldest_opened_s()
        if opened_s is not None and self._linger is None:
            wait_s = max(0.0, opened_s + self._linger_s - time.monotonic())
            self._linger = self.loop.call_later(wait_s, self._end_linger)

    def _end_linger(self) -> None:
        self._linger = None
        self._pump()

    def _renew(self, queue: PartitionQueue, gone: TidemarkError | None) -> None:
        """If the topic was deleted, fail the queue's batches; later ones are for the topic that then has the name."""
        if gone is not None:
            queue.abandon(gone)
            queue.topic_id = self._deleted_topics.topic_id(queue.partition.topic)
            self._resolve(queue)
            self._join_transaction(queue)

    def _join_transaction(self, queue: PartitionQueue) -> None:
        if self.transaction.identity is not None:
            queue.begin(self.transaction.identity)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send one request to each leader, with the batches of its partitions that may be sent now."""
        self._pumping = False
        if self._stopped:
            return
        self._take_batches()
        self._adopt_view()
        while requests := self._next_requests():
            for address, groups in requests.items():
                self._stream(address).send(groups)

    def _adopt_view(self) -> None:
        """After a change of the metadata: limit the batches in flight, and notice deposed leaders."""
        if self._view is self._cluster.view:
            return
        self._view = self._cluster.view
        self._window = self._view.remembered_batches
        self._lose_attempts_at_deposed_leaders()

    def _lose_attempts_at_deposed_leaders(self) -> None:
        """Stop waiting for the old leader of partitions with a new leader (rule K2)."""
        for queue in self._active.values():
            if queue.sent_to is None or not queue.unanswered:
                continue
            leader = self._cluster.leader(queue.partition)
            if leader is not None and leader != queue.sent_to:
                queue.lose_all(TidemarkError(ErrorCode.NOT_LEADER, f"{queue.partition} has a new leader"))

    def _next_requests(self) -> dict[str, list[Group]]:
        requests: dict[str, list[Group]] = {}
        for address, queues in self._sendable(time.monotonic()).items():
            groups: list[Group] = []
            size_bytes = 0
            for queue, leader in queues:
                if size_bytes > REQUEST_BYTES_MAX:
                    break
                group = self._group(queue, leader)
                if group:
                    groups.append(group)
                    size_bytes += sum(attempt.batch.size_bytes for attempt in group)
            if groups:
                requests[address] = groups
        return requests

    def _sendable(self, now_s: float) -> dict[str, list[tuple[PartitionQueue, Leader]]]:
        """The queues whose next batches may be sent now, by address of the leader."""
        found: defaultdict[str, list[tuple[PartitionQueue, Leader]]] = defaultdict(list)
        for queue in list(self._active.values()):
            queue.window = self._window
            if queue.wants_identity:
                self._want_identities()
            if not queue.can_send:
                continue
            leader = self._cluster.leader(queue.partition)
            if leader is None:
                self._cluster.refresh()
            elif not self._is_paused(queue, leader, now_s):
                found[leader.address].append((queue, leader))
        return {address: queues for address, queues in found.items() if not self._is_busy(address, queues, now_s)}

    def _is_busy(self, address: str, queues: Sequence[tuple[PartitionQueue, Leader]], now_s: float) -> bool:
        """Whether the batches wait for the response to an earlier request.

        Full batches wait for each response: the next request then has more of them, which costs the brokers a quarter
        less CPU time. Batches of less than half of `batch_bytes`, which only a linger or a flush closes, and those of a
        producer without linger, wait only while two requests are in flight.
        """
        stream = self._streams.get(address)
        if stream is None:
            return False
        full_bytes = self._settings.batch_bytes // 2
        gather = (
            self._linger_s > 0
            and all(queue.next_bytes >= full_bytes for queue, _ in queues)
            and sum(queue.ready_bytes for queue, _ in queues) < GATHERED_BYTES_MAX
        )
        return stream.is_busy(now_s, 1 if gather else REQUESTS_MAX)

    def _group(self, queue: PartitionQueue, leader: Leader) -> Group:
        """Group the first attempts of several batches; a retry is a separate group."""
        group: list[Attempt] = []
        size_bytes = 0
        while queue.can_send and size_bytes < GROUP_BYTES_MAX:
            again = queue.next_goes_again
            if again and group:
                break
            attempt = self._attempt(queue, leader)
            if attempt is not None:
                group.append(attempt)
                size_bytes += attempt.batch.size_bytes
            if again:
                break
        for attempt in group:
            attempt.shared = len(group) > 1
        return group

    def _attempt(self, queue: PartitionQueue, leader: Leader) -> Attempt | None:
        queue.topic_id = queue.topic_id or leader.topic_id
        attempt = Attempt(leader.leader_epoch, queue.topic_id)
        batch = queue.take(attempt)
        if batch is None:
            self._resolve(queue)
            return None
        attempt.batch = batch
        queue.sent_to = leader
        self.transaction.sent = True
        return attempt

    def _is_paused(self, queue: PartitionQueue, leader: Leader, now_s: float) -> bool:
        """Whether the partition pauses after a refusal of this leader; a new leader ends the pause."""
        pause = self._pauses.get(queue.partition)
        return pause is not None and now_s < pause[0] and pause[1] == leader

    def _stream(self, address: str) -> ProduceStream:
        stream = self._streams.get(address)
        if stream is None or stream.broken:
            self._cluster.used(address)
            free_at_s = 0.0 if stream is None else stream.free_at_s
            stream = self._streams[address] = ProduceStream(
                address,
                self._cluster.channel(address),
                acks=self._settings.acks,
                request_timeout_ms=self._settings.request_timeout_ms,
                on_answer=self._on_answer,
                on_throttled=self._on_throttled,
                headers=self._cluster.headers,
                free_at_s=free_at_s,
                transactional_id=self._settings.transactional_id,
            )
        return stream

    # -- responses -----------------------------------------------------------------------------------------------------

    def _on_answer(self, answer: Answer) -> None:
        batch = answer.attempt.batch
        queue = self._queues.get(batch.partition)
        self._schedule_pump()
        if queue is None:
            return  # the batch has its outcome, and its topic was not used since
        if answer.error is None:
            self._pauses.pop(batch.partition, None)
            queue.acknowledged(
                batch, answer.attempt, base_offset=answer.base_offset, append_time_us=answer.append_time_us
            )
        else:
            _log.debug("batch of %s not acknowledged: %s", batch.partition, answer.error)
            self._refusals += 1
            if not names_records(answer.error):
                self._pause(queue)
            self._cluster.note_refusal(batch.partition, answer.error)
            queue.refused(batch, answer.attempt, answer.error, lost=answer.lost, shared=answer.attempt.shared)
        self._resolve(queue)

    def _hindrance(self, queue: PartitionQueue) -> str:
        """The reason in the error of a record that expires."""
        refusal = queue.oldest_refusal or (self._no_identity if queue.wants_identity else None)
        if refusal is not None:
            return refusal.message
        if self._cluster.leader(queue.partition) is None:
            return "the partition has no leader that could be reached"
        return "a quota slowed this producer down" if self._throttled_s else "no broker answered"

    def _on_throttled(self, wait_s: float) -> None:
        """Compute requests again when a broker accepts requests."""
        self._throttled_s += wait_s
        self.loop.call_later(wait_s, self._schedule_pump)

    def _pause(self, queue: PartitionQueue) -> None:
        before = self._pauses.get(queue.partition)
        now_s = time.monotonic()
        if before is not None and now_s < before[0]:
            return  # another batch of the same failure
        length_s = _PAUSE_S if before is None else min(before[2], _PAUSE_MAX_S)
        self._pauses[queue.partition] = (now_s + length_s, self._cluster.leader(queue.partition), length_s * 2)
        self.loop.call_later(length_s, self._schedule_pump)

    def _resolve(self, queue: PartitionQueue) -> None:
        resolved = queue.take_resolved()
        for batch, base_offset, append_time_us, failed in resolved:
            size_bytes, error = batch.size_bytes, failed
            if failed is not None and failed.code in OLD_IDENTITY and self.transaction.identity is not None:
                error = cannot_commit(self._settings.transactional_id, failed)
            self._count(batch, failed=error is not None)
            batch.resolve(base_offset, append_time_us, error)
            self.accumulator.release(size_bytes)
        if not len(queue):
            self._active.pop(queue.partition, None)
        if resolved:
            self._resolved.set()
        failure = next((error for *_, error in resolved if error is not None), None)
        if failure is not None and self.transaction.identity is not None:
            self.fail_transaction(failure)

    def _count(self, batch: PendingBatch, *, failed: bool) -> None:
        if failed:
            self._failed_records += batch.count
        else:
            self._acknowledged = [
                had + more for had, more in zip(self._acknowledged, (batch.count, 1, batch.size_bytes), strict=True)
            ]

    def metrics(self) -> ProducerMetrics:
        """Count acknowledged, failed and buffered records."""
        records, batches, size_bytes = self._acknowledged
        return ProducerMetrics(
            acknowledged_records=records,
            acknowledged_batches=batches,
            acknowledged_bytes=size_bytes,
            failed_records=self._failed_records,
            refusals=self._refusals,
            waited_s=self.accumulator.waited_s,
            throttled_s=self._throttled_s,
            buffered_bytes=self.accumulator.buffered_bytes,
            buffered_batches=sum(map(len, list(self._active.values()))),
        )

    # -- producer ids --------------------------------------------------------------------------------------------------

    def _want_identities(self) -> None:
        if self._identities is None or self._identities.done():
            self._identities = asyncio.create_task(self._fetch_identities())

    async def _fetch_identities(self) -> None:
        """Fetch a new producer id for the partitions that need one; each has its sequences (rule P4)."""
        while self._without_identity():
            try:
                identity = await self._init_producer_id()
            except AuthorizationError as error:
                for queue in self._without_identity():
                    queue.abandon(error)  # no batch without a producer id was sent
                    self._resolve(queue)
            except TidemarkError as error:
                self._no_identity = error
                _log.debug("no producer id: %s", error)
                await asyncio.sleep(_PAUSE_MAX_S)
            else:
                for queue in self._without_identity():
                    queue.identity = identity
            self._schedule_pump()

    def _without_identity(self) -> list[PartitionQueue]:
        return [queue for queue in self._active.values() if queue.wants_identity]

    async def _init_producer_id(self) -> ProducerIdentity:
        request = pb.InitProducerIdRequest()
        response = await self._cluster.ask_in_turn(
            lambda stub, timeout_s: stub.InitProducerId(request, timeout=timeout_s, metadata=self._cluster.headers),
            self._id_attempt,
        )
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    # -- time, and the end --------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Check deadlines until the stop. The end of an event loop cancels every task, so the waiting records are sent
        first."""
        try:
            await self._check_until_empty()
        except asyncio.CancelledError:
            if self._stopped or not self.accumulator.buffered_bytes:
                raise
            self._replace_cancelled_tasks()
            self.end_soon()
            with contextlib.suppress(TimeoutError):
                async with timeout(END_S):
                    await self._check_until_empty()
        self.fail_rest_and_log("it could not send them in time")
        await self.stop()
        await self._cluster.close()

    def fail_rest_and_log(self, why: str) -> None:
        """Call `fail_rest`, and log the number of records that were lost."""
        lost = self.fail_rest()
        if lost:
            _log.error("%d records were lost: their asyncio Producer was not closed, and %s", lost, why)

    def _replace_cancelled_tasks(self) -> None:
        lost = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the event loop ended the produce stream")
        for stream in self._streams.values():
            stream.break_off(lost)
        self._identities = None

    async def _check_until_empty(self) -> None:
        while not (self._ending and not self._active):
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            self._deleted_topics.keep(self._active)
            for stream in list(self._streams.values()):
                stream.check_deadlines(now_s)
            for queue in list(self._active.values()):
                queue.expire(now_s, partial(self._hindrance, queue))
                self._resolve(queue)
                self._renew(queue, self._deleted_topics.verdict(queue.partition, queue.topic_id, now_s))
            if self._active:
                self._schedule_pump()
