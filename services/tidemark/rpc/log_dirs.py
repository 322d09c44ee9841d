# SPDX-License-Identifier: Apache-2.0
"""The replicas in a broker's log directories: model <-> proto, and the call.

The answer is a stream: thousands of replicas do not fit into one message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tidemark.core.isr_change_reasons import IsrChange
from tidemark.model import Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.message import OPTIONAL_ERROR, SPREAD_IDENTITY, SPREAD_PARTITION, Codec, Field
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto
from tidemark.rpc.codecs.shared import ids_from_proto, reasons_from_proto, reasons_to_proto
from tidemark.rpc.receiver import Headers
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

_REPLICAS_A_MESSAGE: Final = 2_000
"""Below half the message limit even with the longest topic names (249 bytes), and quick to read on an event loop."""
_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica in a log directory; ends are exclusive.

    Attributes:
        size_bytes: size in bytes of all segments; -1 if the log has failed, and then the offsets are 0.
        offset_lag: of a follower: records that it lacks below the last received high watermark.
        bytes_in_per_s: of a leader: bytes that producers append.
        future: the copy of a log directory move into this directory (rule M3); `offset_lag` is its lag behind the
            replica in the other directory.
        isr_changes: if requested, the last ISR changes that the broker noted as the leader, the oldest first; a broker
            of an older version sends none.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    size_bytes: int
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    leader: bool
    offset_lag: int
    bytes_in_per_s: float
    offline: bool
    future: bool = False
    isr_changes: tuple[IsrChange, ...] = ()


@dataclass(frozen=True, slots=True)
class LogDirectoryContent:
    """A log directory of a broker; the sizes of its file system are -1 if they cannot be read.

    Attributes:
        error: the cause if the directory is offline.
    """

    directory_id: str
    path: str
    total_bytes: int
    free_bytes: int
    error: TidemarkError | None
    replicas: tuple[ReplicaOnDisk, ...]


class Wanted(NamedTuple):
    """The replicas to describe; without topics and partitions all of them."""

    topics: frozenset[str] = frozenset()
    partitions: frozenset[TopicPartition] = frozenset()
    include_isr_changes: bool = False


_ISR_CHANGE: Final = Codec(
    IsrChange, pb.IsrChange, isr=Field(from_proto=ids_from_proto), replicas=Field(reasons_to_proto, reasons_from_proto)
)
_REPLICA: Final = Codec(
    ReplicaOnDisk,
    pb.LogDirReplica,
    partition=SPREAD_PARTITION,
    identity=SPREAD_IDENTITY,
    isr_changes=Field(_ISR_CHANGE.to_protos, lambda messages: tuple(_ISR_CHANGE.from_protos(messages))),
)
_CONTENT: Final = Codec(
    LogDirectoryContent,
    pb.LogDirDescription,
    error=OPTIONAL_ERROR,
    replicas=Field(_REPLICA.to_protos, lambda messages: tuple(_REPLICA.from_protos(messages))),
)
content_from_proto: Final = _CONTENT.from_proto


def add_contents(found: dict[str, LogDirectoryContent], messages: Iterable[pb.LogDirDescription]) -> None:
    """Add the contents of one message of an answer to those of the messages before, by directory id."""
    for part in map(content_from_proto, messages):
        before = found.get(part.directory_id)
        found[part.directory_id] = part if before is None else replace(part, replicas=before.replicas + part.replicas)


async def describe_log_dirs(
    address: str,
    *,
    topics: Collection[str] = (),
    partitions: Collection[TopicPartition] = (),
    include_isr_changes: bool = False,
    deadline_s: float = _DEADLINE_S,
    headers: Headers = (),
) -> tuple[LogDirectoryContent, ...]:
    """The log directories of the broker at host:port, and the replicas in them.

    Args:
        topics: only these topics, and `partitions`; if both are empty, all. Partitions without a replica there are not
            listed.
        include_isr_changes: whether replicas have their last ISR changes.
        headers: name the receiver.

    Raises:
        TidemarkError: BROKER_NOT_AVAILABLE, REQUEST_TIMED_OUT.
    """
    request = pb.DescribeLogDirsRequest(
        topics=list(topics),
        partitions=[ref_to_proto(one) for one in partitions],
        include_isr_changes=include_isr_changes,
    )
    found: dict[str, LogDirectoryContent] = {}
    async with channel_for_call(address) as channel:
        stub: Any = BrokerServiceStub(channel)
        async for response in stub.DescribeLogDirs(request, timeout=deadline_s, metadata=headers):
            add_contents(found, response.log_dirs)
    return tuple(found.values())


def wanted_from_proto(request: pb.DescribeLogDirsRequest) -> Wanted:
    """The replicas that a request names."""
    partitions = frozenset(map(ref_from_proto, request.partitions))
    return Wanted(frozenset(request.topics), partitions, request.include_isr_changes)


def contents_to_proto(
    contents: Iterable[LogDirectoryContent], *, replicas_a_message: int = _REPLICAS_A_MESSAGE
) -> Iterator[pb.DescribeLogDirsResponse]:
    """The messages of an answer, with at most `replicas_a_message` replicas each; every directory is in one of the
    messages.
    """
    response = pb.DescribeLogDirsResponse()
    room = replicas_a_message
    for content in contents:
        rest: Sequence[ReplicaOnDisk] = content.replicas
        while True:
            if room == 0:
                yield response
                response, room = pb.DescribeLogDirsResponse(), replicas_a_message
            some, rest = rest[:room], rest[room:]
            room -= len(some)
            response.log_dirs.append(_CONTENT.to_proto(replace(content, replicas=tuple(some))))
            if not rest:
                break
    yield response
