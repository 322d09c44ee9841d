# SPDX-License-Identifier: Apache-2.0
"""Protocols of a term besides ZooKeeper and time: calls and heartbeats to brokers, and an observer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tidemark.core.controller.effects import (
    DescribeReplicas,
    Observed,
    SendLeaderAndIsr,
    SendStopReplica,
    SendUpdateMetadata,
)
from tidemark.core.controller.events import ControlAnswered, ControllerEvent, ReplicasDescribed
from tidemark.core.messages import PartitionCommand
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch

Submit = Callable[[ControllerEvent], None]


class BrokerChannels(Protocol):
    """Calls to the live brokers. A failed call is an answer with an error, never an exception."""

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Use these registrations from now on."""

    async def send_leader_and_isr(self, effect: SendLeaderAndIsr) -> ControlAnswered:
        """Send all parts in order; the first error ends the call."""

    async def send_stop_replica(self, effect: SendStopReplica) -> ControlAnswered:
        """Send one StopReplica command."""

    async def send_update_metadata(self, effect: SendUpdateMetadata) -> ControlAnswered:
        """Send one part of a view, or a change, of the metadata."""

    async def describe_replicas(self, effect: DescribeReplicas) -> ReplicasDescribed:
        """Ask one broker about many replicas."""

    async def stop(self) -> None:
        """Close the channels to all brokers."""


class BrokerHeartbeats(Protocol):
    """Failure detection (rule C5): submits which brokers answer, want to shut down, or have failed directories."""

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Send heartbeats to exactly these brokers."""

    def release(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Permit this broker to shut down; a heartbeat is sent immediately."""

    async def stop(self) -> None:
        """Stop the heartbeats to all brokers."""


class ControllerObserver(Protocol):
    """Metrics and logs of a controller."""

    def term_begins(self, epoch: ControllerEpoch, queue_size: Callable[[], int]) -> None:
        """Note that this controller is the active one; `queue_size` gives the number of queued events."""

    def term_ends(self) -> None:
        """Note that this controller is a standby again."""

    def waited(self, seconds: float) -> None:
        """Note that an event left the queue after this time."""

    def handled(self, event: ControllerEvent, seconds: float) -> None:
        """Note that the core handled an event, and that its effects were started."""

    def observed(self, effect: Observed) -> None:
        """Note an observation of the core."""

    def leaders_confirmed(self, broker: int, partitions: Iterable[PartitionCommand]) -> None:
        """Note that the broker accepted these commands."""

    def left_isrs(self, by_reason: Mapping[str, int]) -> None:
        """Note that elections removed this many replicas from ISRs."""

    def counts(self, counts: Mapping[str, int]) -> None:
        """Note the present partitions and commands by condition."""

    def failed(self, error: BaseException, event: ControllerEvent | None) -> None:
        """Note an unexpected error that ended the term; `event`: the event that was handled, if any."""
