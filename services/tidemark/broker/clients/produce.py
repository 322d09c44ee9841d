# SPDX-License-Identifier: Apache-2.0
"""The pipelined Produce stream: check every batch, pass it to the core, answer with the core (rules K3, P2, F1).

Requests are answered as they complete, in any order. An error of one partition's batches is in its result; the stream
continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import grpc

from tidemark.broker.clients.pending_batches import PendingBatches, Verification, refusals_of
from tidemark.broker.clients.typed_batches import check_fits_topic
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.internal_topics import INTERNAL_TOPICS
from tidemark.core.quotas.quotas import QuotaKind
from tidemark.core.replication.effects import ProduceResult, ReplyToProduce
from tidemark.core.replication.events import ProduceArrived, ProduceExpired
from tidemark.core.security.acls import Operation, topic, transactional_id
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition, invalid_request
from tidemark.ports import Clock
from tidemark.record.checks import check_batch, check_produced
from tidemark.record.envelope import Batch, with_append_time
from tidemark.rpc import errors
from tidemark.rpc.errors import abort_with
from tidemark.rpc.limits.answer_size import ErrorRoom
from tidemark.rpc.quotas.enforcement import NO_QUOTAS, CallerQuotas
from tidemark.rpc.quotas.told import wait_headers
from tidemark.rpc.request_limits import check_named, check_wait
from tidemark.rpc.security.access import Access
from tidemark.runtime.slices import Pace
from tidemark.v1 import broker_service_pb2 as pb

STREAM_IN_FLIGHT_BYTES_MAX: Final = 32 << 20
"""A stream is not read while this many bytes of it wait for their answer."""
STREAM_UNREAD_MAX: Final = 10_000
"""A stream is not read while this many results wait for its client to read them."""
BATCHES_MAX: Final = 1_000
"""Batches of a partition in a request: the core appends them in one step of 25 ms. Tidemark's clients send up to 10."""
_AT_ONCE: Final = 200
"""Number of results that are written before the event loop gets control back: 3 ms when each is refused."""
_TIMEOUT_MAX_MS: Final = 5 * 60 * 1000
_NONE: Final = Offset(-1)
_QUOTAS: Final = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE)

_log = logging.getLogger(__name__)


