# SPDX-License-Identifier: Apache-2.0
"""Schemas of range reads while a broker does not know the newest version yet; the clock advances only in waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.consuming import range_reader
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata import blocking_cluster
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.text import to_text
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
)
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.v1 import topic_schemas_pb2 as pb

from tests.refusals import raises_code

FIRST = first_version(draft_from_ddl("a INT"))
TEXTS = {1: to_text(FIRST), 2: to_text(next_version(FIRST, draft_from_ddl("a BIGINT"), Compatibility.BACKWARD))}
START_S = 100.0


class Brokers:
    """Brokers h:9000, h:9001 and h:9002; the second and the third lead a partition each of topic t.

    Attributes:
        newest: the newest version that each broker knows; 0: the broker does not answer for schemas.
    """

    def __init__(self) -> None:
        self.newest = {0: 1, 1: 1, 2: 2}
        self.leaders = {0: 1, 1: 2}
        self.now_s = START_S

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def call(self, cluster: BlockingCluster, address: str, method: Any, request: Any, *_: object) -> Any:
        """Takes the place of `BlockingCluster.call`."""
        if not isinstance(request, pb.GetTopicSchemasRequest):
            return SimpleNamespace(metadata=view_to_proto(self.view()))
        newest = self.newest[int(address[-1])]
        if not newest:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "silent")
        wanted = list(request.versions) or range(1, newest + 1)
        if max(wanted) > newest:
            raise TidemarkError(ErrorCode.UNKNOWN_SCHEMA_VERSION, "not yet")
        schemas = [pb.SchemaVersion(version=version, text=TEXTS[version]) for version in wanted]
        return pb.GetTopicSchemasResponse(topic_id="id", schemas=schemas)

    def view(self) -> ClusterView:
        brokers = {
            BrokerId(one): BrokerRegistration(BrokerId(one), "h", 9000 + one, BrokerEpoch(0)) for one in self.newest
        }
        partitions = {
            index: PartitionView(index, BrokerId(leader), LeaderEpoch(1), (), (), partition_epoch=1)
            for index, leader in self.leaders.items()
        }
        topic = TopicView("t", "id", created_zxid=1, partitions=partitions, partition_count=2, schema_version=1)
        return ClusterView(brokers=brokers, controller_epoch=ControllerEpoch(1), topics={"t": topic}, complete=True)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    for module in (blocking_cluster, range_reader):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=made.sleep))
    monkeypatch.setattr(BlockingCluster, "call", lambda *arguments: made.call(*arguments))
    return made


def reader() -> RangeReader:
    return RangeReader("h:9000", deadline_s=30.0)


def test_all_versions_are_those_of_the_leader_that_knows_most(brokers: Brokers) -> None:
    """The leader may store batches of the newest version, which other brokers do not know yet."""
    with reader() as made:
        assert sorted(made.schemas("t")) == [1, 2]
    assert brokers.now_s == START_S


def test_a_leader_that_does_not_answer_is_asked_again_until_the_deadline(brokers: Brokers) -> None:
    brokers.newest[2] = 0
    with reader() as made, raises_code(ErrorCode.REQUEST_TIMED_OUT, "silent"):
        made.schemas("t")
    assert brokers.now_s <= START_S + 30.5


def test_any_broker_sends_its_schema_versions_without_leaders(brokers: Brokers) -> None:
    brokers.leaders = {0: -1, 1: -1}
    with reader() as made:
        assert sorted(made.schemas("t")) == [1]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_version_is_asked_of_one_broker_after_the_other_without_a_wait(brokers: Brokers, silent: int) -> None:
    brokers.newest[silent] = 0
    with reader() as made:
        assert sorted(made.schemas("t", [1, 2])) == [1, 2]
    assert brokers.now_s == START_S


def test_a_version_that_no_broker_knows_is_asked_for_until_the_deadline(brokers: Brokers) -> None:
    with reader() as made, raises_code(ErrorCode.REQUEST_TIMED_OUT, "not yet"):
        made.schemas("t", [3])
    assert brokers.now_s <= START_S + 30.5
