# SPDX-License-Identifier: Apache-2.0
"""The health of a cluster in one sentence."""

from __future__ import annotations

from typing import Any

from tidemark.client.aio.admin.results import ClusterDescription
from tidemark.client.health import HealthLevel, health_of
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerRegistration, TopicPartition


def cluster(live: tuple[int, ...] = (0, 1, 2), controller: int = 100, **counts: Any) -> ClusterDescription:
    brokers = {one: BrokerRegistration(one, "localhost", 9000 + one) for one in live}
    defaults = {"under_replicated_count": 0, "under_min_isr_count": 0, "offline_count": 0}
    return ClusterDescription(ClusterView("c", controller, 1, "", brokers), 1, 4, **{**defaults, **counts})


def flights(*, leader: int = 0, isr: tuple[int, ...] = (0, 1, 2), unreadable: bool = False) -> list[TopicView]:
    one = PartitionView(3, leader, 1, (0, 1, 2), isr, state_unreadable=unreadable)
    return [TopicView("flights", "t", partitions={3: one})]


def test_a_cluster_in_sync_is_healthy() -> None:
    health = health_of(cluster(), flights())
    assert (health.level, health.needs, health.away) == (HealthLevel.HEALTHY, (), ())
    assert health.sentence == "Healthy: 3 brokers live, 4 partitions, all replicas in sync."


def test_followers_that_catch_up_need_no_operator() -> None:
    health = health_of(cluster(under_replicated_count=1), flights(isr=(0, 1)))
    assert health.level is HealthLevel.WATCH
    assert health.sentence == "1 partition has a replica out of sync, until the followers have caught up."
    assert health.needs[0].partitions == (TopicPartition("flights", 3),)


def test_a_broker_that_is_away_must_be_started_or_removed() -> None:
    health = health_of(cluster((0, 1), under_replicated_count=1), flights(isr=(0, 1)))
    assert (health.level, health.away) == (HealthLevel.ACT, (2,))
    assert health.sentence == ("Broker 2 is not live and has replicas. Start or remove the broker. (1 more below)")
    assert health.needs[0].command == "tidemark cluster remove-brokers 2 --dry-run"


def test_a_draining_broker_may_be_away() -> None:
    health = health_of(cluster((0, 1), draining_brokers=(2,)), flights())
    assert health.level is HealthLevel.WATCH


def test_a_partition_without_a_leader_comes_before_its_followers() -> None:
    found = cluster((0, 1), offline_count=1, under_replicated_count=1)
    health = health_of(found, flights(leader=-1, isr=(2,)))
    assert health.sentence.startswith("1 partition without a leader: flights:3. Start broker 2.")
    assert health.needs[0].command == "tidemark elect --last-known flights:3 --dry-run"


def test_a_damaged_node_is_named_with_the_command_that_rebuilds_it() -> None:
    health = health_of(cluster(offline_count=1), flights(leader=-1, isr=(), unreadable=True))
    assert health.needs[0].command == "tidemark elect --rebuild-state flights:3"


def test_a_missing_controller_comes_first() -> None:
    health = health_of(cluster(controller=-1, under_min_isr_count=2), flights())
    assert [need.level for need in health.needs] == [HealthLevel.ACT, HealthLevel.ACT]
    assert health.sentence.startswith("No controller is active")
