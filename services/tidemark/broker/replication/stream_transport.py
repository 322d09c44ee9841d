# SPDX-License-Identifier: Apache-2.0
"""The replication streams (rule R6): outgoing ones to leaders, incoming ones from followers.

Messages wait in an outbox while an earlier message is written; waiting messages are merged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar, cast

import grpc

from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.core.messages import Credit, FollowerMessage, LeaderMessage
from tidemark.core.replication.effects import (
    ConnectToLeader,
    DisconnectFollower,
    DisconnectFromLeader,
    SendToFollower,
    SendToLeader,
)
from tidemark.core.replication.events import (
    Event,
    FollowerDisconnected,
    FollowerMessageArrived,
    LeaderConnected,
    LeaderDisconnected,
    LeaderMessageArrived,
)
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, TidemarkError, TopicPartition, host_port, invalid_request
from tidemark.rpc.channel import open_channel
from tidemark.rpc.codecs.replica import FollowerEnd, LeaderEnd
from tidemark.rpc.errors import abort_with, from_rpc_error
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.rpc.security.callers import check_id
from tidemark.runtime.clock import timeout
from tidemark.v1 import replica_service_pb2 as pb
from tidemark.v1.replica_service_pb2_grpc import ReplicaServiceServicer, ReplicaServiceStub

_log = logging.getLogger(__name__)

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_CONNECT_S: Final = 3.0
_LAST_MESSAGES_S: Final = 1.0
"""Time for a leader to read the last messages before the follower cancels the stream."""
_UNREAD_MAX: Final = 500
_UNREAD_S: Final = 60.0
"""A follower that reads nothing for so long, while so many messages wait, gets no more on this stream. While only its
event loop hangs, gRPC answers pings, and ten messages of ticks per second would fill the memory of the leader."""

PART_MAX: Final = 200
"""Partitions that begin or end in one message; the leader handles them in 5 ms."""

Submit = Callable[[Event], None]
M = TypeVar("M", FollowerMessage, LeaderMessage)
_Thing = TypeVar("_Thing")


class _Outbox(Generic[M]):
    """Messages for one writer. After `end`, the queued messages are still written."""

    def __init__(self, merge: Callable[[list[M]], list[M]]) -> None:
        self._merge: Callable[[list[M]], list[M]] = merge
        self._waiting: deque[M] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._since_s = 0.0

    @property
    def is_unread(self) -> bool:
        return len(self._waiting) >= _UNREAD_MAX and time.monotonic() - self._since_s >= _UNREAD_S

    def put(self, message: M) -> None:
        if not self._waiting:
            self._since_s = time.monotonic()
        self._waiting.append(message)
        self._changed.set()

    def written(self) -> None:
        """Note that a part of a message was written: a slow reader continues."""
        self._since_s = time.monotonic()

    def drop(self) -> None:
        self._waiting.clear()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def messages(self) -> AsyncIterator[M]:
        """The queued messages, merged into as few as possible, until the end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            some = list(self._waiting)
            self._waiting.clear()
            for message in some if len(some) == 1 else self._merge(some):
                yield message
            if self._ended and not self._waiting:
                return


def _merge_leader_messages(messages: list[LeaderMessage]) -> list[LeaderMessage]:
    """Merge messages; messages of one partition keep their order. The handler takes epoch ends, chunks, refusals."""
    if messages and all(_is_plain(message) for message in messages):
        return [_one_of_leader(messages)]
    return [_one_of_leader(run) for run in _runs(messages, _is_plain, _named_by_leader, _answers)]


def _merge_follower_messages(messages: list[FollowerMessage]) -> list[FollowerMessage]:
    """Merge messages; messages of one partition keep their order. The handler takes stops, queries, positions,
    reports."""
    return [_one_of_follower(run) for run in _runs(messages, _is_report, _named_by_follower, lambda message: 0)]


def _runs(
    messages: list[M],
    is_plain: Callable[[M], bool],
    named_by: Callable[[M], set[TopicPartition]],
    begins: Callable[[M], int],
) -> list[list[M]]:
    """Divide messages into runs, each of which can be one message.

    Args:
        messages: messages in order.
        is_plain: whether a message can be merged with another plain message of the same partitions.
        named_by: the partitions of a message; messages of different partitions can be merged.
        begins: the size of a message, at most `PART_MAX` of a run.
    """
    runs: list[list[M]] = []
    named: set[TopicPartition] = set()
    plain, size = True, 0
    for message in messages:
        own, is_plain_too, own_size = named_by(message), is_plain(message), begins(message)
        fits = (plain and is_plain_too) or named.isdisjoint(own)
        if runs and fits and size + own_size <= PART_MAX:
            runs[-1].append(message)
            named |= own
            plain, size = plain and is_plain_too, size + own_size
        else:
            runs.append([message])
            named, plain, size = own, is_plain_too, own_size
    return runs


