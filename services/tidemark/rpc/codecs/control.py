# SPDX-License-Identifier: Apache-2.0
"""LeaderAndIsr, StopReplica and DescribeReplicas: proto <-> core.messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final

from tidemark.core.messages import (
    HeldState,
    LeaderAndIsrCommand,
    NewSchemas,
    PartitionCommand,
    ReplicaDescription,
    ReplicaQuestion,
    StoppedReplica,
    StopReplicaCommand,
)
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc import errors
from tidemark.rpc.codecs.message import PARTITION, SPREAD_IDENTITY, SPREAD_PARTITION, Codec
from tidemark.rpc.codecs.metadata import broker_from_proto, broker_to_proto
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto
from tidemark.rpc.codecs.shared import (
    STATES_KEPT,
    entries_from_proto,
    entries_to_proto,
    ids_from_proto,
    reasons_from_proto,
    reasons_to_proto,
    shared_state,
)
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.topic_schemas_pb2 import SchemaVersion

HELD: Final = "held"
"""Key in the metadata of a refusal to describe a replica: its log is on that broker's disks, though."""


def leader_and_isr_to_proto(command: LeaderAndIsrCommand) -> pb.LeaderAndIsrRequest:
    """The request, with its partitions grouped by topic."""
    request = pb.LeaderAndIsrRequest()
    for _ in leader_and_isr_in_steps(command, request):
        pass
    return request


def leader_and_isr_in_steps(command: LeaderAndIsrCommand, request: pb.LeaderAndIsrRequest) -> Iterator[None]:
    """Fill the empty `request`, one partition in each step."""
    request.header.CopyFrom(header_to_proto(command.controller_id, command.controller_epoch, command.broker_epoch))
    request.brokers.extend(broker_to_proto(broker) for broker in command.brokers)
    request.suspected.extend(sorted(command.suspected))
    request.complete = command.complete
    request.part = command.part
    request.sequence = command.sequence
    topics: dict[tuple[str, str], pb.TopicState] = {}
    for partition in command.partitions:
        key = (partition.partition.topic, partition.identity.topic_id)
        topic = topics.get(key)
        if topic is None:
            configs = dict(command.topic_configs.get(key[0], {}))
            topic = topics[key] = request.topics.add(topic=key[0], topic_id=key[1], configs=configs)
        _fill(topic.partitions.add(), partition)
        yield
    for name, new in command.schemas.items():
        topic = topics.get((name, new.topic_id)) or request.topics.add(topic=name, topic_id=new.topic_id)
        topic.schemas.extend(SchemaVersion(version=version, text=text) for version, text in new.texts.items())
        yield


