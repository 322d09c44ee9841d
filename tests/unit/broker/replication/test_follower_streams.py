# SPDX-License-Identifier: Apache-2.0
"""The leader's end of a stream that breaks in an unexpected place: the stream ends, so its follower connects again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import grpc
import pytest
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.replication import stream_transport
from tidemark.broker.replication.stream_transport import FollowerStreams
from tidemark.core.messages import LeaderMessage
from tidemark.core.replication.effects import SendToFollower
from tidemark.core.replication.events import FollowerDisconnected
from tidemark.model import BrokerEpoch, BrokerId
from tidemark.v1 import replica_service_pb2 as pb

HELLO = pb.ReplicateRequest(hello=pb.ReplicateHello(broker_id=1, broker_epoch=7, leader_broker_epoch=5))
END = FollowerDisconnected(BrokerId(1), BrokerEpoch(7))


class Context:
    """A call of Replicate: the requests or errors that it reads, and whether the follower is still there to answer."""

    def __init__(self, *requests: object, is_gone: bool = False) -> None:
        self._requests = list(requests)
        self._is_gone = is_gone
        self.status: grpc.StatusCode | None = None
        self.greeted, self.unread, self.goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.written = 0

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {}

    async def read(self) -> object:
        if not self._requests:
            await asyncio.Event().wait()
        one = self._requests.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async def send_initial_metadata(self, metadata: object) -> None:
        if self._is_gone:
            raise asyncio.InvalidStateError
        self.greeted.set()

    async def write(self, response: bytes) -> None:
        self.unread.set()
        await self.goes_on.wait()
        self.goes_on.clear()
        self.written += 1

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object) -> None:
        self.status = code
        raise grpc.aio.AbortError


async def test_a_stream_whose_message_cannot_be_read_ends(caplog: pytest.LogCaptureFixture) -> None:
    events: list[object] = []
    streams = FollowerStreams(events.append, OwnEpoch(BrokerEpoch(5)))
    context = Context(HELLO, ValueError("a message of another world"))
    async with asyncio.timeout(5):
        with pytest.raises(grpc.aio.AbortError):
            await streams.Replicate(None, context)
    assert context.status is grpc.StatusCode.INTERNAL
    assert (streams.count, events) == (0, [END])
    assert "a message of another world" in caplog.text


@pytest.mark.parametrize("error", [grpc.aio.UsageError("ended"), grpc.aio.InternalError("broken"), grpc.RpcError()])
async def test_a_broken_stream_ends_without_a_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    events: list[object] = []
    streams = FollowerStreams(events.append, OwnEpoch(BrokerEpoch(5)))
    async with asyncio.timeout(5):
        with pytest.raises(grpc.aio.AbortError):
            await streams.Replicate(None, Context(HELLO, error))
    assert (streams.count, events, caplog.text) == (0, [END], "")


async def test_a_stream_to_a_follower_that_is_gone_before_the_answer_ends() -> None:
    events: list[object] = []
    streams = FollowerStreams(events.append, OwnEpoch(BrokerEpoch(5)))
    with pytest.raises(asyncio.InvalidStateError):
        await streams.Replicate(None, Context(HELLO, is_gone=True))
    assert (streams.count, events) == (0, [END])


async def test_a_stream_that_its_follower_does_not_read_ends_and_keeps_no_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop of the follower hangs, and gRPC still answers pings."""
    monkeypatch.setattr(stream_transport, "_UNREAD_S", 0.0)
    events: list[object] = []
    streams = FollowerStreams(events.append, OwnEpoch(BrokerEpoch(5)))
    context = Context(HELLO)
    serving = asyncio.create_task(streams.Replicate(None, context))
    await context.greeted.wait()
    streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
    await context.unread.wait()
    for _ in range(stream_transport._UNREAD_MAX):
        assert streams.count == 1
        streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
    assert (streams.count, events) == (0, [END])
    streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
    context.goes_on.set()
    with pytest.raises(grpc.aio.AbortError):
        await serving
    assert (context.written, events) == (1, [END])


async def test_a_stream_that_its_follower_reads_slowly_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is slow: the messages that were taken together need more than the time without any progress."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(stream_transport, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    streams = FollowerStreams(lambda event: None, OwnEpoch(BrokerEpoch(5)))
    context = Context(HELLO)
    serving = asyncio.create_task(streams.Replicate(None, context))
    await context.greeted.wait()
    monkeypatch.setattr(streams._streams[BrokerId(1)].codec, "encode", lambda message: [b""] * 4)
    streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
    for _ in range(3):
        await context.unread.wait()
        context.unread.clear()
        for _ in range(stream_transport._UNREAD_MAX):
            streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
        assert streams.count == 1
        clock.now_s += 0.6 * stream_transport._UNREAD_S
        context.goes_on.set()
    await context.unread.wait()
    clock.now_s += stream_transport._UNREAD_S
    streams.send(SendToFollower(BrokerId(1), LeaderMessage()))
    assert streams.count == 0
    serving.cancel()
    await asyncio.wait({serving})


def test_the_high_watermarks_of_the_ticks_show_within_the_time_that_a_stream_is_not_read() -> None:
    assert stream_transport._UNREAD_MAX < 10 * stream_transport._UNREAD_S
