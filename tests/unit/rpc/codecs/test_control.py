# SPDX-License-Identifier: Apache-2.0
"""Commands of the controller, and cluster views, survive a round trip."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.controller.command_builder import METADATA_PARTITIONS_MAX, PART_PARTITIONS_MAX
from tidemark.core.controller.log_comparison import QUESTIONS_MAX
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
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc.channel import MESSAGE_BYTES_MAX, SPLIT_BYTES
from tidemark.rpc.codecs import control as control_codec
from tidemark.rpc.codecs import metadata as metadata_codec
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1 import metadata_pb2

_NAMES = st.integers(0, 2**30).map("a.b_c-{}".format)  # a text takes a draw for each letter
_BROKERS = st.integers(0, 2**31 - 1).map(BrokerId)
_EPOCHS = st.integers(-1, 2**31 - 1)
_IDS = st.lists(_BROKERS, max_size=3).map(tuple)
_ENTRIES = st.lists(st.builds(IsrEntry, _BROKERS, st.integers(-1, 2**40).map(BrokerEpoch)), max_size=2).map(tuple)
_CONFIGS = st.dictionaries(_NAMES, st.text(max_size=6), max_size=2)
_STATES = st.builds(
    LeaderAndIsr,
    leader=st.one_of(st.just(BrokerId(-1)), _BROKERS),
    leader_epoch=_EPOCHS.map(LeaderEpoch),
    isr=_ENTRIES,
    elr=_ENTRIES,
    last_known=_ENTRIES,
    min_isr=st.integers(1, 9),
    lineage=st.integers(0, 2**40),
    sealed=st.booleans(),
    controller_epoch=_EPOCHS.map(ControllerEpoch),
)
_REGISTRATIONS = st.builds(
    BrokerRegistration,
    broker_id=_BROKERS,
    host=_NAMES,
    port=st.integers(1, 65535),
    broker_epoch=st.integers(-1, 2**40).map(BrokerEpoch),
    rack=st.one_of(st.just(""), _NAMES),
)


_TEXTS = st.dictionaries(st.integers(1, 2047), st.text(max_size=9), min_size=1, max_size=3)


@st.composite
def _commands(draw: st.DrawFn) -> LeaderAndIsrCommand:
    partitions = [
        PartitionCommand(
            TopicPartition(name, index),
            ReplicaIdentity(f"id of {name}", draw(_NAMES)),
            draw(_IDS),
            draw(_STATES),
            draw(_EPOCHS),
            draw(_IDS),
            draw(_IDS),
            log_dir=draw(st.sampled_from(["", "/data/1", "9f5c0d1e"])),
            isr_reasons=draw(st.sampled_from([(), ((BrokerId(3), "lagging"), (BrokerId(4), ""))])),
        )
        for name in draw(st.lists(_NAMES, max_size=2, unique=True))
        for index in draw(st.lists(st.integers(0, 99_999), min_size=1, max_size=2, unique=True))
    ]
    return LeaderAndIsrCommand(
        controller_id=draw(_BROKERS),
        controller_epoch=ControllerEpoch(draw(_EPOCHS)),
        broker_epoch=BrokerEpoch(draw(st.integers(-1, 2**40))),
        partitions=tuple(partitions),
        brokers=tuple(draw(st.lists(_REGISTRATIONS, max_size=2))),
        suspected=frozenset(draw(_IDS)),
        complete=draw(st.booleans()),
        part=draw(st.integers(0, 9)),
        sequence=draw(st.integers(0, 2**40)),
        topic_configs={one.partition.topic: draw(_CONFIGS) for one in partitions},
        schemas={
            name: NewSchemas(f"id of {name}", draw(_TEXTS))
            for name in {*(one.partition.topic for one in partitions), "of a later part"}
            if draw(st.booleans())
        },
    )


def received(command: LeaderAndIsrCommand) -> LeaderAndIsrCommand:
    """The command after its way over the wire, in one slice."""
    sent = control_codec.leader_and_isr_to_proto(command).SerializeToString()
    (found,) = control_codec.leader_and_isr_slices_from_proto(pb.LeaderAndIsrRequest.FromString(sent), 1 << 20)
    return found


@given(_commands())
@settings(max_examples=150, deadline=None)
def test_a_leader_and_isr_command_survives_a_round_trip(command: LeaderAndIsrCommand) -> None:
    assert received(command) == command


def test_broker_0_epoch_0_and_no_leader_differ() -> None:
    for leader, epoch in ((0, 0), (-1, 0), (0, -1)):
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), (IsrEntry(BrokerId(0), BrokerEpoch(0)),))
        one = PartitionCommand(TopicPartition("t", 0), ReplicaIdentity("t", "i"), (BrokerId(0),), state, 0)
        command = LeaderAndIsrCommand(
            BrokerId(0), ControllerEpoch(0), BrokerEpoch(0), (one,), suspected=frozenset({BrokerId(0)})
        )
        (only,) = received(command).partitions
        assert only.state == state


def test_a_topic_recreated_within_one_command_keeps_both_ids_apart() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), ())
    both = tuple(
        PartitionCommand(TopicPartition("t", index), ReplicaIdentity(topic_id, "i"), (BrokerId(1),), state, 0)
        for index, topic_id in enumerate(("old", "new"))
    )
    command = LeaderAndIsrCommand(BrokerId(100), ControllerEpoch(1), BrokerEpoch(1), both)
    assert {one.identity.topic_id for one in received(command).partitions} == {"old", "new"}


@given(
    st.lists(
        st.builds(
            StoppedReplica,
            st.builds(TopicPartition, _NAMES, st.integers(0, 99_999)),
            st.builds(ReplicaIdentity, _NAMES, _NAMES),
            _EPOCHS.map(LeaderEpoch),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_a_stop_replica_command_survives_a_round_trip(replicas: list[StoppedReplica]) -> None:
    command = StopReplicaCommand(BrokerId(100), ControllerEpoch(7), BrokerEpoch(3), tuple(replicas), sequence=9)
    sent = control_codec.stop_replica_to_proto(command).SerializeToString()
    assert control_codec.stop_replica_from_proto(pb.StopReplicaRequest.FromString(sent)) == command


def test_a_refusal_keeps_its_code_message_and_metadata() -> None:
    refusal = (
        TopicPartition("t", 4),
        TidemarkError(ErrorCode.FENCED_LEADER_EPOCH, "not above 7", {"leader_epoch": "7"}),
    )
    ((partition, error),) = control_codec.refusals_from_proto(control_codec.refusals_to_proto([refusal]))
    assert partition == refusal[0]
    assert (error.code, error.message, error.metadata) == (
        ErrorCode.FENCED_LEADER_EPOCH,
        "not above 7",
        {"leader_epoch": "7"},
    )


_PARTITIONS = st.builds(
    PartitionView,
    partition=st.integers(0, 99_999),
    leader=st.one_of(st.just(BrokerId(-1)), _BROKERS),
    leader_epoch=_EPOCHS.map(LeaderEpoch),
    assigned_replicas=_IDS,
    in_sync_replicas=_IDS,
    incarnation=_NAMES,
    lineage=st.integers(0, 2**40),
    eligible_leader_replicas=_IDS,
    partition_epoch=_EPOCHS,
)
_TOPICS = st.builds(
    TopicView,
    topic=_NAMES,
    topic_id=_NAMES,
    created_zxid=st.integers(-1, 2**60),
    modified_zxid=st.integers(-1, 2**60),
    partitions=st.lists(_PARTITIONS, max_size=2).map(lambda found: {one.partition: one for one in found}),
    configs=_CONFIGS,
)
_VIEWS = st.builds(
    ClusterView,
    cluster_id=_NAMES,
    controller_id=st.one_of(st.just(BrokerId(-1)), _BROKERS),
    controller_epoch=_EPOCHS.map(ControllerEpoch),
    admin_address=_NAMES,
    brokers=st.lists(_REGISTRATIONS, max_size=2).map(lambda found: {one.broker_id: one for one in found}),
    topics=st.lists(_TOPICS, max_size=2).map(lambda found: {one.topic: one for one in found}),
    deleted_topics=st.lists(_NAMES, max_size=2).map(tuple),
    complete=st.booleans(),
)


@given(_VIEWS)
@settings(max_examples=150, deadline=None)
def test_a_cluster_view_survives_a_round_trip(view: ClusterView) -> None:
    sent = metadata_codec.view_to_proto(view).SerializeToString()
    assert metadata_codec.view_from_proto(metadata_pb2.ClusterMetadata.FromString(sent)) == view


def test_the_error_of_a_topic_survives_a_round_trip() -> None:
    view = ClusterView(topics={"t": TopicView("t", "", error=TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is none"))})
    error = metadata_codec.view_from_proto(metadata_codec.view_to_proto(view)).topics["t"].error
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.UNKNOWN_TOPIC, "there is none")


def test_questions_about_replicas_and_their_answers_survive_a_round_trip() -> None:
    first, second = TopicPartition("a", 0), TopicPartition("b", 7)
    identity = ReplicaIdentity("a" * 32, "b" * 32)
    questions = [ReplicaQuestion(first, identity, LeaderEpoch(0)), ReplicaQuestion(second, identity, LeaderEpoch(9))]
    assert control_codec.questions_from_proto(control_codec.questions_to_proto(questions)) == questions
    described = {
        first: ReplicaDescription(LeaderEpoch(-1), Offset(0), Offset(0), damaged=False),
        second: ReplicaDescription(LeaderEpoch(8), Offset(2**40), Offset(2**41), damaged=True),
    }
    assert control_codec.descriptions_from_proto(control_codec.descriptions_to_proto(described)) == described


def test_the_largest_question_and_its_answer_are_below_the_split_size() -> None:
    partitions = [TopicPartition(_longest_name(index), 2**20) for index in range(QUESTIONS_MAX)]
    identity = ReplicaIdentity("a" * 32, "b" * 32)
    questions = [ReplicaQuestion(one, identity, LeaderEpoch(2**20)) for one in partitions]
    asked = pb.DescribeReplicasRequest(replicas=control_codec.questions_to_proto(questions))
    refused = control_codec.refusals_to_proto(
        (one, TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{one} is not ready yet; try again")) for one in partitions
    )
    assert asked.ByteSize() < SPLIT_BYTES
    assert pb.DescribeReplicasResponse(errors=refused).ByteSize() < SPLIT_BYTES


def _longest_name(index: int) -> str:
    return f"{index:06}".ljust(249, "x")


def test_the_largest_part_of_a_command_is_below_the_split_size() -> None:
    entries = tuple(IsrEntry(BrokerId(2**20 + index), BrokerEpoch(2**20)) for index in range(3))
    state = LeaderAndIsr(
        entries[0].broker_id, LeaderEpoch(2**20), entries, min_isr=2, controller_epoch=ControllerEpoch(9)
    )
    assigned = tuple(entry.broker_id for entry in entries)
    name = _longest_name(0)
    identity = ReplicaIdentity("a" * 32, "b" * 32)
    partitions = tuple(
        PartitionCommand(TopicPartition(name, index), identity, assigned, state, 2**20)
        for index in range(PART_PARTITIONS_MAX)
    )
    command = LeaderAndIsrCommand(BrokerId(100), ControllerEpoch(9), BrokerEpoch(2**20), partitions, complete=True)
    assert control_codec.leader_and_isr_to_proto(command).ByteSize() < SPLIT_BYTES


def test_the_largest_part_of_a_view_is_below_the_split_size_with_one_partition_per_topic() -> None:
    assigned = tuple(BrokerId(2**20 + index) for index in range(3))
    topics = {
        _longest_name(index): TopicView(
            _longest_name(index),
            "a" * 32,
            2**50,
            2**50,
            {0: PartitionView(0, assigned[0], LeaderEpoch(2**20), assigned, assigned, "b" * 32, partition_epoch=2**20)},
            {"min.insync.replicas": "2", "retention.ms": "604800000"},
        )
        for index in range(METADATA_PARTITIONS_MAX)
    }
    size_bytes = metadata_codec.view_to_proto(ClusterView("c" * 32, topics=topics, complete=True)).ByteSize()
    assert size_bytes < SPLIT_BYTES < MESSAGE_BYTES_MAX


def test_the_slices_of_a_command_have_the_same_content_together() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), ())
    identity = ReplicaIdentity("t", "i")
    partitions = tuple(
        PartitionCommand(TopicPartition("t", index), identity, (BrokerId(1),), state, 0) for index in range(5)
    )
    command = LeaderAndIsrCommand(
        BrokerId(100), ControllerEpoch(2), BrokerEpoch(3), partitions, complete=True, part=4, sequence=9
    )
    slices = list(control_codec.leader_and_isr_slices_from_proto(control_codec.leader_and_isr_to_proto(command), 2))
    assert [one.partitions for one in slices] == [partitions[:2], partitions[2:4], partitions[4:]]
    assert [one.complete for one in slices] == [False, False, True]
    assert [(one.slice_index, one.slice_count) for one in slices] == [(0, 3), (1, 3), (2, 3)]
    assert {(one.part, one.sequence, one.broker_epoch) for one in slices} == {(4, 9, 3)}


def test_a_command_without_partitions_is_one_slice() -> None:
    command = LeaderAndIsrCommand(BrokerId(100), ControllerEpoch(2), BrokerEpoch(3), (), complete=True)
    (only,) = control_codec.leader_and_isr_slices_from_proto(control_codec.leader_and_isr_to_proto(command), 2)
    assert only == command


def test_partitions_in_the_same_state_share_one_state() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(2), (IsrEntry(BrokerId(1), BrokerEpoch(0)),))
    request = pb.LeaderAndIsrRequest()
    for topic in ("a", "b"):
        request.topics.add(topic=topic, topic_id=topic).partitions.append(_partition_state(topic, state))
    (command,) = control_codec.leader_and_isr_slices_from_proto(request, 10)
    first, second = command.partitions
    assert first.state == state
    assert first.state is second.state


def _partition_state(topic: str, state: LeaderAndIsr) -> pb.PartitionState:
    command = PartitionCommand(TopicPartition(topic, 0), ReplicaIdentity(topic, "i"), (BrokerId(1),), state, 3)
    held = control_codec.held_to_proto({command.partition: HeldState(command, False, None)})
    return held[0].state


def test_decoding_leaves_the_request_unchanged() -> None:
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(2), (IsrEntry(BrokerId(1), BrokerEpoch(0)),))
    request = pb.LeaderAndIsrRequest()
    request.topics.add(topic="a", topic_id="a").partitions.append(_partition_state("a", state))
    before = request.SerializeToString()
    one, other = (tuple(control_codec.leader_and_isr_slices_from_proto(request, 10)) for _ in range(2))
    assert one == other
    assert request.SerializeToString() == before
