# SPDX-License-Identifier: Apache-2.0
"""Messages of group_service.proto <-> core.groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidemark.core.groups.group import Group, metadata_of
from tidemark.core.groups.heartbeat import Heartbeat
from tidemark.core.groups.state import AWAY, GroupPartition, GroupState, MemberState, Partitions, Turn
from tidemark.core.state_records import by_topic
from tidemark.model import TidemarkError, TopicPartition, invalid_request
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb

_COMMITTER_ID_CHARACTERS_MAX: Final = 128
_STATES: Final = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.ASSIGNING: pb.GROUP_STATE_ASSIGNING,
    GroupState.RECONCILING: pb.GROUP_STATE_RECONCILING,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
}
_MEMBER_STATES: Final = {
    MemberState.STABLE: pb.GROUP_MEMBER_STATE_STABLE,
    MemberState.UNREVOKED: pb.GROUP_MEMBER_STATE_UNREVOKED,
    MemberState.UNRELEASED: pb.GROUP_MEMBER_STATE_UNRELEASED,
}


def state_to_proto(state: GroupState) -> pb.GroupState.ValueType:
    """Encode the state of a group."""
    return _STATES[state]


def turn_from_proto(message: pb.CommitOffsetsRequest) -> Turn:
    """The identity of a commit among its client's commits; raises INVALID_REQUEST."""
    if len(message.committer_id) > _COMMITTER_ID_CHARACTERS_MAX or message.sequence < 0:
        raise invalid_request(
            f"a committer id has at most {_COMMITTER_ID_CHARACTERS_MAX} characters, and the sequence of its commits "
            "begins at 0"
        )
    if message.sequence and not message.committer_id:
        raise invalid_request("a commit needs both a sequence and a committer_id, or neither")
    return Turn(message.committer_id, message.sequence)


def partitions_to_proto(partitions: Iterable[GroupPartition]) -> pb.GroupPartitions:
    """Encode a set of partitions, with topics and indexes in order."""
    return pb.GroupPartitions(
        topics=[
            pb.GroupTopicPartitions(topic=topic, topic_id=topic_id, partitions=indexes)
            for topic, topic_id, indexes in by_topic(partitions)
        ]
    )


def partitions_from_proto(message: pb.GroupPartitions) -> Partitions:
    """Decode a set of partitions."""
    return frozenset(
        GroupPartition(topic.topic, topic.topic_id, index) for topic in message.topics for index in topic.partitions
    )


def heartbeat_from_proto(message: pb.GroupHeartbeatRequest, client_host: str) -> Heartbeat:
    """Decode a heartbeat of a member."""
    return Heartbeat(
        group_id=message.group_id,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
        instance_id=message.instance_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        topics=tuple(message.subscription.topics) if message.HasField("subscription") else None,
        assignor=message.assignor,
        owned=partitions_from_proto(message.owned) if message.HasField("owned") else None,
        protocol=message.protocol,
        client_id=message.client_id,
        client_host=client_host,
        sequence=message.sequence,
    )


def results_to_proto(
    partitions: Sequence[TopicPartition], refused: Mapping[TopicPartition, TidemarkError]
) -> list[pb.GroupPartitionResult]:
    """Encode the result of each partition, in their order."""
    return [
        pb.GroupPartitionResult(
            topic=one.topic,
            partition=one.partition,
            error=errors.to_proto(refused[one]) if one in refused else None,
        )
        for one in partitions
    ]


def listing_to_proto(group: Group, partition: int) -> pb.GroupListing:
    """Encode a group as an entry of a list."""
    return pb.GroupListing(
        group_id=group.group_id,
        protocol="" if group.metadata is None else group.metadata.protocol,
        state=state_to_proto(group.state),
        member_count=len(group.members),
        partition=partition,
    )


def description_to_proto(group: Group, coordinator_id: int) -> pb.GroupDescription:
    """Encode a group and its members, without its partitions."""
    return pb.GroupDescription(
        group_id=group.group_id,
        protocol="" if group.metadata is None else group.metadata.protocol,
        state=state_to_proto(group.state),
        group_epoch=metadata_of(group).epoch,
        assignment_epoch=group.target_metadata.epoch,
        assignor=group.target_metadata.assignor,
        coordinator_id=coordinator_id,
        members=[_member_to_proto(group, member_id) for member_id in sorted(group.members)],
    )


def _member_to_proto(group: Group, member_id: str) -> pb.GroupMember:
    member, current = group.members[member_id], group.current(member_id)
    away = current.epoch == AWAY
    return pb.GroupMember(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_epoch=current.epoch,
        state=pb.GROUP_MEMBER_STATE_AWAY if away else _MEMBER_STATES[current.state],
        subscribed_topics=member.topics,
        assignor=member.assignor,
        assignment=partitions_to_proto(current.assigned),
        target=partitions_to_proto(group.target(member_id)),
        revoking=partitions_to_proto(current.revoking),
    )
