# SPDX-License-Identifier: Apache-2.0
"""The broker process: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc

from tidemark.broker.clients.clients import Clients
from tidemark.broker.clients.fetch import Purgatory
from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.clients.producer_ids import ProducerIds
from tidemark.broker.coordination.state_log import StateLogs
from tidemark.broker.groups.coordination import GroupCoordination
from tidemark.broker.lifecycle.advertised_address import check_advertised
from tidemark.broker.lifecycle.controlled_shutdown import ControlledShutdown
from tidemark.broker.lifecycle.readiness import Readiness
from tidemark.broker.lifecycle.registration import Registration, identity_of
from tidemark.broker.logs.storage import Storage, open_log_directories
from tidemark.broker.metrics.replicas import ReplicaMetrics
from tidemark.broker.node.broker_node import make_node, replication_config
from tidemark.broker.node.dynamic_config import DynamicConfig
from tidemark.broker.node.own_epoch import UNREGISTERED
from tidemark.broker.replication.replication import Replication
from tidemark.broker.transactions.coordination import TransactionCoordination
from tidemark.core.replication import effects as ef
from tidemark.core.replication.events import SessionExpired, SettingsChanged
from tidemark.core.security.listeners import Listener
from tidemark.model import BrokerEpoch, ErrorCode, TidemarkError
from tidemark.rpc.limits.connections import limits_of
from tidemark.rpc.quotas.enforcement import ClientQuotas
from tidemark.rpc.quotas.metrics import QuotaMetrics
from tidemark.rpc.raw_methods import add_broker_service, add_replica_service
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.rpc.security.audit_ring import keep_audit_lines
from tidemark.rpc.security.authorization import cluster_in, make_authorization
from tidemark.rpc.security.listeners import ListenerPort, identity_in
from tidemark.rpc.security.scrapes import serve_metrics
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.host_port import HostPort, Listeners
from tidemark.runtime.metrics import METRICS, tell_what_runs
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.storage.directories.log_directory import stored_cluster_id
from tidemark.storage.directories.log_manager import LogManager
from tidemark.v1.controller_service_pb2_grpc import add_BrokerControlServiceServicer_to_server
from tidemark.v1.group_service_pb2_grpc import add_GroupServiceServicer_to_server
from tidemark.v1.transaction_service_pb2_grpc import (
    add_TransactionCoordinationServicer_to_server,
    add_TransactionServiceServicer_to_server,
)
from tidemark.zookeeper.feeds import AclFeed, QuotaFeed
from tidemark.zookeeper.reachable import cluster_id_when_reachable

_SERVICES: Final = tuple(
    f"tidemark.v1.{name}"
    for name in (
        "BrokerService",
        "GroupService",
        "TransactionService",
        "TransactionCoordination",
        "ReplicaService",
        "BrokerControlService",
    )
)


class BrokerProcess:
    """A broker. `start` lists the steps in order; `stop` runs the callbacks that `start` put on the stack, last first.

    Attributes:
        failed: completes when the broker cannot continue; the process then ends.
    """

    def __init__(self, settings: BrokerSettings, ports: Sequence[ListenerPort]) -> None:
        tell_what_runs("broker")
        keep_audit_lines()
        self._settings = settings
        self._node = make_node(settings)
        self._identity = identity_in(ports)
        self._cluster = cluster_in(ports)
        self._authorization = make_authorization(settings, ports)
        self._receiver = ReceiverCheck(settings.broker_id)
        self._server = GrpcServer(
            ports,
            [],
            later=_SERVICES,
            health=settings.health_listeners,
            gate=self._authorization.gate,
            limits=limits_of(settings),
            receiver=self._receiver,
        )
        self._stack = AsyncExitStack()
        self.failed = self._node.failed

    async def start(self) -> None:
        """Start: session and logs, services NOT_SERVING, registration, services SERVING. Ready once in sync.

        The liveness check succeeds from the first step on.
        """
        on_stop = self._stack.push_async_callback
        async with AsyncExitStack() as opened:
            storage = Storage(self._node, await self._open(opened))
            self._parts(storage)
            storage.start()
            opened.pop_all()  # from here on, parts stop in the order below
        on_stop(self._close, storage)
        on_stop(storage.stop)
        on_stop(self._node.driver.stop)
        on_stop(self._server.stop, self._settings.shutdown_grace_ms / 1000 / 4)
        on_stop(self._groups.stop)
        on_stop(self._transactions.stop)
        on_stop(self._replication.stop_streams)
        on_stop(self._node.store.stop)
        self._node.driver.start()
        on_stop(self._replication.stop_isr_changes)
        on_stop(self._configs.stop)
        on_stop(self._rules.stop)
        on_stop(self._quotas.stop)
        self._stack.callback(self._answer_waiting)
        self._groups.coordinators.start()
        self._transactions.coordinators.start()
        await self._configs.start()
        await self._rules.start()
        await self._quotas.start()
        on_stop(self._leave_cluster)
        try:
            await self._registration.start()
        except TidemarkError as error:
            if error.code is ErrorCode.BROKER_ID_TAKEN:
                storage.logs.disown()
            raise
        on_stop(self._server.set_serving, False)
        await self._server.set_serving(True, ready=False)
        on_stop(self._hand_over)
        on_stop(self._readiness.stop)
        self._node.state.state = "running"
        self._readiness.start()

    async def stop(self) -> None:
        """Stop: not ready; controlled shutdown; NOT_SERVING; end all leaderships; answer the waiting requests. Then
        close the session, so that other replicas are elected immediately. Finally flush, and write the clean shutdown
        files.
        """
        self._node.state.state = "stopping"
        await self._stack.aclose()

    async def _open(self, opened: AsyncExitStack) -> LogManager:
        """Open the ports, the ZooKeeper session and the log directories; `opened` closes them after a failed start."""
        opened.push_async_callback(self._server.stop, 0)
        await self._server.start()
        self._stack.callback(serve_metrics(self._settings, self._identity).close)
        opened.push_async_callback(self._node.store.stop)
        return await self._check_and_prepare(opened)

    async def _check_and_prepare(self, opened: AsyncExitStack) -> LogManager:
        """Open session and logs while a health check proves that the advertised address leads to this process."""
        name = f"process/{uuid.uuid4().hex}"
        await self._server.answer_to(name)
        check = check_advertised(self._advertised().main, name, self._settings.advertised_check_timeout_ms)
        checking = asyncio.create_task(check, name="advertised address")
        preparing = asyncio.create_task(self._prepare(opened))
        try:
            _, logs = await asyncio.gather(checking, preparing)
            return logs
        finally:
            for one in (checking, preparing):
                one.cancel()
            await asyncio.wait((checking, preparing))

    async def _prepare(self, opened: AsyncExitStack) -> LogManager:
        known = await asyncio.to_thread(stored_cluster_id, self._settings.log_dirs)
        connect = self._settings.zookeeper_connect
        cluster_id = await cluster_id_when_reachable(self._node.store, connect, known=known)
        self._node.metadata.set_cluster_id(cluster_id)
        self._receiver.cluster_id = cluster_id
        logs = await open_log_directories(self._node)
        opened.callback(logs.close)
        return logs

    def _advertised(self) -> Listeners:
        """The advertised addresses, with the ports that the system chose."""
        ports = self._server.ports
        given = self._settings.advertised_listeners.by_name
        return Listeners.of(
            {name: HostPort(one.host, one.port or ports[Listener(name)]) for name, one in given.items()}
        )

    def _parts(self, storage: Storage) -> None:
        """Make all parts over the opened logs, and bind effects and RPCs to them. No part is started."""
        node, settings = self._node, self._settings
        self._storage = storage
        self._configs = DynamicConfig(settings, node.store, self._use_settings, node.driver.fail)
        self._shutdown = ControlledShutdown(
            max_wait_ms=settings.controlled_shutdown_max_wait_ms,
            leader_count=node.core.queries.leader_count,
            now_s=time.monotonic,
        )
        self._replication = replication = Replication(node, storage, self._shutdown.on_ping)
        quotas = ClientQuotas(self._cluster)
        METRICS.show(QuotaMetrics(quotas.accounts))
        self._purgatory = Purgatory()
        self._clients_and_coordinators(storage, quotas)
        self._quotas = QuotaFeed(quotas.use, node.store, node.clock, node.driver.fail)
        self._quotas.show(METRICS)
        self._rules = AclFeed(
            self._authorization.authorizer, node.store, node.clock, node.driver.fail, self._on_changed_rules
        )
        self._rules.show(METRICS)
        self._replica_metrics = ReplicaMetrics(
            node.broker_id, node.core.queries, storage.logs, node.clock.now_ms, node.metrics.topics.keep
        )
        self._replica_metrics.partitions = settings.metrics_partitions
        METRICS.show(self._replica_metrics)
        self._readiness = Readiness(
            node.broker_id,
            node.store,
            node.metadata,
            storage.logs.replicas,
            node.core.queries.role,
            self._server.set_ready,
            node.driver.fail,
        )
        advertised = self._advertised()
        endpoints = advertised.split(",") if advertised.several else ()
        self._registration = Registration(
            identity_of(settings.broker_id, advertised.host, advertised.port, settings.broker_rack, endpoints),
            node.metadata.view.cluster_id,
            node.store,
            storage.logs,
            node.driver,
            AsyncioScheduler(),
            self._on_epoch,
            trust_boot_id=settings.log_dirs_trust_boot_id,
        )
        node.driver.wire(
            {
                **storage.handlers(),
                **replication.handlers(),
                **self._clients.handlers(),
                ef.LeadershipChanged: self._on_leadership,
                ef.Observed: self._observe,
            }
        )
        self._serve()

    def _clients_and_coordinators(self, storage: Storage, quotas: ClientQuotas) -> None:
        """Make the parts that serve clients: coordinators append records, and check pending batches of producers."""
        node, from_followers = self._node, self._replication.from_followers
        appends, producer_ids = InternalAppends(node.driver.submit), ProducerIds(node.store, node.clock.wall_us)
        state_logs = StateLogs(
            node.core.queries,
            storage.threads,
            node.readers,
            self._purgatory,
            appends,
            node.lease,
            node.clock,
            storage.repairs.suspect,
        )
        self._transactions = TransactionCoordination(node, state_logs, producer_ids)
        self._clients = Clients(
            node,
            storage,
            self._configs,
            self._transactions.pending,
            producer_ids,
            appends,
            self._purgatory,
            lambda: from_followers.count,
            self._authorization.accesses,
            quotas,
        )
        self._groups = GroupCoordination(node, state_logs, self._clients.fetch, self._transactions.pending)

    def _serve(self) -> None:
        """Bind the RPCs to the parts."""
        servicers: tuple[tuple[Callable[[Any, grpc.aio.Server], None], object], ...] = (
            (add_broker_service, self._clients.service),
            (add_GroupServiceServicer_to_server, self._groups.service),
            (add_TransactionServiceServicer_to_server, self._transactions.service),
            (add_TransactionCoordinationServicer_to_server, self._transactions.internal_service),
            (add_replica_service, self._replication.from_followers),
            (add_BrokerControlServiceServicer_to_server, self._replication.control),
        )
        self._server.add([Service(*both, name) for both, name in zip(servicers, _SERVICES, strict=True)])

    def _observe(self, effect: ef.Observed) -> None:
        self._node.metrics.observe(effect)
        self._node.isr_history.observe(effect)
        self._storage.refused_chunks.observe(effect)

    def _on_leadership(self, effect: ef.LeadershipChanged) -> None:
        self._purgatory.on_leadership(effect)
        self._groups.coordinators.on_leadership(effect)
        self._transactions.coordinators.on_leadership(effect)

    def _on_changed_rules(self) -> None:
        """Open streams check the rights of their clients again."""
        self._node.metadata.send_again()
        self._purgatory.wake_all()

    def _on_epoch(self, broker_epoch: BrokerEpoch) -> None:
        """A registration was confirmed, or (UNREGISTERED) its session has ended."""
        self._node.epoch.value = broker_epoch
        self._readiness.on_epoch(broker_epoch)
        if broker_epoch != UNREGISTERED:
            self._configs.read_again()

    def _use_settings(self, settings: BrokerSettings) -> None:
        """Apply the settings of scope broker-dynamic."""
        logging.getLogger().setLevel(settings.log_level.upper())
        self._node.driver.submit(SettingsChanged(replication_config(settings)))
        self._replica_metrics.partitions = settings.metrics_partitions
        self._groups.use_settings(settings)
        self._storage.dir_moves.use_throttle(settings.replica_alter_log_dirs_io_max_bytes_per_second)

    async def _hand_over(self) -> None:
        """Controlled shutdown, unless this broker is not registered or has failed."""
        if self._node.epoch.value != UNREGISTERED and not self.failed.done():
            await self._shutdown.run(announce=self._replication.control.want_shutdown, failed=self.failed)

    async def _leave_cluster(self) -> None:
        """Leaders would add a follower that still fetches to ISRs again."""
        await self._replication.stop_following()
        await self._registration.stop()
        self._on_epoch(UNREGISTERED)
        self._node.driver.submit(SessionExpired())

    def _answer_waiting(self) -> None:
        """Refuse all new requests, and answer every waiting request."""
        self._groups.coordinators.stop()
        self._transactions.coordinators.stop()
        self._clients.stop()
        self._node.metadata.close()
        self._replication.control.stop()

    async def _close(self, storage: Storage) -> None:
        await storage.close(self._registration.broker_epoch)
