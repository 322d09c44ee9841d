# SPDX-License-Identifier: Apache-2.0
"""One pipelined Produce stream to one broker: matches responses to requests, and reports lost requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import grpc

from tidemark.client.producing.batching import PendingBatch
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs import wire
from tidemark.rpc.quotas.told import told_wait_s, wait_of_headers_s
from tidemark.rpc.raw_methods import Headers, open_produce
from tidemark.v1 import broker_service_pb2 as pb

_CLOSED: Final = TidemarkError(ErrorCode.CLIENT_CLOSED, "the producer was closed")
_PARTITIONS: Final = pb.ProduceRequest.PARTITIONS_FIELD_NUMBER
_BATCHES: Final = pb.PartitionProduce.BATCHES_FIELD_NUMBER
_ANSWER_SLACK_S: Final = 1.0
_LONG_S: Final = 0.1


class Attempt:
    """One attempt to send a batch, compared by identity; `shared`: the request has other batches of the partition,
    too.
    """

    __slots__ = ("batch", "leader_epoch", "shared", "topic_id")

    batch: PendingBatch

    def __init__(self, leader_epoch: int, topic_id: str) -> None:
        self.leader_epoch = leader_epoch
        self.topic_id = topic_id
        self.shared = False


Group = Sequence[Attempt]
"""Consecutive batches of one partition in one request; the leader appends all of them or none."""


class _Request(NamedTuple):
    """A produce request in flight on a stream."""

    sent_s: float
    groups: Sequence[Group]


class Answer(NamedTuple):
    """The outcome of an attempt; `lost`: no response arrived, so the batch may have been appended."""

    attempt: Attempt
    base_offset: int
    append_time_us: int
    error: TidemarkError | None
    lost: bool = False


class ProduceStream:
    """Calls `on_answer` once for each attempt, on the event loop.

    Attributes:
        free_at_s: monotonic time before which no request is to be sent, because of a quota (rule Q2).

    Args:
        on_throttled: called with the seconds for which no request is to be sent.
        headers: metadata of the call.
        free_at_s: `free_at_s` of an earlier stream to the same broker.
        transactional_id: transactional id of a producer whose batches are all pending; "": none.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        *,
        acks: int,
        request_timeout_ms: int,
        on_answer: Callable[[Answer], None],
        on_throttled: Callable[[float], None] = lambda _: None,
        headers: Headers = (),
        free_at_s: float = 0.0,
        transactional_id: str = "",
    ) -> None:
        self.address = address
        self._acks = acks
        self._request_timeout_ms = request_timeout_ms
        self._transactional_id = transactional_id
        self._deadline_s = request_timeout_ms / 1000 + _ANSWER_SLACK_S
        self._on_answer = on_answer
        self._on_throttled = on_throttled
        self.free_at_s = free_at_s
        self._call = open_produce(channel, headers)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting: dict[int, _Request] = {}
        self._next_id = 0
        self._error: TidemarkError | None = None
        self._tasks = [
            asyncio.create_task(self._write(), name=f"produce to {address}"),
            asyncio.create_task(self._read(), name=f"answers of {address}"),
        ]

    @property
    def broken(self) -> bool:
        """Whether the stream has ended, so that a new one is needed."""
        return self._error is not None

    def is_busy(self, now_s: float, requests_max: int) -> bool:
        """Whether batches should gather: because of a quota, or since that many requests are in flight.

        A request in flight for longer than `_LONG_S`, because of a slow partition, does not count.
        """
        if now_s < self.free_at_s:
            return True
        young = sum(now_s - request.sent_s < _LONG_S for request in self._waiting.values())
        return young >= requests_max

    def send(self, groups: Sequence[Group]) -> None:
        """Send one request with one group for each partition."""
        if self._error is not None:
            self._lose(groups, self._error)
            return
        self._next_id += 1
        self._waiting[self._next_id] = _Request(time.monotonic(), groups)
        head = pb.ProduceRequest(
            correlation_id=self._next_id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            transactional_id=self._transactional_id,
        )
        parts = (wire.nested(_PARTITIONS, _partition_pieces(group)) for group in groups)
        self._outbox.put_nowait(b"".join(wire.message(head, *parts)))

    def check_deadlines(self, now_s: float) -> None:
        """End the stream if a request exceeds the request timeout; time for which a quota throttles does not count."""
        oldest = next(iter(self._waiting.values()), None)  # requests are sorted by their deadlines
        if oldest is not None and now_s > max(oldest.sent_s, self.free_at_s) + self._deadline_s:
            self.break_off(
                TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{self.address} did not answer a produce request")
            )

    def break_off(self, error: TidemarkError) -> None:
        """End the stream and report the requests in flight as lost."""
        if self._error is not None:
            return
        self._error = error
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            self._lose(request.groups, error)

    async def close(self) -> None:
        """End the stream and wait for its tasks."""
        self.break_off(_CLOSED)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _lose(self, groups: Sequence[Group], error: TidemarkError) -> None:
        for attempt in chain.from_iterable(groups):
            self._on_answer(Answer(attempt, -1, -1, error, lost=True))

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except grpc.RpcError as error:
            self.break_off(self._loss(error))
        except asyncio.InvalidStateError:
            self.break_off(TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self.address} closed the produce stream"))

    async def _read(self) -> None:
        try:
            self._note_wait(wait_of_headers_s(await self._call.initial_metadata()))
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
            code = await self._call.code()
            error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self.address} ended the stream: {code.name}")
        except grpc.RpcError as failure:
            error = self._loss(failure)
        except TidemarkError as failure:
            error = failure
        self.break_off(error)

    def _note_wait(self, wait_s: float) -> None:
        if wait_s:
            self.free_at_s = time.monotonic() + wait_s
            self._on_throttled(wait_s)

    def _loss(self, failure: grpc.RpcError) -> TidemarkError:
        """Make the error of a broken stream. The error is not a refusal of a batch (rule K3), so always retriable.

        gRPC ends a call as INTERNAL if a write arrives at a stream that the broker is closing.
        """
        error = errors.from_rpc_error(failure, address=self.address)
        return error if error.retriable else TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, error.message)

    def _take(self, response: pb.ProduceResponse) -> None:
        request = self._waiting.pop(response.correlation_id, None)
        if request is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self.address} sent a response without a request")
        if len(response.partitions) != len(request.groups):
            self._lose(request.groups, TidemarkError(ErrorCode.INTERNAL, "the response is for other partitions"))
            raise TidemarkError(
                ErrorCode.INTERNAL, f"{self.address} sent a response for other partitions than requested"
            )
        self.free_at_s = 0.0  # the newest response counts: quotas change
        self._note_wait(told_wait_s(response.throttle_time_ms))
        for group, result in zip(request.groups, response.partitions, strict=True):
            error = errors.error_in(result)
            offset = result.base_offset
            for attempt in group:
                count = attempt.batch.count  # read before the callback, which releases the batch
                self._on_answer(Answer(attempt, offset, result.log_append_time_us, error))
                offset += count if offset >= 0 else 0


def _partition_pieces(group: Group) -> list[bytes]:
    first = group[0]
    head = pb.PartitionProduce(
        topic=first.batch.partition.topic,
        partition=first.batch.partition.partition,
        current_leader_epoch=first.leader_epoch,
        topic_id=first.topic_id,
    )
    return wire.message(head, *(wire.nested(_BATCHES, (attempt.batch.data or b"",)) for attempt in group))