def _is_plain(message: LeaderMessage) -> bool:
    return not message.epoch_ends and not message.refusals


def _answers(message: LeaderMessage) -> int:
    return len(message.epoch_ends) + len(message.refusals)


def _named_by_leader(message: LeaderMessage) -> set[TopicPartition]:
    return {one.partition for ones in (message.epoch_ends, message.chunks, message.refusals) for one in ones}


def _one_of_leader(run: list[LeaderMessage]) -> LeaderMessage:
    if len(run) == 1:
        return run[0]
    return LeaderMessage(
        tuple(end for message in run for end in message.epoch_ends),
        tuple(chunk for message in run for chunk in message.chunks),
        tuple(refusal for message in run for refusal in message.refusals),
        max(message.clock_ms for message in run),
    )


def _is_report(message: FollowerMessage) -> bool:
    return not message.queries and not message.positions and not message.stops


def _named_by_follower(message: FollowerMessage) -> set[TopicPartition]:
    named = (message.stops, message.queries, message.positions, message.reports)
    return {one.partition for ones in named for one in ones}


def _one_of_follower(run: list[FollowerMessage]) -> FollowerMessage:
    """The latest report of each partition, and the sum of the credit of each directory."""
    if len(run) == 1:
        return run[0]
    credit: dict[int, int] = {}
    for message in run:
        for one in message.credits:
            credit[one.directory] = credit.get(one.directory, 0) + one.credit_bytes
    return FollowerMessage(
        tuple(query for message in run for query in message.queries),
        tuple(position for message in run for position in message.positions),
        tuple({report.partition: report for message in run for report in message.reports}.values()),
        tuple(stop for message in run for stop in message.stops),
        tuple(Credit(*item) for item in credit.items()),
        max(message.echo_ms for message in run),
    )


