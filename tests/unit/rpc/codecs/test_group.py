# SPDX-License-Identifier: Apache-2.0
"""Messages of groups: which fields are set, which are unset, and the states of members."""

from __future__ import annotations

import pytest
from tidemark.core.groups.coordinator import GroupCoordinator
from tidemark.core.groups.heartbeat import Heartbeat, Situation
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import AWAY, UNNUMBERED, GroupPartition, TopicFacts, Turn
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.codecs.group import (
    description_to_proto,
    heartbeat_from_proto,
    listing_to_proto,
    partitions_from_proto,
    partitions_to_proto,
    results_to_proto,
    turn_from_proto,
)
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code

NOW = Situation({"a": TopicFacts("a-id", 3)}, GroupSettings(), 0, 0)
SOME = frozenset({GroupPartition("a", "1", 0), GroupPartition("a", "1", 2), GroupPartition("b", "2", 0)})


def test_a_set_of_partitions_survives_a_round_trip() -> None:
    assert partitions_from_proto(partitions_to_proto(SOME)) == SOME
    assert [topic.partitions for topic in partitions_to_proto(SOME).topics] == [[0, 2], [0]]


def test_empty_owned_differs_from_unset() -> None:
    silent = pb.GroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3)
    assert heartbeat_from_proto(silent, "here") == Heartbeat("g", "m", 3, client_host="here")
    message = pb.GroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        instance_id="i",
        rebalance_timeout_ms=5,
        subscription=pb.GroupSubscription(topics=["b", "a"]),
        assignor="range",
        owned=pb.GroupPartitions(),
        protocol="consumer",
        client_id="c",
        sequence=7,
    )
    assert heartbeat_from_proto(message, "here") == Heartbeat(
        "g", "m", 0, "i", 5, ("b", "a"), "range", frozenset(), "consumer", "c", "here", 7
    )


def test_a_commit_has_a_committer_and_a_sequence_or_neither() -> None:
    assert turn_from_proto(pb.CommitOffsetsRequest(committer_id="me", sequence=3)) == Turn("me", 3)
    assert turn_from_proto(pb.CommitOffsetsRequest()) == UNNUMBERED
    assert turn_from_proto(pb.CommitOffsetsRequest(committer_id="x" * 128, sequence=1)).sequence == 1


@pytest.mark.parametrize(
    ("committer_id", "sequence", "advice"),
    [("", 3, "a commit needs both"), ("x" * 129, 1, "at most 128 characters"), ("me", -1, "begins at 0")],
)
def test_an_invalid_committer_or_sequence_is_refused(committer_id: str, sequence: int, advice: str) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, advice):
        turn_from_proto(pb.CommitOffsetsRequest(committer_id=committer_id, sequence=sequence))


def test_a_described_group_has_the_state_of_each_member() -> None:
    coordinator = GroupCoordinator()
    first = Heartbeat("g", "m1", 0, "one", 1, ("a",), client_id="c", client_host="h")
    coordinator.heartbeat(first, NOW)
    coordinator.heartbeat(Heartbeat("g", "m2", 0, "", 1, ("a",)), NOW)
    coordinator.heartbeat(Heartbeat("g", "m1", 1, "one"), NOW)
    described = description_to_proto(coordinator.group("g"), 7)
    assert (described.state, described.assignor, described.coordinator_id) == (pb.GROUP_STATE_RECONCILING, "sticky", 7)
    states = {member.member_id: member.state for member in described.members}
    assert states == {"m1": pb.GROUP_MEMBER_STATE_UNREVOKED, "m2": pb.GROUP_MEMBER_STATE_UNRELEASED}
    giving, waiting = described.members
    assert partitions_from_proto(giving.revoking) == partitions_from_proto(waiting.target)
    assert (giving.instance_id, giving.client_id, giving.client_host) == ("one", "c", "h")
    coordinator.heartbeat(Heartbeat("g", "m1", AWAY, "one"), NOW)
    assert description_to_proto(coordinator.group("g"), 7).members[0].state == pb.GROUP_MEMBER_STATE_AWAY
    listed = listing_to_proto(coordinator.group("g"), 3)
    assert (listed.group_id, listed.protocol, listed.member_count, listed.partition) == ("g", "consumer", 2, 3)


def test_each_partition_of_a_request_has_its_result_in_order() -> None:
    good, bad = TopicPartition("a", 1), TopicPartition("a", 0)
    results = results_to_proto([good, bad], {bad: TidemarkError(ErrorCode.UNKNOWN_PARTITION, "no")})
    assert [(one.partition, one.error.code) for one in results] == [(1, ""), (0, "UNKNOWN_PARTITION")]
    assert not results[0].HasField("error")
