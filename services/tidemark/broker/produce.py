"""The pipelined Produce stream: check every batch, hand it to the core, answer when the core does (rules K3, P2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from tidemark.broker.metrics import BrokerMetrics
from tidemark.broker.topics import TopicTable
from tidemark.core.effects import ProduceResult, ReplyToProduce
from tidemark.core.events import Event, ProduceArrived, ProduceExpired
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.ports import Clock
from tidemark.record.checks import check_batch, check_produced
from tidemark.record.envelope import Batch, with_append_time
from tidemark.rpc import errors
from tidemark.v1 import broker_service_pb2 as pb

IN_FLIGHT_BYTES_MAX: Final = 32 << 20
"""A stream is not read on while so many bytes of it wait for their acknowledgement."""
_TIMEOUT_MS_MAX: Final = 5 * 60 * 1000
_NO_OFFSET: Final = Offset(-1)
_ACKS: Final = frozenset((0, 1, -1))


class ProduceService:
    """All produce streams of the broker."""

    def __init__(
        self,
        submit: Callable[[Event], None],
        topics: TopicTable,
        clock: Clock,
        metrics: BrokerMetrics,
        lease_valid_until_ms: Callable[[], int],
    ) -> None:
        self._submit = submit
        self._topics = topics
        self._clock = clock
        self._metrics = metrics
        self._lease_valid_until_ms = lease_valid_until_ms
        self._waiting: dict[int, tuple[_Call, int]] = {}
        self._next_id = 0

    def reply(self, effect: ReplyToProduce) -> None:
        """Carry out `ReplyToProduce`."""
        call, index = self._waiting.pop(effect.request_id)
        result = effect.result
        # Rule F1: the lease is compared when the acknowledgement is released. Past it another leader may exist, and
        # what was appended here may not stay: the client asks again, and idempotence sorts it out.
        if result.error is None and call.acks == -1 and self._clock.now_ms() > self._lease_valid_until_ms():
            error = TidemarkError(
                ErrorCode.NOT_LEADER, f"{effect.partition}: this broker has lost touch with ZooKeeper; try again"
            )
            result = ProduceResult(_NO_OFFSET, result.log_start_offset, error)
        call.settle(index, result)

    async def serve(self, context: Any) -> None:
        """One client's stream, until it ends."""
        stream = _Stream()
        reader = asyncio.create_task(self._read(stream, context))
        try:
            while (response := await stream.outbox.get()) is not None:
                await context.write(response)
            await reader
        finally:
            reader.cancel()
            stream.closed = True

    async def _read(self, stream: _Stream, context: Any) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                self._take(stream, request)
                await stream.room()
        finally:
            stream.end_of_requests()

    def _take(self, stream: _Stream, request: pb.ProduceRequest) -> None:
        call = _Call(stream, request, self._metrics)
        stream.began(call)
        if not request.partitions:
            call.finish()
            return
        first_id = self._next_id
        self._next_id += len(request.partitions)
        expiring: list[tuple[int, TopicPartition]] = []
        for index, part in enumerate(request.partitions):
            request_id = first_id + index
            partition = TopicPartition(part.topic, part.partition)
            try:
                batches = self._checked(request.acks, part)
            except TidemarkError as error:
                call.settle(index, ProduceResult(_NO_OFFSET, _NO_OFFSET, error))
                continue
            self._waiting[request_id] = (call, index)
            expiring.append((request_id, partition))
            self._submit(
                ProduceArrived(
                    request_id, partition, part.topic_id, LeaderEpoch(part.current_leader_epoch), request.acks, batches
                )
            )
        if call.open_parts:
            timeout_ms = min(max(request.timeout_ms, 1), _TIMEOUT_MS_MAX)
            call.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire, expiring)

    def _checked(self, acks: int, part: pb.PartitionProduce) -> tuple[Batch, ...]:
        if acks not in _ACKS:
            raise TidemarkError(ErrorCode.INVALID_ACKS, f"acks is {acks}: want 0, 1 or -1 (all)")
        if not part.batches:
            raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{part.topic}-{part.partition}: no batch was sent")
        rules = self._topics.rules(part.topic)
        now_us = self._clock.wall_us()
        batches = []
        for data in part.batches:
            if len(data) > rules.limits.max_message_bytes:
                raise TidemarkError(
                    ErrorCode.BATCH_TOO_LARGE,
                    f"the batch has {len(data)} bytes, max.message.bytes is {rules.limits.max_message_bytes}",
                )
            batch = check_batch(data)
            check_produced(batch, rules.limits, now_us=now_us)
            batches.append(with_append_time(batch, timestamp_us=now_us) if rules.append_time else batch)
        return tuple(batches)

    def _expire(self, requests: list[tuple[int, TopicPartition]]) -> None:
        for request_id, partition in requests:
            if request_id in self._waiting:
                self._submit(ProduceExpired(request_id, partition))


