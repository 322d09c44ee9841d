# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""BrokerControlService: the controller's commands to this broker (rules C1, C5, F4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import grpc

from tidemark.broker.logs.log_dir_moves import DirMoves
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.broker.replication.control_epochs import ControlEpochs
from tidemark.core.cluster_view import TopicView
from tidemark.core.messages import LeaderAndIsrCommand, ReplicaDescription, ReplicaQuestion
from tidemark.core.replication.effects import ReplyToControl
from tidemark.core.replication.events import Event, LeaderAndIsrArrived, StopReplicaArrived
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    ControllerEpoch,
    ErrorCode,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.codecs.control import (
    HELD,
    descriptions_to_proto,
    held_to_proto,
    leader_and_isr_slices_from_proto,
    questions_from_proto,
    refusals_to_proto,
    stop_replica_from_proto,
)
from tidemark.rpc.codecs.metadata import view_from_proto
from tidemark.rpc.errors import abort_with
from tidemark.rpc.security.callers import check_id
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceServicer

SLICE_PARTITIONS: Final = 50
"""Partitions of a command that are processed before the event loop gets control back: 2 ms."""
_STREAM_ENDS: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""Errors of a write to a disconnected peer, or on a stream that has ended; they depend on the moment of the end."""

_log = logging.getLogger(__name__)


class _HeartbeatStream(NamedTuple):
    """A heartbeat stream of a controller; the lock admits one write at a time."""

    task: asyncio.Task[Any]
    context: Any
    writing: asyncio.Lock


class BrokerControl(BrokerControlServiceServicer):
    """Checks the epochs of commands, passes commands to the core, and waits for the core's answers.

    Attributes:
        wants_shutdown: sent with each heartbeat once a controlled shutdown has begun.

    Args:
        epoch: this broker's epoch; an unregistered broker refuses every command.
        directories: assigns replicas to the log directories that commands name.
        on_disk: the replicas in the log directories, open or not.
        offline_directories: ids of the offline directories.
        on_ping: receives each heartbeat, with the controller's permission to shut down.
    """

    def __init__(
        self,
        driver: BrokerDriver,
        topics: TopicTable,
        metadata: MetadataCache,
        epoch: OwnEpoch,
        directories: DirMoves,
        on_disk: Callable[[], Mapping[TopicPartition, ReplicaIdentity]],
        offline_directories: Callable[[], tuple[str, ...]],
        on_ping: Callable[[bool], None],
    ) -> None:
        self.wants_shutdown = False
        self._epoch = epoch
        self._directories = directories
        self._on_disk = on_disk
        self._driver = driver
        self._topics = topics
        self._metadata = metadata
        self._offline_directories = offline_directories
        self._on_ping = on_ping
        self._epochs = ControlEpochs(epoch)
        self._waiting: dict[int, asyncio.Future[ReplyToControl]] = {}
        self._next_id = 0
        self._heartbeats: set[_HeartbeatStream] = set()
        self._stopping = False

    def stop(self) -> None:
        """End the heartbeat streams; the server's stop would wait for them."""
        self._stopping = True
        for stream in self._heartbeats:
            stream.task.cancel()

    async def want_shutdown(self) -> None:
        """Send the request immediately on every heartbeat stream, and with each later answer."""
        self.wants_shutdown = True
        for stream in tuple(self._heartbeats):
            try:
                await self._answer(stream, 0)
            except _STREAM_ENDS as error:  # that controller has closed the stream
                _log.debug("a heartbeat stream ends", extra={"why": type(error).__name__})

    def reply(self, effect: ReplyToControl) -> None:
        """Answer the waiting call of the controller; an answer to an ended call is dropped."""
        waiting = self._waiting.pop(effect.request_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(effect)

    async def LeaderAndIsr(self, request: pb.LeaderAndIsrRequest, context: Any) -> pb.LeaderAndIsrResponse:
        """Handle leaders and followers, a slice of the partitions at a time, so that the event loop stays free.

        A newer command between two slices supersedes the remaining ones, as it supersedes a whole command.
        """
        self._check(request.header, context, request.sequence)
        replies: list[asyncio.Future[ReplyToControl]] = []
        elsewhere: list[tuple[TopicPartition, TidemarkError]] = []
        placed: list[TopicPartition] = []
        for command in leader_and_isr_slices_from_proto(request, SLICE_PARTITIONS):
            if replies:
                await asyncio.sleep(0)
            else:
                self._topics.update(command.topic_configs)
                topic_ids = {topic.topic: topic.topic_id for topic in request.topics}
                self._topics.update_schemas(topic_ids, command.schemas)
            elsewhere += self._want_directories(command)
            placed += [one.partition for one in command.partitions if one.log_dir]
            replies.append(self._submit(partial(LeaderAndIsrArrived, command=command)))
        refused = [one for reply in await asyncio.gather(*replies) for one in _accepted(reply).refused]
        named = {partition for partition, _ in refused}
        unplaced = [one for one in elsewhere if one[0] not in named]
        named.update(partition for partition, _ in unplaced)
        unplaced += await self._directories.without_copy([one for one in placed if one not in named])
        return pb.LeaderAndIsrResponse(errors=refusals_to_proto([*refused, *unplaced]))

    def _want_directories(self, command: LeaderAndIsrCommand) -> list[tuple[TopicPartition, TidemarkError]]:
        """Record wanted directories before the core opens or creates replicas (rule M3); returns the refused ones. The
        core still gets these replicas."""
        elsewhere = []
        for one in command.partitions:
            if one.log_dir:
                try:
                    self._directories.want(one.partition, one.log_dir, one.identity)
                except TidemarkError as error:
                    elsewhere.append((one.partition, error))
        return elsewhere

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Any) -> pb.StopReplicaResponse:
        """Close the named replicas, and delete those that the command marks for deletion."""
        self._check(request.header, context, request.sequence)
        command = stop_replica_from_proto(request)
        reply = _accepted(await self._submit(lambda request_id: StopReplicaArrived(request_id, command)))
        return pb.StopReplicaResponse(errors=refusals_to_proto(reply.refused))

    async def DescribeReplicas(self, request: pb.DescribeReplicasRequest, context: Any) -> pb.DescribeReplicasResponse:
        """Describe replicas of leaderless partitions; in no epoch, report their existence and last state."""
        self._check(request.header, context)
        questions = tuple(questions_from_proto(request.replicas))
        on_disk: Mapping[TopicPartition, ReplicaIdentity] | None = None
        described: dict[TopicPartition, ReplicaDescription] = {}
        refused: list[tuple[TopicPartition, TidemarkError]] = []
        for question in questions:
            try:
                described[question.partition] = self._driver.core.queries.describe(question)
            except TidemarkError as error:
                if question.leader_epoch == NO_EPOCH:
                    on_disk = self._on_disk() if on_disk is None else on_disk
                    error = _whether_held(error, question, on_disk)
                refused.append((question.partition, error))
        return pb.DescribeReplicasResponse(
            replicas=descriptions_to_proto(described),
            errors=refusals_to_proto(refused),
            held=held_to_proto(self._driver.core.queries.held(questions)),
        )

    async def UpdateMetadata(self, request: pb.UpdateMetadataRequest, context: Any) -> pb.UpdateMetadataResponse:
        """Update the cluster metadata for clients."""
        self._check(request.header, context)
        before = self._metadata.view.topics
        self._metadata.update(view_from_proto(request.metadata))
        self._forget_topics(before)
        return pb.UpdateMetadataResponse()

    def _forget_topics(self, before: Mapping[str, TopicView]) -> None:
        """Forget settings and schemas of topics that this update has deleted. With the same update the controller
        forgets the versions that this broker knows. For a recreated topic the controller sends all versions again.
        """
        after = self._metadata.view.topics
        if after is before:
            return
        gone = {topic: before[topic].topic_id for topic in set(before).difference(after)}
        for topic, topic_id in self._topics.typed_topics():
            known, now = before.get(topic), after.get(topic)
            if known is not None and now is not None and known.topic_id == topic_id != now.topic_id:
                gone[topic] = topic_id
        if gone:
            here = {one.topic for one in self._driver.core.queries.partitions()}
            self._topics.forget({topic: topic_id for topic, topic_id in gone.items() if topic not in here})

    async def Heartbeat(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Answer each heartbeat; the controller compares the broker epoch of the answer."""
        task = asyncio.current_task()
        assert task is not None, "handlers are tasks"
        stream = _HeartbeatStream(task, context, asyncio.Lock())
        self._heartbeats.add(stream)
        try:
            while (ping := await context.read()) is not grpc.aio.EOF:
                try:
                    check_id(context, ping.header.controller_id)
                    self._epochs.check_controller(ControllerEpoch(ping.header.controller_epoch))
                    epoch = ControllerEpoch(ping.header.controller_epoch)
                    self._metadata.pinged(epoch, interval_ms=ping.interval_ms)
                except TidemarkError as error:
                    await abort_with(context, error)
                self._on_ping(ping.may_shut_down and ping.header.broker_epoch == self._epoch.value)
                await self._answer(stream, ping.sequence)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()  # a stream that ends without a status would delay the server's stop
        finally:
            self._heartbeats.discard(stream)

    async def _answer(self, stream: _HeartbeatStream, sequence: int) -> None:
        response = pb.HeartbeatResponse(
            sequence=sequence,
            broker_epoch=self._epoch.value,
            offline_directories=self._offline_directories(),
            wants_shutdown=self.wants_shutdown,
        )
        async with stream.writing:
            await stream.context.write(response)

    def _submit(self, event: Callable[[int], Event]) -> asyncio.Future[ReplyToControl]:
        """Pass an event to the core; the future completes with the answer."""
        self._next_id = request_id = self._next_id + 1
        waiting: asyncio.Future[ReplyToControl] = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        self._waiting[request_id] = waiting
        self._driver.submit(event(request_id))
        return waiting

    def _check(self, header: pb.ControlHeader, context: Any, sequence: int = 0) -> None:
        check_id(context, header.controller_id)
        self._epochs.check(ControllerEpoch(header.controller_epoch), BrokerEpoch(header.broker_epoch), sequence)


def _whether_held(
    error: TidemarkError, question: ReplicaQuestion, on_disk: Mapping[TopicPartition, ReplicaIdentity]
) -> TidemarkError:
    """The refusal to describe a replica; `HELD` if this broker has its log."""
    if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE:
        return error
    if on_disk.get(question.partition) == question.identity:
        return TidemarkError(error.code, f"{question.partition} is here, and was in no command yet", {HELD: "true"})
    return TidemarkError(ErrorCode.NOT_A_REPLICA, f"{question.partition}: this broker has no replica of it")


def _accepted(reply: ReplyToControl) -> ReplyToControl:
    if reply.error is not None:
        raise reply.error
    return reply
