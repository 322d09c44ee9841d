# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""The controller's gRPC service."""

from __future__ import annotations

from tidemark.controller.loop import ControllerLoop
from tidemark.controller.term import ActiveTerm
from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import IsrChangesReported, LeadershipResigned, ReplicaFailed
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, ReplicaIdentity, TidemarkError
from tidemark.rpc.codecs.control import descriptions_to_proto, held_to_proto, questions_from_proto, refusals_to_proto
from tidemark.rpc.codecs.refs import ref_from_proto
from tidemark.rpc.security.callers import check_id
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceServicer


class ControllerServicer(ControllerServiceServicer):
    """ControllerService over a `ControllerLoop`; only an active controller within its lease answers."""

    def __init__(self, loop: ControllerLoop, controller_id: BrokerId) -> None:
        self._loop = loop
        self._controller_id = controller_id

    async def ReportIsrChanges(
        self, request: pb.ReportIsrChangesRequest, context: object
    ) -> pb.ReportIsrChangesResponse:
        """Read the states of these partitions again; elect leaders for resigned and failed replicas."""
        check_id(context, request.broker_id)
        term = self._term()
        partitions = tuple(map(ref_from_proto, request.partitions))
        if partitions:
            term.submit(IsrChangesReported(partitions))
        broker, broker_epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
        for one in request.gives_up:
            resigned, leader_epoch = ref_from_proto(one.partition), LeaderEpoch(one.leader_epoch)
            term.submit(LeadershipResigned(broker, broker_epoch, resigned, leader_epoch, _identity_of(one)))
        for other in request.failed:
            failed, leader_epoch = ref_from_proto(other.partition), LeaderEpoch(other.leader_epoch)
            known = (other.damaged, other.cut, _identity_of(other))
            term.submit(ReplicaFailed(broker, broker_epoch, failed, leader_epoch, *known))
        return pb.ReportIsrChangesResponse()

    async def AskReplicas(self, request: pb.AskReplicasRequest, context: object) -> pb.AskReplicasResponse:
        """Describe replicas of partitions without a leader, so that an operator can elect one."""
        questions = tuple(questions_from_proto(request.replicas))
        broker, broker_epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
        answer = await self._term().describe_replicas(DescribeReplicas(broker, 0, broker_epoch, questions))
        if answer.error is not None:
            raise answer.error
        return pb.AskReplicasResponse(
            replicas=descriptions_to_proto(answer.described),
            errors=refusals_to_proto(answer.refused.items()),
            held=held_to_proto(answer.held),
        )

    async def DescribeController(
        self, request: pb.DescribeControllerRequest, context: object
    ) -> pb.DescribeControllerResponse:
        """Whether this controller is active, its epoch, and the brokers it suspects."""
        term = self._loop.term
        response = pb.DescribeControllerResponse(controller_id=self._controller_id, active=term is not None)
        if term is not None:
            response.controller_epoch = term.term.epoch
            response.suspected.extend(sorted(term.core.suspected))
        return response

    def _term(self) -> ActiveTerm:
        term = self._loop.term
        if term is None:
            raise _not_active("this controller is a standby; /controller names the active one")
        if not self._loop.is_within_lease():
            raise _not_active("this controller may have been replaced; /controller names the active one")
        if not term.has_begun:
            raise _not_active("this controller was just elected and still reads ZooKeeper; retry")
        return term


def _identity_of(report: pb.GivenUpLeadership | pb.FailedReplica) -> ReplicaIdentity | None:
    """The replica that a report concerns; None from a broker of version 0.1.0."""
    return ReplicaIdentity(report.topic_id, report.incarnation) if report.topic_id else None


def _not_active(message: str) -> TidemarkError:
    return TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, message)