class ProduceService:
    """The produce streams of the broker."""

    def __init__(
        self,
        driver: BrokerDriver,
        topics: TopicTable,
        metadata: MetadataCache,
        lease: Lease,
        clock: Clock,
        metrics: BrokerMetrics,
        pending: PendingBatches,
    ) -> None:
        self._driver = driver
        self._pending = pending
        self._topics = topics
        self._metadata = metadata
        self._lease = lease
        self._clock = clock
        self._metrics = metrics
        self._waiting: dict[int, tuple[_Call, int]] = {}
        self._next_id = 0
        self._streams: set[_Stream] = set()

    def stop(self) -> None:
        """Accept no more requests; a stream ends when its requests are answered."""
        for stream in self._streams:
            stream.end_of_requests()

    def reply(self, effect: ReplyToProduce) -> None:
        """Enter the result for one partition into the answer of its produce request."""
        call, index = self._waiting.pop(effect.request_id)
        result = effect.result
        if result.error is not None:
            call.refuse(index, self._metadata.explain(result.error, effect.partition))
        elif call.acks != 0 and not self._lease.covers(effect.partition):
            call.refuse(index, self._lease.refusal(effect.partition))
        else:
            call.settle(index, result)

    async def serve(self, context: Any, access: Access | None = None, quotas: CallerQuotas = NO_QUOTAS) -> None:
        """Serve one client's stream until its end; `access`: the client's rights, None: all."""
        stream = _Stream(access, quotas)
        wait_ms = quotas.wait_ms(*_QUOTAS)
        if wait_ms:  # otherwise the client would treat the wait as a broker that does not answer
            await context.send_initial_metadata(wait_headers(wait_ms))
        self._streams.add(stream)
        reader = asyncio.create_task(self._read(stream, context), name="produce stream")
        try:
            while (response := await stream.outbox.get()) is not None:
                await context.write(response)
                stream.written(response)
                del response  # the next one may come late
            if stream.refusal is not None:
                await abort_with(context, stream.refusal)
        finally:
            stream.closed = True
            self._streams.discard(stream)
            reader.cancel()

    async def _read(self, stream: _Stream, context: Any) -> None:
        try:
            while (request := await self._next(stream, context)) is not grpc.aio.EOF:
                if not stream.reading:
                    return
                await self._take(stream, request)
                del request
                if stream.full:
                    await stream.room()
        except TidemarkError as error:
            stream.refusal = error
        except (grpc.RpcError, asyncio.InvalidStateError):
            _log.debug("a produce stream broke")
        except Exception:  # noqa: BLE001 - an unexpected error ends this stream, not the broker
            _log.exception("a produce stream failed")
        finally:
            stream.end_of_requests()

    async def _next(self, stream: _Stream, context: Any) -> Any:
        """The next request. A stream is not read while its client is over a quota (rule Q2)."""
        await stream.quotas.hold(*_QUOTAS)
        return await context.read()

    async def _take(self, stream: _Stream, request: pb.ProduceRequest) -> None:
        """Check a request in slices, then pass all its partitions to the core together."""
        began_s = time.perf_counter()
        parts = request.partitions
        check_named(parts, "partitions")
        check_wait(request.timeout_ms, "timeout_ms")
        if not parts:
            raise invalid_request("a produce request must name at least one partition")
        call = _Call(stream, self._metrics, request.correlation_id, request.acks, len(parts))
        stream.began()
        events: list[ProduceArrived] = []
        waiting: dict[int, tuple[_Call, int]] = {}
        pace = Pace()
        for index, part in enumerate(parts):
            if index and pace.is_due:
                await pace.give_way()
            partition = TopicPartition(part.topic, part.partition)
            call.partitions.append(partition)
            data = list(part.batches)  # one access only, since each access to the field copies the bytes
            call.size_bytes += sum(map(len, data))
            try:
                if stream.access is not None:
                    stream.access.require(Operation.WRITE, topic(part.topic))
                    if request.transactional_id:
                        stream.access.require(Operation.WRITE, transactional_id(request.transactional_id))
                batches = await self._checked(call, index, data, pace)
            except Exception as error:  # noqa: BLE001 - no error of a bad batch may end the stream
                call.results[index] = _refusal(self._explained(_as_refusal(error, partition), part))
                call.open_count -= 1
                continue
            self._next_id = request_id = self._next_id + 1
            waiting[request_id] = (call, index)
            events.append(
                ProduceArrived(
                    request_id,
                    partition,
                    part.topic_id,
                    LeaderEpoch(part.current_leader_epoch),
                    call.acks,
                    batches,
                    request.transactional_id,
                )
            )
        self._waiting |= waiting  # not before: the end of the stream may cancel the checks
        self._metrics.produce_requested()
        stream.took(call)
        stream.quotas.debit(QuotaKind.PRODUCER_BYTE_RATE, call.size_bytes)
        stream.quotas.debit(QuotaKind.REQUEST_PERCENTAGE, time.perf_counter() - began_s)
        if call.open_count == 0:
            call.finish()
            return
        timeout_s = min(max(request.timeout_ms, 1), _TIMEOUT_MAX_MS) / 1000
        verifications = self._pending.verifications(events)
        if verifications or stream.last_held is not None:
            stream.hold(self._submit_verified(call, events, verifications, stream.last_held, timeout_s))
        else:
            self._submit(call, events, timeout_s)

    def _explained(self, error: TidemarkError, part: pb.PartitionProduce) -> TidemarkError:
        """The refusal of a batch that does not fit its topic.

        A broker that does not lead may not know the schema yet, and refuses with NOT_LEADER.
        """
        if error.code is not ErrorCode.SCHEMA_MISMATCH:
            return error
        partition = TopicPartition(part.topic, part.partition)
        try:
            self._driver.core.queries.leader(partition, part.topic_id, LeaderEpoch(part.current_leader_epoch))
        except TidemarkError as not_led:
            return self._metadata.explain(not_led, partition)
        return error

    def _submit(self, call: _Call, events: Sequence[ProduceArrived], timeout_s: float) -> None:
        if call.acks != 0:
            waiting = [(event.request_id, event.partition) for event in events]
            call.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, waiting)
        self._driver.submit_all(events)

    async def _submit_verified(
        self,
        call: _Call,
        events: Sequence[ProduceArrived],
        verifications: Sequence[Verification],
        earlier: asyncio.Task[None] | None,
        timeout_s: float,
    ) -> None:
        """Submit a request after its verifications, and after the earlier requests of its stream (rule X11)."""
        began_s = time.monotonic()
        refused = await refusals_of(verifications, timeout_s) if verifications else {}
        if earlier is not None:
            await asyncio.wait([earlier])
        for event in events:
            if event.request_id in refused:
                _, index = self._waiting.pop(event.request_id)
                call.refuse(index, self._metadata.explain(refused[event.request_id], event.partition))
        left = [event for event in events if event.request_id not in refused]
        if left:
            self._submit(call, left, max(0.001, timeout_s - (time.monotonic() - began_s)))

    async def _checked(self, call: _Call, index: int, batches: list[bytes], pace: Pace) -> tuple[Batch, ...]:
        if call.partitions[index].topic in INTERNAL_TOPICS:
            raise invalid_request(
                f"{call.partitions[index].topic} is written by coordinators only: commit offsets, or end a transaction"
            )
        if not batches:
            raise invalid_request(f"{call.partitions[index]}: the request has no batch for this partition")
        if len(batches) > BATCHES_MAX:
            raise invalid_request(
                f"{call.partitions[index]}: a request has at most {BATCHES_MAX} batches of a partition, and this one "
                f"has {len(batches)}: send several requests, or larger batches"
            )
        topic_name = call.partitions[index].topic
        rules = self._topics.rules(topic_name)
        limits = rules.limits
        now_us = self._clock.wall_us()
        checked: list[Batch] = []
        for data in batches:
            if checked and pace.is_due:
                await pace.give_way()
            if len(data) > limits.max_message_bytes:  # before the checks that read all bytes
                raise TidemarkError(
                    ErrorCode.BATCH_TOO_LARGE,
                    f"the batch has {len(data)} bytes, max.message.bytes is {limits.max_message_bytes}",
                )
            batch = check_batch(data)
            check_produced(batch, limits, now_us=now_us)
            check_fits_topic(batch, topic_name, self._topics.layouts, limits)
            if limits.append_time:
                batch = with_append_time(batch, timestamp_us=now_us)
            checked.append(batch)
        return tuple(checked)

    def _expire(self, requests: list[tuple[int, TopicPartition]]) -> None:
        self._driver.submit_all(
            [ProduceExpired(request_id, partition) for request_id, partition in requests if request_id in self._waiting]
        )


