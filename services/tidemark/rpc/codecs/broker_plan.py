# SPDX-License-Identifier: Apache-2.0
"""Broker plans, and obstacles to a restart: proto <-> model."""

from __future__ import annotations

from typing import Final

from tidemark.core.planning.broker_plans import BrokerLoad, Plan
from tidemark.core.planning.restart_safety import Obstacle, RestartObstacle
from tidemark.model import BrokerId
from tidemark.rpc.codecs.reassignment import move_from_proto, move_to_proto
from tidemark.rpc.codecs.refs import ref_from_proto, ref_to_proto
from tidemark.v1 import admin_brokers_pb2 as pb

_NOTHING: Final = BrokerLoad()
_PARTITIONS_MAX: Final = 1_000
"""Partitions that an obstacle names; its message has their number."""


def plan_to_proto(plan: Plan, unknown_sizes: int) -> pb.BrokerPlan:
    """Encode a plan, and the number of its partitions whose size is unknown."""
    return pb.BrokerPlan(
        moves=[move_to_proto(move) for move in plan.moves],
        current=[move_to_proto(move) for move in plan.current],
        moved_replicas=plan.moved_replicas,
        moved_bytes=plan.moved_bytes,
        loads=[
            _load_to_proto(broker, plan.before.get(broker, _NOTHING), plan.after.get(broker, _NOTHING))
            for broker in sorted({*plan.before, *plan.after})
        ],
        unknown_sizes=unknown_sizes,
    )


def plan_from_proto(message: pb.BrokerPlan) -> tuple[Plan, int]:
    """Decode a plan, and the number of its partitions whose size is unknown."""
    plan = Plan(
        moves=tuple(move_from_proto(move) for move in message.moves),
        current=tuple(move_from_proto(move) for move in message.current),
        moved_replicas=message.moved_replicas,
        moved_bytes=message.moved_bytes,
        before={
            BrokerId(one.broker_id): BrokerLoad(one.replicas_before, one.leaders_before, one.bytes_before)
            for one in message.loads
        },
        after={
            BrokerId(one.broker_id): BrokerLoad(one.replicas_after, one.leaders_after, one.bytes_after)
            for one in message.loads
        },
    )
    return plan, message.unknown_sizes


def _load_to_proto(broker: BrokerId, before: BrokerLoad, after: BrokerLoad) -> pb.BrokerPlanLoad:
    return pb.BrokerPlanLoad(
        broker_id=broker,
        replicas_before=before.replicas,
        replicas_after=after.replicas,
        leaders_before=before.leaders,
        leaders_after=after.leaders,
        bytes_before=before.replica_bytes,
        bytes_after=after.replica_bytes,
    )


def obstacle_to_proto(obstacle: RestartObstacle) -> pb.RestartObstacle:
    """Encode an obstacle to a restart."""
    return pb.RestartObstacle(
        reason=str(obstacle.reason),
        message=obstacle.message,
        partitions=[ref_to_proto(partition) for partition in obstacle.partitions[:_PARTITIONS_MAX]],
    )


def obstacle_from_proto(message: pb.RestartObstacle) -> RestartObstacle:
    """Decode an obstacle to a restart; a reason of a later version is OTHER."""
    known = message.reason in Obstacle.__members__
    return RestartObstacle(
        Obstacle(message.reason) if known else Obstacle.OTHER,
        message.message,
        tuple(ref_from_proto(ref) for ref in message.partitions),
    )
