# SPDX-License-Identifier: Apache-2.0
"""What lies in a broker's log directories: model <-> proto, and how to ask for it.

A stream carries the answer, since that of a broker with thousands of replicas does not fit into one message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc

from tidemark.model import Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.channel import open_channel
from tidemark.rpc.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

_REPLICAS_A_MESSAGE: Final = 2_000
"""Below half the message limit even with the longest topic names (249 bytes); a message holds up no event loop long."""
_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica in a log directory; ends are exclusive.

    Attributes:
        size_bytes: of all segments; -1 where its log failed, and then the offsets are 0.
        offset_lag: of a follower, records below its leader's high watermark, as last heard, that it lacks.
        bytes_in_per_s: of a leader, what producers append.
        future: a copy of the replica, which lies in another directory, on its way into this one (rule M3);
            `offset_lag` is what it lacks of that one.
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


@dataclass(frozen=True, slots=True)
class LogDirectoryContent:
    """A log directory of a broker; sizes of its file system are -1 where they cannot be found out.

    Attributes:
        error: why it is offline, None while it is not.
    """

    directory_id: str
    path: str
    total_bytes: int
    free_bytes: int
    error: TidemarkError | None
    replicas: tuple[ReplicaOnDisk, ...]


async def describe_log_dirs(
    address: str,
    *,
    topics: Collection[str] = (),
    partitions: Collection[TopicPartition] = (),
    deadline_s: float = _DEADLINE_S,
) -> tuple[LogDirectoryContent, ...]:
    """Ask the broker at host:port for its log directories and the replicas in them.

    Args:
        topics: only these, and `partitions`; neither: everything. What the broker has no replica of is not listed.

    Raises:
        TidemarkError: BROKER_NOT_AVAILABLE, REQUEST_TIMED_OUT.
    """
    request = pb.DescribeLogDirsRequest(topics=list(topics), partitions=[ref_to_proto(one) for one in partitions])
    found: dict[str, LogDirectoryContent] = {}
    try:
        async with open_channel(address) as channel:
            stub: Any = BrokerServiceStub(channel)
            async for response in stub.DescribeLogDirs(request, timeout=deadline_s):
                for part in map(content_from_proto, response.log_dirs):
                    known = found.get(part.directory_id)
                    if known is not None:
                        part = replace(part, replicas=known.replicas + part.replicas)
                    found[part.directory_id] = part
    except grpc.RpcError as error:
        raise errors.from_rpc_error(error, address=address) from None
    return tuple(found.values())


def wanted_from_proto(request: pb.DescribeLogDirsRequest) -> tuple[frozenset[str], frozenset[TopicPartition]]:
    """The topics and partitions asked for; both empty: everything."""
    return frozenset(request.topics), frozenset(map(ref_from_proto, request.partitions))


def contents_to_proto(
    contents: Iterable[LogDirectoryContent], *, replicas_a_message: int = _REPLICAS_A_MESSAGE
) -> Iterator[pb.DescribeLogDirsResponse]:
    """The messages of an answer, none with more replicas than that; every directory is in one at least."""
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
            response.log_dirs.append(_part_to_proto(content, some))
            if not rest:
                break
    yield response


def _part_to_proto(content: LogDirectoryContent, replicas: Sequence[ReplicaOnDisk]) -> pb.LogDirDescription:
    return pb.LogDirDescription(
        directory_id=content.directory_id,
        path=content.path,
        total_bytes=content.total_bytes,
        free_bytes=content.free_bytes,
        error=errors.to_proto(content.error) if content.error is not None else None,
        replicas=[_replica_to_proto(one) for one in replicas],
    )


def content_from_proto(message: pb.LogDirDescription) -> LogDirectoryContent:
    """A directory, or a part of one."""
    return LogDirectoryContent(
        directory_id=message.directory_id,
        path=message.path,
        total_bytes=message.total_bytes,
        free_bytes=message.free_bytes,
        error=errors.from_proto(message.error) if message.HasField("error") else None,
        replicas=tuple(_replica_from_proto(one) for one in message.replicas),
    )


def _replica_to_proto(replica: ReplicaOnDisk) -> pb.LogDirReplica:
    return pb.LogDirReplica(
        topic=replica.partition.topic,
        partition=replica.partition.partition,
        topic_id=replica.identity.topic_id,
        incarnation=replica.identity.incarnation,
        size_bytes=replica.size_bytes,
        log_start_offset=replica.log_start_offset,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.high_watermark,
        leader=replica.leader,
        offset_lag=replica.offset_lag,
        bytes_in_per_s=replica.bytes_in_per_s,
        offline=replica.offline,
        future=replica.future,
    )


def _replica_from_proto(message: pb.LogDirReplica) -> ReplicaOnDisk:
    return ReplicaOnDisk(
        partition=TopicPartition(message.topic, message.partition),
        identity=ReplicaIdentity(message.topic_id, message.incarnation),
        size_bytes=message.size_bytes,
        log_start_offset=Offset(message.log_start_offset),
        log_end_offset=Offset(message.log_end_offset),
        high_watermark=Offset(message.high_watermark),
        leader=message.leader,
        offset_lag=message.offset_lag,
        bytes_in_per_s=message.bytes_in_per_s,
        offline=message.offline,
        future=message.future,
    )