class _Call:
    """A ProduceRequest in flight; answered when all its partitions are."""

    __slots__ = (
        "_began_s",
        "_metrics",
        "_room",
        "_stream",
        "acks",
        "correlation_id",
        "open_count",
        "partitions",
        "results",
        "size_bytes",
        "timer",
    )

    def __init__(self, stream: _Stream, metrics: BrokerMetrics, correlation_id: int, acks: int, count: int) -> None:
        self._stream = stream
        self._metrics = metrics
        self._began_s = time.perf_counter()
        self.correlation_id = correlation_id
        self.acks = acks
        self.partitions: list[TopicPartition] = []
        self.results: list[ProduceResult | None] = [None] * count
        self.open_count = count
        self.size_bytes = 0
        self.timer: asyncio.TimerHandle | None = None
        self._room = ErrorRoom()

    def refuse(self, index: int, error: TidemarkError) -> None:
        """Settle a partition with an error."""
        self.settle(index, _refusal(error))

    def settle(self, index: int, result: ProduceResult) -> None:
        """Record the result of one partition."""
        assert self.results[index] is None, "a produce request is answered once"
        self.results[index] = result
        self.open_count -= 1
        if self.open_count == 0:
            self.finish()

    def finish(self) -> None:
        """Send the response of a request, all of whose partitions have a result."""
        if self.timer is not None:
            self.timer.cancel()
        self._metrics.produce_seconds.observe(time.perf_counter() - self._began_s)
        throttle_time_ms = self._stream.quotas.wait_ms(*_QUOTAS)
        response = pb.ProduceResponse(correlation_id=self.correlation_id, throttle_time_ms=throttle_time_ms)
        self._stream.answers(len(self.partitions))
        if len(self.partitions) > _AT_ONCE:
            task = asyncio.create_task(self._answer_in_slices(response), name="produce answer")
            self._stream.answering.add(task)
            task.add_done_callback(self._stream.answering.discard)
            return
        self._fill(response, 0, len(self.partitions))
        self._stream.ended(self, response)

    async def _answer_in_slices(self, response: pb.ProduceResponse) -> None:
        for start in range(0, len(self.partitions), _AT_ONCE):
            self._fill(response, start, min(start + _AT_ONCE, len(self.partitions)))
            await asyncio.sleep(0)
        self._stream.ended(self, response)

    def _fill(self, response: pb.ProduceResponse, start: int, end: int) -> None:
        for index in range(start, end):
            partition, result = self.partitions[index], self.results[index]
            assert result is not None, "every partition is answered"
            message = response.partitions.add(
                topic=partition.topic,
                partition=partition.partition,
                base_offset=_NONE if result.error is not None or self.acks == 0 else result.base_offset,
                log_append_time_us=result.append_time_us if result.error is None else -1,
                log_start_offset=result.log_start_offset,
            )
            if result.error is not None:
                self._metrics.produce_refused(result.error.code)
                message.error.CopyFrom(self._room.fit(errors.to_proto(result.error)))


