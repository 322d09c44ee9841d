# SPDX-License-Identifier: Apache-2.0
"""Calls of a simulated broker to the active controller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemark.core.controller import events as ev
from tidemark.core.replication.effects import ReportLogFailed, ResignLeadership
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode


class SimControllerHints:
    """`ControllerHints` to the controller that takes hints now and has links both ways to the broker."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    async def send(
        self,
        changed: Iterable[TopicPartition],
        resigned: Iterable[ResignLeadership],
        failed: Iterable[ReportLogFailed],
    ) -> None:
        node, world = self._node, self._node.world
        broker, epoch, partitions = node.broker_id, node.broker_epoch, tuple(changed)
        for controller in world.controllers.values():
            term = controller.takes_hints()
            if term is None or controller.paused or not world.network.both_ways(node.name, controller.name):
                continue
            if partitions:
                term.submit(ev.IsrChangesReported(partitions))
            for one in resigned:
                term.submit(ev.LeadershipResigned(broker, epoch, one.partition, one.leader_epoch, one.identity))
            for other in failed:
                facts = (other.partition, other.leader_epoch, other.damaged)
                term.submit(ev.ReplicaFailed(broker, epoch, *facts, identity=other.identity))
            return
        raise TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, "no active controller is reachable")
