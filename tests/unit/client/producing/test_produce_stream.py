# SPDX-License-Identifier: Apache-2.0
"""A produce stream over a quota: no more requests, and no request timeout, until the wait is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.client.producing.produce_stream import Answer, ProduceStream
from tidemark.model import ErrorCode, TopicPartition
from tidemark.v1 import broker_service_pb2 as pb

from tests.turns import turns

Metadata = tuple[tuple[str, str | bytes], ...]


class Call:
    """A stream whose responses come from the test."""

    def __init__(self, metadata: Metadata) -> None:
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.metadata = metadata

    async def initial_metadata(self) -> Metadata:
        return self.metadata

    async def write(self, _: bytes) -> None:
        return

    async def read(self) -> Any:
        return await self.responses.get()

    def cancel(self) -> None:
        self.responses.put_nowait(grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED


class Stream:
    """A produce stream with the request timeout of a second, and its answers."""

    def __init__(self, free_at_s: float = 0.0, metadata: Metadata = ()) -> None:
        self.call = Call(metadata)
        self.headers: list[Any] = []
        self.answers: list[Answer] = []
        self.waits_s: list[float] = []
        self.stream = ProduceStream(
            "b:1",
            SimpleNamespace(stream_stream=self._open),  # type: ignore[arg-type]
            acks=1,
            request_timeout_ms=1_000,
            on_answer=self.answers.append,
            on_throttled=self.waits_s.append,
            headers=(("client-id", "loader"),),
            free_at_s=free_at_s,
        )

    def _open(self, *_: Any, **__: Any) -> Callable[..., Call]:
        def opened(metadata: Any) -> Call:
            self.headers.append(metadata)
            return self.call

        return opened

    def send(self) -> None:
        batch = SimpleNamespace(partition=TopicPartition("t", 0), data=b"x", count=1)
        attempt = SimpleNamespace(batch=batch, leader_epoch=0, topic_id="", shared=False)
        self.stream.send([[attempt]])  # type: ignore[list-item]

    async def respond(self, number: int, throttle_time_ms: int) -> None:
        response = pb.ProduceResponse(correlation_id=number, throttle_time_ms=throttle_time_ms)
        response.partitions.add(topic="t", base_offset=number)
        self.call.responses.put_nowait(response)
        await turns()


@pytest.fixture
async def stream() -> Any:
    made = Stream()
    yield made
    await made.stream.close()


async def test_a_stream_waits_as_the_newest_response_asks(stream: Stream) -> None:
    assert stream.headers == [(("client-id", "loader"),)]
    stream.send()
    assert not stream.stream.is_busy(time.monotonic(), 2)
    await stream.respond(1, 30_000)
    now_s = time.monotonic()
    assert stream.stream.is_busy(now_s, 2)
    assert not stream.stream.is_busy(now_s + 31, 2)
    assert stream.waits_s == [30]
    stream.send()
    await stream.respond(2, 0)
    assert not stream.stream.is_busy(time.monotonic(), 2)
    assert [answer.error for answer in stream.answers] == [None, None]


@pytest.mark.parametrize(
    ("stated", "wait_s"), [("30000", 30), ("9" * 5000, 60), ("0", 0), ("-1", 0), ("x", 0), ("\u0663", 0), (b"1", 0)]
)
async def test_a_new_stream_waits_as_its_metadata_asks_before_the_first_response(
    stated: str | bytes, wait_s: int
) -> None:
    stream = Stream(metadata=(("throttle-time-ms", stated),))
    stream.send()
    await turns()
    assert stream.waits_s == [wait_s] * bool(wait_s)
    now_s = time.monotonic()
    assert stream.stream.is_busy(now_s, 2) is bool(wait_s)
    stream.stream.check_deadlines(now_s + wait_s + 1)
    assert not stream.stream.broken
    await stream.stream.close()


async def test_a_wait_of_weeks_is_cut_off(stream: Stream) -> None:
    stream.send()
    await stream.respond(1, (1 << 31) - 1)
    assert stream.stream.is_busy(time.monotonic(), 2)
    assert not stream.stream.is_busy(time.monotonic() + 61, 2)
    assert stream.waits_s == [60]


async def test_a_wait_does_not_count_for_the_request_timeout(stream: Stream) -> None:
    stream.send()
    stream.send()
    await stream.respond(1, 30_000)
    now_s = time.monotonic()
    stream.stream.check_deadlines(now_s + 31)
    assert not stream.stream.broken
    stream.stream.check_deadlines(now_s + 33)
    assert stream.stream.broken
    assert [None if one.error is None else one.error.code for one in stream.answers] == [
        None,
        ErrorCode.REQUEST_TIMED_OUT,
    ]


async def test_a_later_stream_to_the_same_broker_keeps_the_wait() -> None:
    stream = Stream(free_at_s=time.monotonic() + 30)
    assert stream.stream.is_busy(time.monotonic(), 2)
    await stream.stream.close()