class _Stream:
    """A client's stream: its unwritten responses, and the amount in flight."""

    def __init__(self, access: Access | None, quotas: CallerQuotas) -> None:
        self.access = access
        self.quotas = quotas
        self.outbox: asyncio.Queue[pb.ProduceResponse | None] = asyncio.Queue()
        self.closed = False
        self.refusal: TidemarkError | None = None
        """Why no more requests are read; sent when the earlier ones are answered."""
        self.answering: set[asyncio.Task[None]] = set()
        self.last_held: asyncio.Task[None] | None = None
        """The last request that waits for its coordinator, or for an earlier waiting request. Later requests wait for
        this request.
        """
        self._open_calls = 0
        self._in_flight_bytes = 0
        self._unread = 0
        self.reading = True
        self._has_room = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether the stream must not be read now."""
        return self._in_flight_bytes >= STREAM_IN_FLIGHT_BYTES_MAX or self._unread >= STREAM_UNREAD_MAX

    async def room(self) -> None:
        """Wait until the stream may be read."""
        while self.full:
            self._has_room.clear()
            await self._has_room.wait()

    def began(self) -> None:
        """Count a received request as open, until its response is written."""
        self._open_calls += 1

    def hold(self, submission: Coroutine[Any, Any, None]) -> None:
        """Start the submission of a request that must wait; later ones come after it."""
        task = self.last_held = asyncio.create_task(submission, name="produce: verify")
        self.answering.add(task)
        task.add_done_callback(self._released)

    def _released(self, task: asyncio.Task[None]) -> None:
        self.answering.discard(task)
        if self.last_held is task:
            self.last_held = None

    def took(self, call: _Call) -> None:
        """Add the bytes of a checked request to those in flight."""
        self._in_flight_bytes += call.size_bytes

    def answers(self, count: int) -> None:
        """Count the results of an answer as unread."""
        self._unread += 1 + count

    def ended(self, call: _Call, response: pb.ProduceResponse) -> None:
        """Queue the response of an answered request."""
        self._open_calls -= 1
        self._in_flight_bytes -= call.size_bytes
        self._has_room.set()
        if not self.closed:
            self.outbox.put_nowait(response)
        self._maybe_close()

    def written(self, response: pb.ProduceResponse) -> None:
        """Subtract the results of a written response from the unread ones."""
        self._unread -= 1 + len(response.partitions)
        self._has_room.set()

    def end_of_requests(self) -> None:
        """Read no more requests; the stream ends when all are answered."""
        self.reading = False
        self._maybe_close()

    def _maybe_close(self) -> None:
        """End the stream if no request is open."""
        if not self.reading and self._open_calls == 0:
            self.outbox.put_nowait(None)


def _as_refusal(error: Exception, partition: TopicPartition) -> TidemarkError:
    if isinstance(error, TidemarkError):
        return error
    _log.error("cannot check a produced batch", extra={"partition": str(partition)}, exc_info=error)
    return TidemarkError(ErrorCode.INTERNAL, f"{partition}: the batch could not be checked: {type(error).__name__}")


def _refusal(error: TidemarkError) -> ProduceResult:
    return ProduceResult(_NONE, _NONE, error)
