# SPDX-License-Identifier: Apache-2.0
"""Markers are appended and acknowledged only under the session lease, each with a separate outcome (X2, X12)."""

from __future__ import annotations

from typing import Any, cast

from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.transactions.marker_writer import MarkerWriter
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.markers import EndMarker
from tidemark.v1 import transaction_service_pb2 as pb


class Leader:
    """Fakes for the appends and the lease of a broker; both may refuse."""

    def __init__(self) -> None:
        self.appended: list[tuple[TopicPartition, dict[str, Any]]] = []
        self.refusals: dict[int, ErrorCode] = {}
        self.lost: set[int] = set()
        self.loses_lease = False

    async def append_marker(self, partition: TopicPartition, topic_id: str, **facts: Any) -> int:
        self.appended.append((partition, {"topic_id": topic_id, **facts}))
        if partition.partition in self.refusals:
            raise TidemarkError(self.refusals[partition.partition], "refused")
        if self.loses_lease:
            self.lost.add(partition.partition)
        return 0

    def check(self, partition: TopicPartition) -> None:
        if partition.partition in self.lost:
            raise TidemarkError(ErrorCode.NOT_LEADER, "the lease has expired")


async def written(leader: Leader, *partitions: int, producer_epoch: int = 3) -> list[str]:
    """The codes of the outcomes."""
    writer = MarkerWriter(cast(InternalAppends, leader), MetadataCache(""), cast(Lease, leader), lambda: 5)
    request = pb.WriteMarkersRequest()
    for commit in (True, False):
        request.markers.add(
            producer=pb.ProducerIdentity(producer_id=7, producer_epoch=producer_epoch),
            commit=commit,
            coordinator_epoch=4,
            partitions=[pb.TransactionPartition(topic="a", topic_id="a-id", partition=one) for one in partitions],
        )
    return [one.error.code for one in (await writer.write(request)).outcomes]


async def test_each_partition_of_each_marker_has_its_outcome_in_the_order_of_the_request() -> None:
    leader = Leader()
    leader.refusals = {1: ErrorCode.COORDINATOR_FENCED}
    assert await written(leader, 0, 1, 2) == ["", "COORDINATOR_FENCED", ""] * 2
    partition, facts = leader.appended[0]
    assert partition == TopicPartition("a", 0)
    assert facts.pop("timeout_s") > 0
    assert facts == {
        "topic_id": "a-id",
        "producer_id": 7,
        "producer_epoch": 3,
        "marker": EndMarker(True, 4),
        "timestamp_us": 5,
    }


async def test_a_broker_without_the_lease_appends_no_marker() -> None:
    leader = Leader()
    leader.lost = {0}
    assert await written(leader, 0) == ["NOT_LEADER"] * 2
    assert leader.appended == []


async def test_a_broker_that_loses_the_lease_during_the_append_does_not_acknowledge() -> None:
    leader = Leader()
    leader.loses_lease = True
    assert await written(leader, 0) == ["NOT_LEADER"] * 2


async def test_a_marker_whose_epoch_no_batch_can_have_is_refused() -> None:
    """Regression: the answer was INTERNAL, for the other markers of the request, too."""
    leader = Leader()
    assert await written(leader, 0, producer_epoch=32_767) == [""] * 2
    for epoch in (-1, 32_768):
        assert await written(leader, 0, producer_epoch=epoch) == ["INVALID_REQUEST"] * 2
    assert len(leader.appended) == 2
