# SPDX-License-Identifier: Apache-2.0
"""A controller process's life: stand by, be elected, serve a term, stand by again (rules Z1, C3)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidemark.controller.metrics import ControllerMetrics
from tidemark.controller.term import ActiveTerm
from tidemark.core.controller.effects import DescribeReplicas
from tidemark.core.controller.events import IsrChangesReported, LeadershipResigned, ReplicaFailed
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, LeaderEpoch, TidemarkError
from tidemark.ports import Clock, MetadataStore, StoreEvent
from tidemark.rpc.control_codec import descriptions_to_proto, questions_from_proto, refusals_to_proto
from tidemark.rpc.refs import ref_from_proto
from tidemark.runtime.configuration import ControllerSettings
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceServicer

_log = logging.getLogger(__name__)
_POLL_S: Final = 2.0
"""A standby looks at /controller this often even when no watch fires."""
_RETRY_S: Final = 0.2


class ControllerLoop:
    """Stands for election and runs its terms."""

    def __init__(
        self, settings: ControllerSettings, store: MetadataStore, clock: Clock, metrics: ControllerMetrics
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._controller_id = BrokerId(settings.controller_id)
        self._news = asyncio.Event()
        self._expired = False
        self.term: ActiveTerm | None = None
        self.address = str(settings.advertised_listeners)
        store.listen(self._on_store_event)

    def holds_office(self) -> bool:
        """Whether nobody can have been elected in its place: past its lease what it is told might reach nobody."""
        return self.term is not None and self._clock.now_ms() < self._store.lease_valid_until_ms()

    async def run(self) -> None:
        """For ever; cancelled to stop. The session is started by the caller."""
        while True:
            try:
                await self._one_round()
            except TidemarkError as error:
                _log.warning("ZooKeeper did not answer", extra={"why": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _one_round(self) -> None:
        if self._expired:
            await self._store.new_session()
            self._expired = False
        self._news.clear()
        holder = await self._store.controller(watch=True)
        won = None
        if holder is None or holder.controller_id == self._controller_id:
            won = await self._store.elect_controller(self._controller_id, self.address)
        if won is None:
            await self._wait_for_news()
            return
        _log.info("elected", extra={"controller_epoch": won.epoch})
        term = ActiveTerm(won, await self._store.cluster_id(), self._settings, self._store, self._clock, self._metrics)
        self.term = term
        self._metrics.term_begins(won.epoch, term.queue_size)
        try:
            await term.start()
            await term.ended.wait()
        finally:
            self.term = None
            await term.stop()
            self._metrics.term_ends()
            if not self._expired:
                await self._resign(term)
        await asyncio.sleep(_RETRY_S)  # a standby goes first

    async def _resign(self, term: ActiveTerm) -> None:
        try:
            await self._store.resign(term.term)
        except TidemarkError as error:
            _log.info("could not resign; the session's end does it", extra={"why": str(error)})

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(_POLL_S):
                await self._news.wait()
        except TimeoutError:
            return

    def _on_store_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired = True
            if self.term is not None:
                self.term.ended.set()
        if event in (StoreEvent.CONTROLLER, StoreEvent.SESSION_EXPIRED, StoreEvent.SESSION_RESTORED):
            self._news.set()
        if self.term is not None:
            if event is StoreEvent.SESSION_RESTORED:
                for missed in (StoreEvent.BROKERS, StoreEvent.TOPICS):
                    self.term.hint(missed)
            self.term.hint(event)


class ControllerServicer(ControllerServiceServicer):
    """ControllerService over the loop."""

    def __init__(self, loop: ControllerLoop, controller_id: BrokerId) -> None:
        self._loop = loop
        self._controller_id = controller_id

    async def ReportIsrChanges(  # noqa: N802
        self, request: pb.ReportIsrChangesRequest, context: object
    ) -> pb.ReportIsrChangesResponse:
        """Read those nodes again, and find others for what is given up or has failed."""
        term = self._term()
        partitions = tuple(map(ref_from_proto, request.partitions))
        if partitions:
            term.submit(IsrChangesReported(partitions))
        broker, broker_epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
        for one in request.gives_up:
            term.submit(
                LeadershipResigned(broker, broker_epoch, ref_from_proto(one.partition), LeaderEpoch(one.leader_epoch))
            )
        for other in request.failed:
            partition, leader_epoch = ref_from_proto(other.partition), LeaderEpoch(other.leader_epoch)
            term.submit(ReplicaFailed(broker, broker_epoch, partition, leader_epoch, other.damaged))
        return pb.ReportIsrChangesResponse()

    async def AskReplicas(  # noqa: N802
        self, request: pb.AskReplicasRequest, context: object
    ) -> pb.AskReplicasResponse:
        """What replicas hold that nobody leads, for people who may want to elect one."""
        questions = tuple(questions_from_proto(request.replicas))
        broker, broker_epoch = BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch)
        told = await self._term().ask(DescribeReplicas(broker, 0, broker_epoch, questions))
        if told.error is not None:
            raise told.error
        return pb.AskReplicasResponse(
            replicas=descriptions_to_proto(told.described), errors=refusals_to_proto(told.refused.items())
        )

    async def DescribeController(  # noqa: N802
        self, request: pb.DescribeControllerRequest, context: object
    ) -> pb.DescribeControllerResponse:
        """Active or not."""
        term = self._loop.term
        response = pb.DescribeControllerResponse(controller_id=self._controller_id, active=term is not None)
        if term is not None:
            response.controller_epoch = term.term.epoch
            response.suspected.extend(sorted(term.core.suspected))
        return response

    def _term(self) -> ActiveTerm:
        term = self._loop.term
        if term is None:
            raise TidemarkError(ErrorCode.CONTROLLER_NOT_ACTIVE, "this controller stands by; ask /controller who acts")
        if not self._loop.holds_office():
            raise TidemarkError(
                ErrorCode.CONTROLLER_NOT_ACTIVE, "this controller may have been replaced; ask /controller who acts"
            )
        if not term.has_begun:
            raise TidemarkError(
                ErrorCode.CONTROLLER_NOT_ACTIVE, "this controller was elected just now and still reads; ask again"
            )
        return term
