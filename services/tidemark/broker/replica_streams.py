"""The streams between followers and leaders (rule R6): outgoing ones to leaders, incoming ones from followers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc

from tidemark.core.effects import (
    ConnectToLeader,
    DisconnectFollower,
    DisconnectFromLeader,
    SendToFollower,
    SendToLeader,
)
from tidemark.core.events import (
    Event,
    FollowerGone,
    FollowerMessageArrived,
    LeaderConnected,
    LeaderGone,
    LeaderMessageArrived,
)
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, TidemarkError
from tidemark.rpc.channel import open_channel
from tidemark.rpc.replica_codec import FollowerEnd, LeaderEnd
from tidemark.v1 import replica_service_pb2 as pb
from tidemark.v1.replica_service_pb2_grpc import ReplicaServiceServicer, ReplicaServiceStub

_log = logging.getLogger(__name__)

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_CONNECT_S: Final = 3.0

Submit = Callable[[Event], None]


class LeaderStreams:
    """One outgoing stream for each leader that this broker follows."""

    def __init__(self, broker_id: BrokerId, submit: Submit) -> None:
        self._broker_id = broker_id
        self._submit = submit
        self._streams: dict[BrokerId, _LeaderStream] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.broker_epoch = BrokerEpoch(-1)

    def connect(self, effect: ConnectToLeader) -> None:
        """Keep a stream up; a changed address or broker epoch replaces the one there is."""
        self._end(effect.leader)
        stream = _LeaderStream(self._broker_id, self.broker_epoch, effect, self._submit)
        self._streams[effect.leader] = stream
        stream.start()

    def disconnect(self, effect: DisconnectFromLeader) -> None:
        """Let a stream go."""
        self._end(effect.leader)

    def send(self, effect: SendToLeader) -> None:
        """Queue a message; dropped while the stream is down."""
        stream = self._streams.get(effect.leader)
        if stream is not None:
            stream.send(effect)

    async def stop(self) -> None:
        """End all streams."""
        for leader in list(self._streams):
            self._end(leader)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, leader: BrokerId) -> None:
        stream = self._streams.pop(leader, None)
        if stream is not None:
            task = stream.end()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


class _LeaderStream:
    def __init__(self, broker_id: BrokerId, broker_epoch: BrokerEpoch, effect: ConnectToLeader, submit: Submit) -> None:
        self._hello = pb.ReplicateRequest(
            hello=pb.ReplicateHello(
                broker_id=broker_id, broker_epoch=broker_epoch, leader_broker_epoch=effect.broker_epoch
            )
        )
        self._leader = effect.leader
        self._address = f"{effect.host}:{effect.port}"
        self._submit = submit
        self._outbox: asyncio.Queue[pb.ReplicateRequest] | None = None
        self._codec = FollowerEnd()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"to leader {self._leader}")

    def end(self) -> asyncio.Task[None]:
        """Nothing is submitted any more from here on."""
        assert self._task is not None
        self._ended = True
        self._task.cancel()
        return self._task

    def send(self, effect: SendToLeader) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(self._codec.encode(effect.message))

    async def _run(self) -> None:
        backoff_s = _BACKOFF_FIRST_S
        async with open_channel(self._address) as channel:
            while True:
                was_up = await self._one_stream(channel)
                backoff_s = _BACKOFF_FIRST_S if was_up else min(backoff_s * 2, _BACKOFF_MAX_S)
                await asyncio.sleep(backoff_s)

    async def _one_stream(self, channel: grpc.aio.Channel) -> bool:
        """From hello to the end of the stream; whether it was ever up."""
        stub: Any = ReplicaServiceStub(channel)
        call = stub.Replicate()
        writer: asyncio.Task[None] | None = None
        up = False
        try:
            async with asyncio.timeout(_CONNECT_S):
                await call.write(self._hello)
                await call.initial_metadata()
                if call.done():
                    raise asyncio.InvalidStateError
            up = True
            self._codec = FollowerEnd()
            self._outbox = asyncio.Queue()
            writer = asyncio.create_task(_write_all(call, self._outbox))
            self._tell(LeaderConnected(self._leader))
            while (response := await call.read()) is not grpc.aio.EOF:
                self._tell(LeaderMessageArrived(self._leader, self._codec.decode(response)))
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError) as error:
            _log.info("stream to leader ended", extra={"leader": self._leader, "address": self._address,
                                                       "why": _why(error)})  # fmt: skip
        finally:
            self._outbox = None
            if writer is not None:
                writer.cancel()
            call.cancel()
            if up:
                self._tell(LeaderGone(self._leader))
        return up

    def _tell(self, event: Event) -> None:
        if not self._ended:
            self._submit(event)


async def _write_all(call: Any, outbox: asyncio.Queue[Any]) -> None:
    """Write what is queued; an error ends the reader too, which tells."""
    try:
        while True:
            await call.write(await outbox.get())
    except (grpc.RpcError, asyncio.InvalidStateError):
        call.cancel()


def _why(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return type(error).__name__


class FollowerStreams(ReplicaServiceServicer):
    """Serves Replicate: one incoming stream for each follower; a new one of the same follower ends the old."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._streams: dict[BrokerId, _FollowerStream] = {}
        self.broker_epoch = BrokerEpoch(-1)

    def send(self, effect: SendToFollower) -> None:
        """Queue a message; dropped when the stream is down."""
        stream = self._streams.get(effect.follower)
        if stream is not None:
            for response in stream.codec.encode(effect.message):
                stream.outbox.put_nowait(response)

    def disconnect(self, effect: DisconnectFollower) -> None:
        """End a stream and say why."""
        stream = self._streams.get(effect.follower)
        if stream is not None:
            stream.outbox.put_nowait(effect.error)

    async def Replicate(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One follower's stream, from its hello on."""
        first = await context.read()
        if first is grpc.aio.EOF or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a hello")
        hello = first.hello
        if hello.leader_broker_epoch != self.broker_epoch:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{ErrorCode.STALE_BROKER_EPOCH}: this broker's epoch is {self.broker_epoch}, "
                f"not {hello.leader_broker_epoch}",
            )
        follower = BrokerId(hello.broker_id)
        old = self._streams.get(follower)
        if old is not None:
            old.outbox.put_nowait(TidemarkError(ErrorCode.STALE_BROKER_EPOCH, "a newer stream of this follower came"))
        stream = _FollowerStream(follower, BrokerEpoch(hello.broker_epoch))
        self._streams[follower] = stream
        await context.send_initial_metadata(())
        reader = asyncio.create_task(self._read(stream, context), name=f"from follower {follower}")
        try:
            while (response := await stream.outbox.get()) is not None:
                if isinstance(response, TidemarkError):
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(response))
                await context.write(response)
        finally:
            reader.cancel()
            if self._streams.get(follower) is stream:
                del self._streams[follower]
                self._submit(FollowerGone(follower, stream.broker_epoch))

    async def _read(self, stream: _FollowerStream, context: Any) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                if self._streams.get(stream.follower) is not stream:
                    return
                message = stream.codec.decode(request)
                self._submit(FollowerMessageArrived(stream.follower, stream.broker_epoch, message))
        except grpc.RpcError as error:
            _log.info("stream from follower ended", extra={"follower": stream.follower, "why": _why(error)})
        except KeyError:
            _log.error("a follower used a handle it never named", extra={"follower": stream.follower})
        finally:
            stream.outbox.put_nowait(None)


class _FollowerStream:
    def __init__(self, follower: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.codec = LeaderEnd()
        self.outbox: asyncio.Queue[pb.ReplicateResponse | TidemarkError | None] = asyncio.Queue()
