# SPDX-License-Identifier: Apache-2.0
"""High watermarks for lag: fetched from leaders, start before end, with an error for each unknown one (G10)."""

from __future__ import annotations

import pytest
from tidemark.broker.groups.offsets import fill_in_lag
from tidemark.broker.groups.partition_ends import Ends, PartitionEnds
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicPartition,
)
from tidemark.rpc import errors, request_limits
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import group_service_pb2 as groups_pb

HERE, GONE = BrokerId(0), BrokerId(1)


class OwnLeader:
    """ListOffsets of this broker: the answers of each partition in order."""

    def __init__(self) -> None:
        self.answers: list[dict[int, tuple[int, int] | ErrorCode]] = []
        self.asked: list[pb.ListOffsetsRequest] = []

    async def __call__(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self.asked.append(request)
        now = self.answers.pop(0)
        response = pb.ListOffsetsResponse()
        for part in request.partitions:
            result = response.partitions.add(topic=part.topic, partition=part.partition)
            answer = now[part.partition]
            if isinstance(answer, ErrorCode):
                result.error.CopyFrom(errors.to_proto(TidemarkError(answer, "not now")))
            else:
                result.offset = answer[0] if part.WhichOneof("position") == "earliest" else answer[1]
        return response


def cache(*leaders: BrokerId) -> MetadataCache:
    made = MetadataCache("")
    partitions = {
        index: PartitionView(index, leader, LeaderEpoch(1), (leader,), (leader,))
        for index, leader in enumerate(leaders)
    }
    made.update(
        ClusterView(
            controller_epoch=ControllerEpoch(1),
            brokers={HERE: BrokerRegistration(HERE, "127.0.0.1", 1)},
            topics={"a": TopicView("a", "a-id", partitions=partitions)},
            complete=True,
        )
    )
    return made


def p(index: int, topic: str = "a") -> TopicPartition:
    return TopicPartition(topic, index)


async def test_each_leader_gets_one_request_for_all_its_partitions_with_start_before_end() -> None:
    own = OwnLeader()
    own.answers = [{0: (1, 5), 1: (0, 0)}]
    found = await PartitionEnds(HERE, cache(HERE, HERE), own, between_s=0).ask([p(1), p(0)])
    assert found == {p(0): Ends(1, 5), p(1): Ends(0, 0)}
    (request,) = own.asked
    assert [part.WhichOneof("position") for part in request.partitions] == ["earliest", "latest"] * 2


async def test_a_leader_of_more_partitions_than_a_request_may_name_gets_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition is named twice, so 20,000 names are 10,000 partitions."""
    monkeypatch.setattr(request_limits, "NAMED_MAX", 3)
    own = OwnLeader()
    own.answers = [{0: (1, 5), 1: (0, 7)}] * 2
    found = await PartitionEnds(HERE, cache(HERE, HERE), own, between_s=0).ask([p(0), p(1)])
    assert found == {p(0): Ends(1, 5), p(1): Ends(0, 7)}
    assert [len(request.partitions) for request in own.asked] == [3, 1]


async def test_a_new_leader_is_asked_again_only_for_the_failed_partitions() -> None:
    own = OwnLeader()
    own.answers = [{0: ErrorCode.OFFSET_NOT_AVAILABLE, 1: (0, 7)}, {0: (0, 9)}]
    found = await PartitionEnds(HERE, cache(HERE, HERE), own, between_s=0).ask([p(0), p(1)])
    assert found == {p(0): Ends(0, 9), p(1): Ends(0, 7)}


async def test_an_unknown_end_has_an_error_and_delays_no_other() -> None:
    own = OwnLeader()
    own.answers = [{0: (0, 3)}]
    found = await PartitionEnds(HERE, cache(HERE, NO_LEADER, GONE), own, between_s=0).ask(
        [p(0), p(1), p(2), p(9), p(0, "b")]
    )
    refused = {where: one for where, one in found.items() if isinstance(one, TidemarkError)}
    why = {where: one.code for where, one in refused.items()}
    assert why == {
        p(1): ErrorCode.LEADER_NOT_AVAILABLE,
        p(2): ErrorCode.LEADER_NOT_AVAILABLE,
        p(9): ErrorCode.UNKNOWN_PARTITION,
        p(0, "b"): ErrorCode.UNKNOWN_TOPIC,
    }
    assert refused[p(9)].metadata["partitions"] == "3"
    assert found[p(0)] == Ends(0, 3)


def test_lag_counts_the_records_left_to_read_and_is_never_negative() -> None:
    def lag(committed: int, start: int, end: int) -> tuple[int, str]:
        row = groups_pb.GroupPartition(topic="a", partition=0, committed_offset=committed, lag=-1)
        fill_in_lag(row, {p(0): Ends(start, end)})
        return row.lag, row.error.code

    assert lag(4, 0, 10) == (6, "")
    assert lag(-1, 3, 10) == (7, "")
    assert lag(1, 3, 10) == (7, "")
    assert lag(10, 0, 10) == (0, "")
    assert lag(12, 0, 10) == (0, "LOG_TRUNCATED")
