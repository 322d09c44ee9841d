# SPDX-License-Identifier: Apache-2.0
"""One pipelined Produce stream to one broker: answers by correlation id, and what was lost when it broke."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

import grpc

from tidemark.client.producing.batching import PendingBatch
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors, wire
from tidemark.rpc.raw_methods import open_produce
from tidemark.v1 import broker_service_pb2 as pb

_CLOSED: Final = TidemarkError(ErrorCode.CLIENT_CLOSED, "the producer was closed")
_PARTITIONS: Final = pb.ProduceRequest.PARTITIONS_FIELD_NUMBER
_BATCHES: Final = pb.PartitionProduce.BATCHES_FIELD_NUMBER
_ANSWER_SLACK_S: Final = 1.0
REQUESTS_MAX: Final = 2
"""While one is under way another gathers; more would only be smaller."""
_LONG_S: Final = 0.1


class Attempt:
    """One try of one batch, set when it is taken; told apart by identity. `shared`: others of its partition go too."""

    __slots__ = ("batch", "leader_epoch", "shared", "topic_id")

    batch: PendingBatch

    def __init__(self, leader_epoch: int, topic_id: str) -> None:
        self.leader_epoch = leader_epoch
        self.topic_id = topic_id
        self.shared = False


Group = Sequence[Attempt]
"""What goes for one partition in one request: batches that follow one another, written all or not at all."""


class _Request(NamedTuple):
    """A request that is not answered."""

    sent_s: float
    groups: Sequence[Group]


class Answer(NamedTuple):
    """What became of an attempt; `lost`: nobody knows whether it was appended."""

    attempt: Attempt
    base_offset: int
    append_time_us: int
    error: TidemarkError | None
    lost: bool = False


class ProduceStream:
    """Answers every attempt once, through `on_answer`, on the loop."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        *,
        acks: int,
        request_timeout_ms: int,
        on_answer: Callable[[Answer], None],
    ) -> None:
        self.address = address
        self._acks = acks
        self._request_timeout_ms = request_timeout_ms
        self._deadline_s = request_timeout_ms / 1000 + _ANSWER_SLACK_S
        self._on_answer = on_answer
        self._call = open_produce(channel)
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
        """Whether it takes no more."""
        return self._error is not None

    def is_busy(self, now_s: float) -> bool:
        """Whether what is to be sent had better gather until the next answer.

        A request that waits long, for one slow partition, holds the others no longer.
        """
        young = sum(now_s - request.sent_s < _LONG_S for request in self._waiting.values())
        return young >= REQUESTS_MAX

    def send(self, groups: Sequence[Group]) -> None:
        """One request, one group for each partition."""
        if self._error is not None:
            self._lose(groups, self._error)
            return
        self._next_id += 1
        self._waiting[self._next_id] = _Request(time.monotonic(), groups)
        head = pb.ProduceRequest(correlation_id=self._next_id, acks=self._acks, timeout_ms=self._request_timeout_ms)
        parts = (wire.nested(_PARTITIONS, _partition_pieces(group)) for group in groups)
        self._outbox.put_nowait(b"".join(wire.message(head, *parts)))

    def check_deadlines(self, now_s: float) -> None:
        """A broker that is silent beyond the request timeout is given up."""
        oldest = next(iter(self._waiting.values()), None)  # requests are in the order of their deadlines
        if oldest is not None and now_s > oldest.sent_s + self._deadline_s:
            self.break_off(
                TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{self.address} did not answer a produce request")
            )

    def break_off(self, error: TidemarkError) -> None:
        """End the stream: what is not answered is lost."""
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
        """End it and wait until it has ended."""
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
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
            code = await self._call.code()
            error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self.address} ended the stream: {code.name}")
        except grpc.RpcError as failure:
            error = self._loss(failure)
        except TidemarkError as failure:
            error = failure
        self.break_off(error)

    def _loss(self, failure: grpc.RpcError) -> TidemarkError:
        """Why the stream ended: never a refusal of what was sent on it (rule K3), so always worth another try.

        gRPC itself ends a call as INTERNAL when a write meets a stream that the broker is just closing.
        """
        error = errors.from_rpc_error(failure, address=self.address)
        return error if error.retriable else TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, error.message)

    def _take(self, response: pb.ProduceResponse) -> None:
        request = self._waiting.pop(response.correlation_id, None)
        if request is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"{self.address} answered what it was not asked")
        if len(response.partitions) != len(request.groups):
            self._lose(request.groups, TidemarkError(ErrorCode.INTERNAL, "the answer is for other partitions"))
            raise TidemarkError(ErrorCode.INTERNAL, f"{self.address} answered for other partitions than it was asked")
        for group, result in zip(request.groups, response.partitions, strict=True):
            error = errors.from_proto(result.error) if result.HasField("error") else None
            offset = result.base_offset
            for attempt in group:
                count = attempt.batch.count  # before it is told, which lets go of the batch
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
