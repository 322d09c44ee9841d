# SPDX-License-Identifier: Apache-2.0
"""Brokers for the driver of a term: they accept every command, and describe the replicas that a test gives them."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.controller.ports import Submit
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.messages import HeldState
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicPartition


class QuietChannels:
    """`BrokerChannels`."""

    def __init__(self) -> None:
        self.held: dict[int, Mapping[TopicPartition, HeldState]] = {}
        self.asked: list[BrokerId] = []

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Every broker is there."""

    async def send_leader_and_isr(self, effect: fx.SendLeaderAndIsr) -> ev.ControlAnswered:
        return ev.ControlAnswered(effect.broker, effect.request_id, None)

    async def send_stop_replica(self, effect: fx.SendStopReplica) -> ev.ControlAnswered:
        return ev.ControlAnswered(effect.broker, effect.request_id, None)

    async def send_update_metadata(self, effect: fx.SendUpdateMetadata) -> ev.ControlAnswered:
        return ev.ControlAnswered(effect.broker, effect.request_id, None)

    async def describe_replicas(self, effect: fx.DescribeReplicas) -> ev.ReplicasDescribed:
        """A broker with an entry in `held` has replicas; another one has none."""
        self.asked.append(effect.broker)
        held = self.held.get(effect.broker)
        code = ErrorCode.NOT_A_REPLICA if held is None else ErrorCode.FENCED_LEADER_EPOCH
        refused = {one.partition: TidemarkError(code, "no") for one in effect.partitions}
        return ev.ReplicasDescribed(effect.broker, effect.request_id, None, {}, refused, held or {})

    async def stop(self) -> None:
        """No connection is open."""


class QuietHeartbeats:
    """`BrokerHeartbeats`: no broker is ever suspected."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        for broker, registration in brokers.items():
            self._submit(ev.BrokerTrusted(broker, registration.broker_epoch))

    def release(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """No broker shuts down."""

    async def stop(self) -> None:
        """No stream is open."""
