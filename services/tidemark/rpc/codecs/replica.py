# SPDX-License-Identifier: Apache-2.0
"""FollowerMessage and LeaderMessage <-> replica_service.proto; one codec object for each end of a stream.

A partition is named in full once, and then by a handle, a small number, until its fetch stops. Then the handle is
released, and never reused on that stream. The follower's end checks lengths, CRCs and header of every batch before the
core gets the chunk; a bad batch makes the chunk's `error`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from tidemark.core.messages import (
    Chunk,
    Credit,
    EpochEnd,
    EpochQuery,
    FetchPosition,
    FollowerMessage,
    LeaderMessage,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.model import (
    NO_EPOCH,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    invalid_request,
)
from tidemark.record.checks import check_replicated
from tidemark.record.envelope import Batch
from tidemark.rpc import errors
from tidemark.rpc.channel import SPLIT_BYTES
from tidemark.rpc.codecs import wire
from tidemark.v1 import record_pb2
from tidemark.v1 import replica_service_pb2 as pb

_log = logging.getLogger(__name__)

RELEASED_MAX: Final = 32_768
"""Largest number of released handles that are still known. Messages in flight may name them, even when a leader of tens
of thousands of partitions is replaced. A follower of an earlier version reuses its handles."""
HANDLES_MAX: Final = 200_000
"""Largest number of handles of one stream, far above the number of partitions of a broker."""

_CHUNKS: Final = pb.ReplicateResponse.CHUNKS_FIELD_NUMBER
_BATCHES: Final = pb.ReplicaChunk.BATCHES_FIELD_NUMBER


class FollowerEnd:
    """The follower's end of a stream: encodes its messages, decodes the leader's."""

    def __init__(self) -> None:
        self._handles: dict[TopicPartition, tuple[int, ReplicaIdentity]] = {}
        self._partitions: dict[int, TopicPartition] = {}
        self._next_handle = 0
        self._released: deque[int] = deque()

    @property
    def handles(self) -> int:
        """Number of partitions with a handle."""
        return len(self._partitions)

    def encode(self, message: FollowerMessage) -> pb.ReplicateRequest:
        """The request of a message. Stops come first: a partition that begins again in the same message gets another
        handle.
        """
        stops = [
            pb.ReplicaStop(handle=self._release(stop.partition), newer_leader_epoch=stop.newer_leader_epoch)
            for stop in message.stops
            if stop.partition in self._handles
        ]
        request = pb.ReplicateRequest(stops=stops, echo_ms=message.echo_ms)
        for credit in message.credits:
            request.credits.add(directory=credit.directory, credit_bytes=credit.credit_bytes)
        # Thousands of partitions begin at the same time. A message made separately would be copied into the request.
        for query in message.queries:
            added = request.epoch_queries.add(
                current_leader_epoch=query.current_leader_epoch, last_epoch=query.last_epoch
            )
            self._name(query.partition, query.identity, added.replica)
        for position in message.positions:
            begun = request.positions.add(
                current_leader_epoch=position.current_leader_epoch,
                fetch_offset=position.fetch_offset,
                last_epoch=position.last_epoch,
                directory=position.directory,
                flushed_offset=position.flushed_offset,
                log_start_offset=position.log_start_offset,
            )
            self._name(position.partition, position.identity, begun.replica)
        for report in message.reports:
            known = self._handles.get(report.partition)
            if known is not None:
                request.reports.add(
                    handle=known[0],
                    current_leader_epoch=report.current_leader_epoch,
                    log_end_offset=report.log_end_offset,
                    flushed_offset=report.flushed_offset,
                    log_start_offset=report.log_start_offset,
                )
        return request

    def decode(self, response: pb.ReplicateResponse) -> LeaderMessage:
        """The message of a response, its batches checked; raises INVALID_REQUEST for an unknown handle."""
        ends, refusals = response.epoch_ends, response.refusals
        return LeaderMessage(
            epoch_ends=tuple(map(self._epoch_end, ends)) if ends else (),
            chunks=tuple(map(self._chunk, response.chunks)),
            refusals=tuple(map(self._refusal, refusals)) if refusals else (),
            clock_ms=response.clock_ms,
        )

    def _epoch_end(self, end: pb.EpochEnd) -> EpochEnd:
        return EpochEnd(
            self._partition(end.handle),
            LeaderEpoch(end.current_leader_epoch),
            LeaderEpoch(end.leader_epoch),
            Offset(end.end_offset),
            Offset(end.in_sync_offset) if end.HasField("in_sync_offset") else None,
            Offset(end.log_start_offset) if end.HasField("log_start_offset") else None,
        )

    def _chunk(self, chunk: pb.ReplicaChunk) -> Chunk:
        partition = self._partition(chunk.handle)
        data = chunk.batches
        batches: tuple[Batch, ...] = ()
        refused: TidemarkError | None = None
        try:
            batches = check_replicated(data) if data else ()
        except TidemarkError as error:
            _log.error("chunk refused", extra={"partition": str(partition), "offset": chunk.continues_from,
                                               "code": str(error.code), "why": error.message})  # fmt: skip
            refused = error
        return Chunk(
            partition,
            LeaderEpoch(chunk.current_leader_epoch),
            Offset(chunk.continues_from),
            Offset(chunk.high_watermark),
            Offset(chunk.log_start_offset),
            batches,
            None if refused is None else refused.code,
            0 if refused is None else len(data),
        )

    def _partition(self, handle: int) -> TopicPartition:
        partition = self._partitions.get(handle)
        if partition is None:
            raise _never_given(handle)
        return partition

    def _refusal(self, refusal: pb.ReplicaRefusal) -> Refusal:
        error = errors.from_proto(refusal.error)
        return Refusal(
            self._partition(refusal.handle),
            error.code,
            error.message,
            LeaderEpoch(refusal.current_leader_epoch),
            Offset(refusal.log_start_offset),
            LeaderEpoch(refusal.log_start_epoch) if refusal.HasField("log_start_epoch") else NO_EPOCH,
        )

    def _name(self, partition: TopicPartition, identity: ReplicaIdentity, into: pb.ReplicaHandle) -> None:
        known = self._handles.get(partition)
        if known is not None and known[1] == identity:
            into.handle = known[0]
            return
        if known is not None:
            self._release(partition)
        into.handle = handle = self._next_handle
        self._next_handle += 1
        self._partitions[handle] = partition
        self._handles[partition] = (handle, identity)
        into.topic, into.partition = partition
        into.topic_id, into.incarnation = identity

    def _release(self, partition: TopicPartition) -> int:
        """Release the handle, which stays known for a while; returns it."""
        handle, _ = self._handles.pop(partition)
        self._released.append(handle)
        if len(self._released) > RELEASED_MAX:
            del self._partitions[self._released.popleft()]
        return handle


class LeaderEnd:
    """The leader's end of a stream: decodes the follower's messages, encodes its own."""

    def __init__(self) -> None:
        self._handles: dict[TopicPartition, int] = {}
        self._named: dict[int, tuple[TopicPartition, ReplicaIdentity]] = {}
        self._released: dict[int, None] = {}

    @property
    def handles(self) -> int:
        """Number of partitions with a handle."""
        return len(self._named)

    def decode(self, request: pb.ReplicateRequest) -> FollowerMessage:
        """The message of a request; raises INVALID_REQUEST for an unknown handle, and for too many."""
        queries, positions, stops = request.epoch_queries, request.positions, request.stops
        message = FollowerMessage(
            queries=tuple(map(self._query, queries)) if queries else (),
            positions=tuple(map(self._position, positions)) if positions else (),
            reports=tuple(map(self._report, request.reports)),
            stops=tuple(map(self._stop, stops)) if stops else (),
            credits=tuple([Credit(credit.directory, credit.credit_bytes) for credit in request.credits]),
            echo_ms=request.echo_ms,
        )
        for stop in stops:
            self._release(stop.handle)
        return message

    def _query(self, query: pb.EpochQuery) -> EpochQuery:
        epochs = LeaderEpoch(query.current_leader_epoch), LeaderEpoch(query.last_epoch)
        return EpochQuery(*self._learn(query.replica), *epochs)

    def _position(self, position: pb.FetchPosition) -> FetchPosition:
        return FetchPosition(
            *self._learn(position.replica),
            LeaderEpoch(position.current_leader_epoch),
            Offset(position.fetch_offset),
            LeaderEpoch(position.last_epoch),
            position.directory,
            Offset(position.flushed_offset),
            Offset(position.log_start_offset),
        )

    def _report(self, report: pb.ReplicaReport) -> Report:
        return Report(
            self._replica(report.handle)[0],
            LeaderEpoch(report.current_leader_epoch),
            Offset(report.log_end_offset),
            Offset(report.flushed_offset),
            Offset(report.log_start_offset),
        )

    def _stop(self, stop: pb.ReplicaStop) -> StopFetch:
        return StopFetch(self._replica(stop.handle)[0], LeaderEpoch(stop.newer_leader_epoch))

    def encode(self, message: LeaderMessage) -> list[bytes]:
        """The responses of a message, serialized: several when its chunks exceed the split size."""
        response = pb.ReplicateResponse(clock_ms=message.clock_ms)
        for end in message.epoch_ends:
            response.epoch_ends.add(
                handle=self._handle(end.partition),
                current_leader_epoch=end.current_leader_epoch,
                leader_epoch=end.leader_epoch,
                end_offset=end.end_offset,
                in_sync_offset=end.in_sync_offset,
                log_start_offset=end.log_start_offset,
            )
        for refusal in message.refusals:
            response.refusals.add(
                handle=self._handle(refusal.partition),
                error=record_pb2.Error(code=str(refusal.code), message=refusal.message),
                current_leader_epoch=refusal.current_leader_epoch,
                log_start_offset=refusal.log_start_offset,
                log_start_epoch=refusal.log_start_epoch,
            )
        responses = [wire.message(response)]
        size_bytes = 0
        for chunk in message.chunks:
            chunk_bytes = chunk.size_bytes
            if size_bytes and size_bytes + chunk_bytes > SPLIT_BYTES:
                responses.append(wire.message(pb.ReplicateResponse(clock_ms=message.clock_ms)))
                size_bytes = 0
            size_bytes += chunk_bytes
            responses[-1] += self._chunk(chunk)
        return [b"".join(pieces) for pieces in responses]

    def _chunk(self, chunk: Chunk) -> list[bytes]:
        head = pb.ReplicaChunk(
            handle=self._handle(chunk.partition),
            current_leader_epoch=chunk.current_leader_epoch,
            continues_from=chunk.continues_from,
            high_watermark=chunk.high_watermark,
            log_start_offset=chunk.log_start_offset,
        )
        batches = wire.nested(_BATCHES, [batch.data for batch in chunk.batches]) if chunk.batches else []
        return wire.nested(_CHUNKS, wire.message(head, batches))

    def _handle(self, partition: TopicPartition) -> int:
        handle = self._handles.get(partition)
        if handle is None:
            raise invalid_request(f"the handle of {partition} was released too long ago")
        return handle

    def _learn(self, replica: pb.ReplicaHandle) -> tuple[TopicPartition, ReplicaIdentity]:
        if replica.topic:
            if len(self._named) >= HANDLES_MAX and replica.handle not in self._named:
                sentence = f"a stream names at most {HANDLES_MAX} partitions: stop those that are not fetched any more"
                raise invalid_request(sentence)
            partition = TopicPartition(replica.topic, replica.partition)
            if replica.handle in self._named and self._named[replica.handle][0] != partition:
                sentence = f"handle {replica.handle} is given to another partition on this stream"
                raise invalid_request(sentence)
            before = self._handles.get(partition)
            if before is not None and before != replica.handle:
                self._release(before)  # another incarnation of the partition
            self._named[replica.handle] = (partition, ReplicaIdentity(replica.topic_id, replica.incarnation))
            self._handles[partition] = replica.handle
        self._released.pop(replica.handle, None)
        return self._replica(replica.handle)

    def _release(self, handle: int) -> None:
        """Release a handle; messages in flight to the follower still name it."""
        self._released[handle] = None
        if len(self._released) > RELEASED_MAX:
            oldest = next(iter(self._released))
            del self._released[oldest]
            partition, _ = self._named.pop(oldest)
            if self._handles.get(partition) == oldest:
                del self._handles[partition]

    def _replica(self, handle: int) -> tuple[TopicPartition, ReplicaIdentity]:
        replica = self._named.get(handle)
        if replica is None:
            raise _never_given(handle)
        return replica


def _never_given(handle: int) -> TidemarkError:
    return invalid_request(f"handle {handle} was never given on this stream")