class _Call:
    """One ProduceRequest under way: answered when each of its partitions is."""

    __slots__ = ("_began_s", "_metrics", "_results", "_stream", "acks", "correlation_id", "open_parts", "parts", "size_bytes", "timer")  # fmt: skip  # noqa: E501

    def __init__(self, stream: _Stream, request: pb.ProduceRequest, metrics: BrokerMetrics) -> None:
        self._stream = stream
        self._metrics = metrics
        self._began_s = time.perf_counter()
        self._results: list[ProduceResult | None] = [None] * len(request.partitions)
        self.acks = request.acks
        self.correlation_id = request.correlation_id
        self.parts = [(part.topic, part.partition) for part in request.partitions]
        self.open_parts = len(request.partitions)
        self.size_bytes = sum(len(data) for part in request.partitions for data in part.batches)
        self.timer: asyncio.TimerHandle | None = None
        batch_count = sum(len(part.batches) for part in request.partitions)
        metrics.produced(batch_count, self.size_bytes)

    def settle(self, index: int, result: ProduceResult) -> None:
        """What became of one partition."""
        assert self._results[index] is None, "a produce request is answered once"
        self._results[index] = result
        self.open_parts -= 1
        if self.open_parts == 0:
            self.finish()

    def finish(self) -> None:
        """Send the response."""
        if self.timer is not None:
            self.timer.cancel()
        self._metrics.produce_seconds.observe(time.perf_counter() - self._began_s)
        response = pb.ProduceResponse(
            correlation_id=self.correlation_id,
            partitions=[
                _result_to_proto(part, result) for part, result in zip(self.parts, self._results, strict=True) if result
            ],
        )
        self._stream.ended(self, response)


class _Stream:
    """A client's stream: what waits to be written, and how much is in flight."""

    def __init__(self) -> None:
        self.outbox: asyncio.Queue[pb.ProduceResponse | None] = asyncio.Queue()
        self.closed = False
        self._open_calls = 0
        self._in_flight_bytes = 0
        self._reading = True
        self._has_room = asyncio.Event()
        self._has_room.set()

    def began(self, call: _Call) -> None:
        self._open_calls += 1
        self._in_flight_bytes += call.size_bytes
        if self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            self._has_room.clear()

    def ended(self, call: _Call, response: pb.ProduceResponse) -> None:
        self._open_calls -= 1
        self._in_flight_bytes -= call.size_bytes
        if self._in_flight_bytes < IN_FLIGHT_BYTES_MAX:
            self._has_room.set()
        if not self.closed:
            self.outbox.put_nowait(response)
        self._maybe_close()

    async def room(self) -> None:
        """Wait until more may be taken in."""
        if not self._has_room.is_set():
            await self._has_room.wait()

    def end_of_requests(self) -> None:
        self._reading = False
        self._maybe_close()

    def _maybe_close(self) -> None:
        """The client half-closed and everything is answered: end the stream."""
        if not self._reading and self._open_calls == 0:
            self.outbox.put_nowait(None)


def _result_to_proto(part: tuple[str, int], result: ProduceResult) -> pb.PartitionProduceResult:
    message = pb.PartitionProduceResult(
        topic=part[0],
        partition=part[1],
        base_offset=result.base_offset,
        log_append_time_us=-1,
        log_start_offset=result.log_start_offset,
    )
    if result.error is not None:
        message.error.CopyFrom(errors.to_proto(result.error))
        message.base_offset = -1
    return message
