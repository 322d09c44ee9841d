# SPDX-License-Identifier: Apache-2.0
"""Calls of ReportIsrChanges: a broker's hints to the active controller (rules R7, R9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.core.replication.effects import ReportLogFailed, ResignLeadership
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.rpc.receiver import receiver_headers
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceStub
from tidemark.zookeeper.store import MetadataStore

_DEADLINE_S: Final = 2.0


class ControllerHints(Protocol):
    """Delivers hints to the active controller."""

    async def send(
        self,
        changed: Iterable[TopicPartition],
        resigned: Iterable[ResignLeadership],
        failed: Iterable[ReportLogFailed],
    ) -> None:
        """Deliver all these reports in one call; raises TidemarkError unless the active controller accepted them."""


class GrpcControllerHints:
    """`ControllerHints` to the controller that /controller names; a controller of another cluster refuses them."""

    def __init__(self, broker_id: BrokerId, cluster_id: str, store: MetadataStore, epoch: OwnEpoch) -> None:
        self._headers = receiver_headers(cluster_id)
        self._broker_id = broker_id
        self._store = store
        self._epoch = epoch

    async def send(
        self,
        changed: Iterable[TopicPartition],
        resigned: Iterable[ResignLeadership],
        failed: Iterable[ReportLogFailed],
    ) -> None:
        """Deliver all these reports in one call."""
        request = pb.ReportIsrChangesRequest(
            broker_id=self._broker_id,
            broker_epoch=self._epoch.value,
            partitions=[ref_to_proto(partition) for partition in changed],
            gives_up=[
                pb.GivenUpLeadership(
                    partition=ref_to_proto(one.partition), leader_epoch=one.leader_epoch, **one.identity._asdict()
                )
                for one in resigned
            ],
            failed=[
                pb.FailedReplica(
                    partition=ref_to_proto(one.partition),
                    leader_epoch=one.leader_epoch,
                    damaged=one.damaged,
                    cut=one.cut,
                    **one.identity._asdict(),
                )
                for one in failed
            ],
        )
        controller = await self._store.controller()
        if controller is None:
            raise TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, "there is no active controller")
        async with channel_for_call(controller.address, f"controller {controller.controller_id}") as channel:
            stub: Any = ControllerServiceStub(channel)
            await stub.ReportIsrChanges(request, timeout=_DEADLINE_S, metadata=self._headers)