class LeaderStreams:
    """One outgoing stream for each leader that this broker follows; its hello carries `epoch`."""

    def __init__(self, broker_id: BrokerId, cluster_id: str, submit: Submit, epoch: OwnEpoch) -> None:
        self._cluster_id = cluster_id
        self._epoch = epoch
        self._broker_id = broker_id
        self._submit = submit
        self._streams: dict[BrokerId, _LeaderStream] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def connect(self, effect: ConnectToLeader) -> None:
        """Open a stream to the leader, in place of an existing one. The stream reconnects until `disconnect`."""
        self._end(effect.leader)
        hello = pb.ReplicateHello(
            broker_id=self._broker_id, broker_epoch=self._epoch.value, leader_broker_epoch=effect.broker_epoch
        )
        self._streams[effect.leader] = _LeaderStream(
            effect.leader,
            host_port(effect.host, effect.port),
            receiver_headers(self._cluster_id, effect.leader),
            pb.ReplicateRequest(hello=hello),
            self._submit,
        )

    def disconnect(self, effect: DisconnectFromLeader) -> None:
        """Close a stream after its queued messages are written (rule F3)."""
        self._end(effect.leader)

    def send(self, effect: SendToLeader) -> None:
        """Queue a message; dropped while the stream is down."""
        stream = self._streams.get(effect.leader)
        if stream is not None:
            stream.send(effect.message)

    async def stop(self) -> None:
        """End all streams."""
        for leader in list(self._streams):
            self._end(leader)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, leader: BrokerId) -> None:
        stream = self._streams.pop(leader, None)
        if stream is not None:
            task = asyncio.create_task(stream.end(), name=f"end of the stream to leader {leader}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


class _LeaderStream:
    """Reconnect with back-off until the link ends."""

    def __init__(
        self, leader: BrokerId, address: str, headers: Headers, hello: pb.ReplicateRequest, submit: Submit
    ) -> None:
        self._leader = leader
        self._address = address
        self._headers = headers
        self._hello = hello
        self._submit = submit
        self._outbox: _Outbox[FollowerMessage] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._unreachable = ""
        """The logged cause of the failed connections since the last stream."""
        self._ended = False
        self._task = asyncio.create_task(self._run(), name=f"stream to leader {leader}")

    def send(self, message: FollowerMessage) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    async def end(self) -> None:
        """Submit no more events; queued messages are still written if the leader reads them in time."""
        self._ended = True
        if self._outbox is not None and self._writer is not None:
            self._outbox.end()
            await asyncio.wait({self._task}, timeout=_LAST_MESSAGES_S)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        backoff_s = _BACKOFF_FIRST_S
        async with open_channel(self._address) as channel:
            while not self._ended:
                was_up = False
                try:
                    was_up = await self._one_stream(channel)
                except Exception:  # noqa: BLE001 - nothing else would ever connect this stream again
                    _log.exception("stream to leader ended by an unexpected error", extra={"leader": self._leader})
                backoff_s = _BACKOFF_FIRST_S if was_up else min(backoff_s * 2, _BACKOFF_MAX_S)
                await asyncio.sleep(backoff_s)

    async def _one_stream(self, channel: grpc.aio.Channel) -> bool:
        """One stream from hello to end; returns whether it was established."""
        stub: Any = ReplicaServiceStub(channel)
        call = stub.Replicate(metadata=self._headers)
        up = False
        why: TidemarkError | None = None
        try:
            async with timeout(_CONNECT_S):
                await call.write(self._hello)
                await call.initial_metadata()
            if not call.done():
                codec = FollowerEnd()
                self._outbox = _Outbox(_merge_follower_messages)
                self._writer = asyncio.create_task(_write_all(call, codec, self._outbox))
                up = True
                self._submit_event(LeaderConnected(self._leader))
                while (response := await call.read()) is not grpc.aio.EOF:
                    self._submit_event(LeaderMessageArrived(self._leader, codec.decode(response)))
            if await call.code() is not grpc.StatusCode.OK:
                why = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, await call.details())
        except grpc.RpcError as error:
            why = from_rpc_error(error, address=self._address)
        except asyncio.InvalidStateError:
            why = _ended_while_written_to()
        except asyncio.CancelledError:
            if cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise
            why = _ended_while_written_to()  # gRPC raises this error in a reader whose call the writer cancels
        except TimeoutError:
            why = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the leader does not answer")
        except TidemarkError as error:
            why = error
        finally:
            self._outbox = None
            if self._writer is not None:
                self._writer.cancel()
            call.cancel()
            if up:
                self._submit_event(LeaderDisconnected(self._leader))
        self._log_end(str(why or "the leader left"), up=up)
        return up

    def _log_end(self, why: str, *, up: bool) -> None:
        """Log the end of each stream, and each new cause of failed connections once."""
        is_news = up or why != self._unreachable
        self._unreachable = "" if up else why
        message = "stream to leader ended" if up else "leader cannot be reached"
        _log.log(logging.INFO if is_news else logging.DEBUG, message, extra={"leader": self._leader, "why": why})

    def _submit_event(self, event: Event) -> None:
        if not self._ended:
            self._submit(event)


def _ended_while_written_to() -> TidemarkError:
    return TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the stream ended during a write")


async def _write_all(call: Any, codec: FollowerEnd, outbox: _Outbox[FollowerMessage]) -> None:
    """Write the queued messages; an error also ends the reader, which reports it."""
    try:
        async for message in outbox.messages():
            for part in in_parts(message):
                await call.write(codec.encode(part))
        await call.done_writing()
    except (grpc.RpcError, asyncio.InvalidStateError):
        call.cancel()
    except Exception:  # noqa: BLE001 - the reader would wait without end
        _log.exception("a message to a leader could not be written")
        call.cancel()


def in_parts(message: FollowerMessage) -> Iterable[FollowerMessage]:
    """Split a message that begins thousands of partitions, in the order in which the leader handles its parts.

    The message is split so that neither event loop is busy for long. Reports and credits of running partitions stay
    together (rule R7).
    """
    is_small = len(message.stops) + len(message.queries) + len(message.positions) <= PART_MAX
    return (message,) if is_small else _parts_of(message)


def _parts_of(message: FollowerMessage) -> Iterator[FollowerMessage]:
    for stops in _slices(message.stops):
        yield FollowerMessage(stops=stops, echo_ms=message.echo_ms)
    for queries in _slices(message.queries):
        yield FollowerMessage(queries=queries, echo_ms=message.echo_ms)
    for positions in _slices(message.positions):
        yield FollowerMessage(positions=positions, echo_ms=message.echo_ms)
    if message.credits or message.reports:
        yield FollowerMessage(credits=message.credits, reports=message.reports, echo_ms=message.echo_ms)


def _slices(things: tuple[_Thing, ...]) -> Iterator[tuple[_Thing, ...]]:
    for start in range(0, len(things), PART_MAX):
        yield things[start : start + PART_MAX]


