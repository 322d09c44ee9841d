# SPDX-License-Identifier: Apache-2.0
"""Commands to brokers over gRPC; one channel for each broker epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import grpc

from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.controller.command_builder import VIEWS_KEPT_MAX
from tidemark.core.controller.effects import DescribeReplicas, SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from tidemark.core.controller.events import ControlAnswered, ReplicasDescribed
from tidemark.core.messages import HeldState, LeaderAndIsrCommand, ReplicaDescription
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.rpc.channel import open_channel
from tidemark.rpc.codecs.control import (
    descriptions_from_proto,
    header_to_proto,
    held_from_proto,
    leader_and_isr_in_steps,
    questions_to_proto,
    refusals_from_proto,
    stop_replica_to_proto,
)
from tidemark.rpc.codecs.metadata import partition_to_proto, topic_to_proto, view_to_proto
from tidemark.rpc.receiver import Headers, receiver_headers
from tidemark.runtime.slices import Pace
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import BrokerControlServiceStub
from tidemark.v1.metadata_pb2 import PartitionMetadata, TopicMetadata

_DEADLINE_S: Final = 10.0
_DESCRIBE_DEADLINE_S: Final = 2.0
"""Deadline of DescribeReplicas; an unclean election waits no longer for an answer."""

Refused = tuple[tuple[TopicPartition, TidemarkError], ...]


class BrokerPeers:
    """Sends commands to brokers over gRPC, as `BrokerChannels`."""

    def __init__(self, controller_id: BrokerId, controller_epoch: ControllerEpoch, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._brokers: dict[BrokerId, BrokerRegistration] = {}
        self._partitions: dict[int, tuple[PartitionView, PartitionMetadata]] = {}
        """Views with their messages, by `id` of the view: each broker gets the same views, at different times."""
        self._last_topics: tuple[Mapping[str, TopicView], list[TopicMetadata]] | None = None
        self._channels: dict[BrokerId, tuple[BrokerRegistration, grpc.aio.Channel]] = {}

    def follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Use these registrations from now on."""
        self._brokers = dict(brokers)

    async def stop(self) -> None:
        """Close the channels to all brokers."""
        channels = [channel for _, channel in self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def send_leader_and_isr(self, effect: SendLeaderAndIsr) -> ControlAnswered:
        """Send all parts in order; the first error ends the call."""

        async def send(stub: Any, headers: Headers) -> Refused:
            refused: Refused = ()
            for command in effect.commands:
                response = await stub.LeaderAndIsr(await _in_slices(command), timeout=_DEADLINE_S, metadata=headers)
                refused += refusals_from_proto(response.errors)
            return refused

        return await self._answered(effect.broker, effect.request_id, send)

    async def send_stop_replica(self, effect: SendStopReplica) -> ControlAnswered:
        """Send one StopReplica command."""

        async def send(stub: Any, headers: Headers) -> Refused:
            request = stop_replica_to_proto(effect.command)
            response = await stub.StopReplica(request, timeout=_DEADLINE_S, metadata=headers)
            return refusals_from_proto(response.errors)

        return await self._answered(effect.broker, effect.request_id, send)

    async def send_update_metadata(self, effect: SendUpdateMetadata) -> ControlAnswered:
        """Send one part of a view, or a change, of the metadata."""
        header = header_to_proto(self._controller_id, self._controller_epoch, effect.broker_epoch)
        if self._last_topics is None or self._last_topics[0] is not effect.view.topics:
            # One encoding serves several brokers.
            self._last_topics = (
                effect.view.topics,
                [topic_to_proto(one, self._encoded) for one in effect.view.topics.values()],
            )
        metadata = view_to_proto(replace(effect.view, topics={}))
        metadata.topics.extend(self._last_topics[1])
        request = pb.UpdateMetadataRequest(header=header, metadata=metadata)

        async def send(stub: Any, headers: Headers) -> Refused:
            await stub.UpdateMetadata(request, timeout=_DEADLINE_S, metadata=headers)
            return ()

        return await self._answered(effect.broker, effect.request_id, send)

    def _encoded(self, view: PartitionView) -> PartitionMetadata:
        known = self._partitions.get(id(view))
        if known is None:
            if len(self._partitions) >= VIEWS_KEPT_MAX:
                self._partitions.clear()
            known = self._partitions[id(view)] = (view, partition_to_proto(view))
        return known[1]

    async def describe_replicas(self, effect: DescribeReplicas) -> ReplicasDescribed:
        """Ask one broker about many replicas."""
        header = header_to_proto(self._controller_id, self._controller_epoch, effect.broker_epoch)
        request = pb.DescribeReplicasRequest(header=header, replicas=questions_to_proto(effect.partitions))
        described: dict[TopicPartition, ReplicaDescription] = {}
        held: dict[TopicPartition, HeldState] = {}

        async def send(stub: Any, headers: Headers) -> Refused:
            response = await stub.DescribeReplicas(request, timeout=_DESCRIBE_DEADLINE_S, metadata=headers)
            described.update(descriptions_from_proto(response.replicas))
            held.update(held_from_proto(response.held))
            return refusals_from_proto(response.errors)

        answered = await self._answered(effect.broker, effect.request_id, send)
        refused = dict(answered.refused)
        return ReplicasDescribed(effect.broker, effect.request_id, answered.error, described, refused, held)

    async def _answered(
        self, broker: BrokerId, request_id: int, send: Callable[[Any, Headers], Any]
    ) -> ControlAnswered:
        try:
            stub = BrokerControlServiceStub(await self._channel(broker))
            refused = await send(stub, receiver_headers(self._cluster_id, broker))
        except grpc.RpcError as error:
            return ControlAnswered(broker, request_id, errors.from_rpc_error(error, address=f"broker {broker}"))
        except (grpc.aio.UsageError, asyncio.CancelledError):  # the broker probably registered again
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise
            failure = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker}: its channel was closed")
            return ControlAnswered(broker, request_id, failure)
        except TidemarkError as error:
            return ControlAnswered(broker, request_id, error)
        return ControlAnswered(broker, request_id, None, refused)

    async def _channel(self, broker: BrokerId) -> grpc.aio.Channel:
        registration = self._brokers.get(broker)
        if registration is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
        known = self._channels.get(broker)
        if known is not None and known[0] == registration:
            return known[1]
        channel = open_channel(registration.address)
        self._channels[broker] = (registration, channel)
        if known is not None:
            await known[1].close()
        return channel


async def _in_slices(command: LeaderAndIsrCommand) -> pb.LeaderAndIsrRequest:
    """Encode a command; a large command lets the event loop run in between."""
    request, pace = pb.LeaderAndIsrRequest(), Pace()
    for _ in leader_and_isr_in_steps(command, request):
        if pace.is_due:
            await pace.give_way()
    return request
