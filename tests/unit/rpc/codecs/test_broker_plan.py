# SPDX-License-Identifier: Apache-2.0
"""Plans for brokers, and obstacles to a restart, survive a round trip."""

from __future__ import annotations

import pytest
from tidemark.core.planning.broker_plans import BrokerLoad, Plan
from tidemark.core.planning.restart_safety import Obstacle, RestartObstacle
from tidemark.model import BrokerId, PartitionReassignment, TopicPartition
from tidemark.rpc.codecs import broker_plan as codec
from tidemark.v1 import admin_brokers_pb2 as pb

T0 = TopicPartition("t", 0)
ZERO, ONE, TWO = (BrokerId(broker) for broker in range(3))


def test_a_plan_survives_a_round_trip_with_its_unknown_sizes() -> None:
    plan = Plan(
        moves=(PartitionReassignment(T0, (TWO, ONE), ("any", "any")),),
        current=(PartitionReassignment(T0, (ZERO, ONE), ("any", "any")),),
        moved_replicas=1,
        moved_bytes=1 << 40,
        before={ZERO: BrokerLoad(1, 1, 7), ONE: BrokerLoad(1, 0, 7), TWO: BrokerLoad()},
        after={ZERO: BrokerLoad(), ONE: BrokerLoad(1, 0, 7), TWO: BrokerLoad(1, 1, 7)},
    )
    assert codec.plan_from_proto(codec.plan_to_proto(plan, 3)) == (plan, 3)


@pytest.mark.parametrize("reason", [kind for kind in Obstacle if kind is not Obstacle.OTHER])
def test_an_obstacle_survives_a_round_trip(reason: Obstacle) -> None:
    obstacle = RestartObstacle(reason, "why", (T0, TopicPartition("t", 1)))
    assert codec.obstacle_from_proto(codec.obstacle_to_proto(obstacle)) == obstacle


def test_an_obstacle_of_a_later_version_keeps_its_message() -> None:
    found = codec.obstacle_from_proto(pb.RestartObstacle(reason="MOON_IS_FULL", message="wait a week"))
    assert found == RestartObstacle(Obstacle.OTHER, "wait a week")


def test_an_obstacle_names_a_limited_number_of_partitions() -> None:
    obstacle = RestartObstacle(Obstacle.NOT_IN_SYNC, "why", tuple(TopicPartition("t", index) for index in range(5000)))
    assert len(codec.obstacle_to_proto(obstacle).partitions) == 1000