class FollowerStreams(ReplicaServiceServicer):
    """Serves Replicate: one incoming stream for each follower; a newer stream of a follower ends the older one.

    A follower whose hello names another epoch of this broker than `epoch` is refused; it then asks for the leader
    again.
    """

    def __init__(self, submit: Submit, epoch: OwnEpoch) -> None:
        self._epoch = epoch
        self._submit = submit
        self._streams: dict[BrokerId, _FollowerStream] = {}

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def send(self, effect: SendToFollower) -> None:
        """Queue a message; dropped when the stream is down."""
        stream = self._streams.get(effect.follower)
        if stream is None:
            return
        stream.outbox.put(effect.message)
        if stream.outbox.is_unread:
            _log.warning("a follower does not read its stream", extra={"follower": stream.follower})
            del self._streams[stream.follower]
            stream.outbox.drop()
            stream.end(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the follower does not read its stream"))
            self._submit(FollowerDisconnected(stream.follower, stream.broker_epoch))

    def disconnect(self, effect: DisconnectFollower) -> None:
        """End a stream with the error of the effect."""
        stream = self._streams.pop(effect.follower, None)
        if stream is not None:
            stream.end(effect.error)

    def stop(self) -> None:
        """End all streams: the broker stops."""
        for stream in self._streams.values():
            stream.end(TidemarkError(ErrorCode.SHUTTING_DOWN, "the leader is shutting down"))

    async def Replicate(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one follower's stream, from its hello on."""
        stream = await self._welcome(context)
        reader = asyncio.create_task(self._read(stream, context), name=f"stream from follower {stream.follower}")
        try:
            await context.send_initial_metadata(())
            async for message in stream.outbox.messages():
                for response in stream.codec.encode(message):
                    await context.write(response)
                    stream.outbox.written()
        finally:
            reader.cancel()
            if self._streams.get(stream.follower) is stream:
                del self._streams[stream.follower]
                self._submit(FollowerDisconnected(stream.follower, stream.broker_epoch))
        if stream.error is not None:
            await abort_with(context, stream.error)

    async def _welcome(self, context: Any) -> _FollowerStream:
        first = await context.read()
        if first is grpc.aio.EOF or not first.HasField("hello"):
            await abort_with(context, invalid_request("the first message must be a hello"))
        hello = first.hello
        try:
            check_id(context, hello.broker_id)
        except TidemarkError as error:
            await abort_with(context, error)
        if hello.leader_broker_epoch != self._epoch.value:
            sentence = f"this broker's epoch is {self._epoch.value}, not {hello.leader_broker_epoch}"
            await abort_with(context, TidemarkError(ErrorCode.STALE_BROKER_EPOCH, sentence))
        follower, broker_epoch = BrokerId(hello.broker_id), BrokerEpoch(hello.broker_epoch)
        old = self._streams.get(follower)
        if old is not None:
            if old.broker_epoch > broker_epoch:
                sentence = f"broker {follower} has a stream under broker epoch {old.broker_epoch}"
                await abort_with(context, TidemarkError(ErrorCode.STALE_BROKER_EPOCH, sentence))
            old.end(TidemarkError(ErrorCode.STALE_BROKER_EPOCH, "replaced by a newer stream of this follower"))
            # The core's state of the old stream (handles, credit, positions) is not valid on the new one.
            self._submit(FollowerDisconnected(follower, old.broker_epoch))
        stream = self._streams[follower] = _FollowerStream(follower, broker_epoch)
        return stream

    async def _read(self, stream: _FollowerStream, context: Any) -> None:
        try:
            while (request := await context.read()) is not grpc.aio.EOF:
                if self._streams.get(stream.follower) is not stream:
                    return
                message = stream.codec.decode(request)
                self._submit(FollowerMessageArrived(stream.follower, stream.broker_epoch, message))
            stream.end(None)
        except TidemarkError as error:
            stream.end(error)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            stream.end(TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"the stream broke: {error}"))
        except Exception as error:  # noqa: BLE001 - without a reader, the follower would wait without end
            _log.exception("stream from follower ended by an unexpected error", extra={"follower": stream.follower})
            stream.end(TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))


class _FollowerStream:
    """The leader's end. `error`: the cause of its end; None before, and when the follower left."""

    def __init__(self, follower: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.follower = follower
        self.broker_epoch = broker_epoch
        self.codec = LeaderEnd()
        self.outbox: _Outbox[LeaderMessage] = _Outbox(_merge_leader_messages)
        self.error: TidemarkError | None = None

    def end(self, error: TidemarkError | None) -> None:
        self.error = error
        self.outbox.end()