def leader_and_isr_slices_from_proto(
    message: pb.LeaderAndIsrRequest, partitions_max: int
) -> Iterator[LeaderAndIsrCommand]:
    """A request as commands of at most `partitions_max` partitions each; each command is read when it is taken."""
    whole = LeaderAndIsrCommand(
        controller_id=BrokerId(message.header.controller_id),
        controller_epoch=ControllerEpoch(message.header.controller_epoch),
        broker_epoch=BrokerEpoch(message.header.broker_epoch),
        partitions=(),
        brokers=tuple(broker_from_proto(broker) for broker in message.brokers),
        suspected=frozenset(BrokerId(broker) for broker in message.suspected),
        part=message.part,
        sequence=message.sequence,
        topic_configs={topic.topic: dict(topic.configs) for topic in message.topics if topic.partitions},
        schemas={
            topic.topic: NewSchemas(topic.topic_id, {one.version: one.text for one in topic.schemas})
            for topic in message.topics
            if topic.schemas
        },
        slice_count=max(1, -(-_partition_count(message) // partitions_max)),
    )
    states = (_state_from_proto(topic.topic_id, state) for topic in message.topics for state in topic.partitions)
    for index in range(whole.slice_count):
        last = index == whole.slice_count - 1
        partitions = tuple(islice(states, partitions_max))
        yield replace(whole, partitions=partitions, complete=message.complete and last, slice_index=index)


def _partition_count(message: pb.LeaderAndIsrRequest) -> int:
    return sum(len(topic.partitions) for topic in message.topics)


_STOPPED: Final = Codec(StoppedReplica, pb.StoppedReplica, partition=SPREAD_PARTITION, identity=SPREAD_IDENTITY)


def stop_replica_to_proto(command: StopReplicaCommand) -> pb.StopReplicaRequest:
    """Encode a StopReplica command."""
    return pb.StopReplicaRequest(
        header=header_to_proto(command.controller_id, command.controller_epoch, command.broker_epoch),
        replicas=_STOPPED.to_protos(command.replicas),
        sequence=command.sequence,
    )


def stop_replica_from_proto(message: pb.StopReplicaRequest) -> StopReplicaCommand:
    """Decode a StopReplica command."""
    return StopReplicaCommand(
        controller_id=BrokerId(message.header.controller_id),
        controller_epoch=ControllerEpoch(message.header.controller_epoch),
        broker_epoch=BrokerEpoch(message.header.broker_epoch),
        replicas=tuple(_STOPPED.from_protos(message.replicas)),
        sequence=message.sequence,
    )


_QUESTION: Final = Codec(ReplicaQuestion, pb.ReplicaQuestion, partition=PARTITION, identity=SPREAD_IDENTITY)
questions_to_proto: Final = _QUESTION.to_protos
questions_from_proto: Final = _QUESTION.from_protos


def descriptions_to_proto(described: Mapping[TopicPartition, ReplicaDescription]) -> list[pb.ReplicaDescription]:
    """The messages for these descriptions of replicas."""
    return [_description_to_proto(partition, replica) for partition, replica in described.items()]


def _description_to_proto(partition: TopicPartition, replica: ReplicaDescription) -> pb.ReplicaDescription:
    return pb.ReplicaDescription(
        partition=ref_to_proto(partition),
        last_epoch=replica.last_epoch,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.high_watermark,
        damaged=replica.damaged,
        log_start_offset=replica.log_start_offset,
        cut=replica.cut,
    )


def descriptions_from_proto(messages: Iterable[pb.ReplicaDescription]) -> dict[TopicPartition, ReplicaDescription]:
    """The descriptions of replicas in these messages, by partition."""
    return {ref_from_proto(message.partition): _description_from_proto(message) for message in messages}


def _description_from_proto(message: pb.ReplicaDescription) -> ReplicaDescription:
    return ReplicaDescription(
        LeaderEpoch(message.last_epoch),
        Offset(message.log_end_offset),
        Offset(message.high_watermark),
        message.damaged,
        Offset(message.log_start_offset),
        message.cut,
    )


def held_to_proto(held: Mapping[TopicPartition, HeldState]) -> list[pb.HeldState]:
    """Encode the states that replicas know (rule Z4)."""
    return [
        pb.HeldState(
            state=_state_to_proto(one.command),
            topic_id=one.command.identity.topic_id,
            led=one.led,
            log=None if one.log is None else _description_to_proto(partition, one.log),
        )
        for partition, one in held.items()
    ]


def held_from_proto(messages: Iterable[pb.HeldState]) -> dict[TopicPartition, HeldState]:
    """Decode the states that replicas know (rule Z4)."""
    found = {}
    for message in messages:
        command = _state_from_proto(message.topic_id, message.state)
        log = _description_from_proto(message.log) if message.HasField("log") else None
        found[command.partition] = HeldState(command, message.led, log)
    return found


def header_to_proto(
    controller_id: BrokerId, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch
) -> pb.ControlHeader:
    """Encode the epochs of sender and receiver (rule F4)."""
    return pb.ControlHeader(controller_id=controller_id, controller_epoch=controller_epoch, broker_epoch=broker_epoch)


def refusals_to_proto(refused: Iterable[tuple[TopicPartition, TidemarkError]]) -> list[pb.PartitionError]:
    """Encode the partitions that a broker refused."""
    return [
        pb.PartitionError(
            partition=ref_to_proto(partition),
            error=errors.to_proto(error),
        )
        for partition, error in refused
    ]


def refusals_from_proto(messages: Iterable[pb.PartitionError]) -> tuple[tuple[TopicPartition, TidemarkError], ...]:
    """Decode the partitions that a broker refused."""
    return tuple((ref_from_proto(message.partition), errors.from_proto(message.error)) for message in messages)


def _state_to_proto(command: PartitionCommand) -> pb.PartitionState:
    message = pb.PartitionState()
    _fill(message, command)
    return message


def _fill(message: pb.PartitionState, command: PartitionCommand) -> None:
    """Fill an empty message. Few partitions have the last fields."""
    message.CopyFrom(_fields_of(command.state))
    message.topic, message.partition = command.partition
    message.incarnation = command.identity.incarnation
    message.assigned_replicas.extend(command.assigned_replicas)
    message.partition_epoch = command.partition_epoch
    if command.isr_reasons:
        message.isr_reasons.extend(reasons_to_proto(command.isr_reasons))
    if command.adding_replicas:
        message.adding_replicas.extend(command.adding_replicas)
    if command.removing_replicas:
        message.removing_replicas.extend(command.removing_replicas)
    if command.throttle_bytes_per_s:
        message.throttle_bytes_per_s = command.throttle_bytes_per_s
    if command.log_dir:
        message.log_dir = command.log_dir


@lru_cache(STATES_KEPT)
def _fields_of(state: LeaderAndIsr) -> pb.PartitionState:
    """The fields of a state, to be copied, never changed."""
    return pb.PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=entries_to_proto(state.isr),
        elr=entries_to_proto(state.elr),
        last_known=entries_to_proto(state.last_known),
        min_isr=state.min_isr,
        lineage=state.lineage,
        sealed=state.sealed,
        controller_epoch=state.controller_epoch,
    )


def _state_from_proto(topic_id: str, message: pb.PartitionState) -> PartitionCommand:
    """Decode a partition; partitions with the same other fields share one decoding of them."""
    topic, index = message.topic, message.partition
    incarnation, partition_epoch = message.incarnation, message.partition_epoch
    message.topic = message.incarnation = ""
    message.partition = message.partition_epoch = 0
    same = _same_fields(message.SerializePartialToString())
    message.topic, message.partition = topic, index
    message.incarnation, message.partition_epoch = incarnation, partition_epoch
    return PartitionCommand(
        TopicPartition(sys.intern(topic), index),
        ReplicaIdentity(topic_id, incarnation),
        same.assigned_replicas,
        same.state,
        partition_epoch,
        same.adding_replicas,
        same.removing_replicas,
        same.throttle_bytes_per_s,
        same.log_dir,
        same.isr_reasons,
    )


@lru_cache(STATES_KEPT)
def _same_fields(serialized: bytes) -> PartitionCommand:
    """A command without the fields that differ between partitions: their names, incarnations and partition epochs."""
    message = pb.PartitionState.FromString(serialized)
    return PartitionCommand(
        partition=TopicPartition("", 0),
        identity=ReplicaIdentity("", ""),
        assigned_replicas=ids_from_proto(message.assigned_replicas),
        state=shared_state(
            BrokerId(message.leader),
            LeaderEpoch(message.leader_epoch),
            entries_from_proto(message.isr),
            entries_from_proto(message.elr),
            entries_from_proto(message.last_known),
            message.min_isr,
            message.lineage,
            message.sealed,
            ControllerEpoch(message.controller_epoch),
        ),
        partition_epoch=0,
        adding_replicas=ids_from_proto(message.adding_replicas),
        removing_replicas=ids_from_proto(message.removing_replicas),
        throttle_bytes_per_s=message.throttle_bytes_per_s,
        log_dir=message.log_dir,
        isr_reasons=reasons_from_proto(message.isr_reasons),
    )
