# SPDX-License-Identifier: Apache-2.0
"""`python -m tidemark.admin`: assembles and runs the admin service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from tidemark.runtime.collecting import no_collections

with no_collections():
    from tidemark.admin.acls import AclAdministration
    from tidemark.admin.auditing import AuditLines
    from tidemark.admin.brokers import BrokerAdministration
    from tidemark.admin.configs import ConfigAdministration
    from tidemark.admin.descriptions import Descriptions
    from tidemark.admin.elections import ElectionAdministration
    from tidemark.admin.log_dirs import DisksOfBrokers, LogDirAdministration
    from tidemark.admin.partitions import PartitionAdministration
    from tidemark.admin.quotas import QuotaAdministration
    from tidemark.admin.reassignments import ReassignmentAdministration
    from tidemark.admin.replica_sizes import ReplicaSizes
    from tidemark.admin.requests import AnsweredOnce
    from tidemark.admin.schemas import SchemaAdministration
    from tidemark.admin.servicer import SERVICE_NAME, AdminServicer
    from tidemark.admin.session import SessionKeeper
    from tidemark.admin.surveys import Survey, ThroughController
    from tidemark.admin.topics import TopicAdministration
    from tidemark.core.security.principals import Role
    from tidemark.rpc.limits.connections import limits_of
    from tidemark.rpc.quotas.enforcement import ClientQuotas
    from tidemark.rpc.quotas.metrics import QuotaMetrics
    from tidemark.rpc.raw_methods import add_admin_service
    from tidemark.rpc.receiver import ReceiverCheck
    from tidemark.rpc.security.audit_ring import keep_audit_lines
    from tidemark.rpc.security.authorization import cluster_in, make_authorization
    from tidemark.rpc.security.handshakes import NativeLines
    from tidemark.rpc.security.listeners import ListenerPort, identity_in
    from tidemark.rpc.security.scrapes import serve_metrics
    from tidemark.rpc.security.service import load_ports
    from tidemark.rpc.server import GrpcServer, Service
    from tidemark.runtime.clock import SystemClock
    from tidemark.runtime.configuration.settings import AdminSettings, load_settings
    from tidemark.runtime.logging import configure_logging
    from tidemark.runtime.metrics import METRICS, tell_what_runs
    from tidemark.runtime.service import end_process, run_until_stopped
    from tidemark.runtime.stalls import run_watched
    from tidemark.zookeeper.feeds import AclFeed, QuotaFeed
    from tidemark.zookeeper.store import store_of

_log = logging.getLogger("tidemark.admin")


async def serve(settings: AdminSettings, ports: Sequence[ListenerPort]) -> int:
    """Run the service until SIGTERM; returns the exit code of the process."""
    clock = SystemClock()
    store = store_of(settings, clock)
    tell_what_runs("admin")
    keep_audit_lines()
    authorization = make_authorization(settings, ports)
    failed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    rules = AclFeed(authorization.authorizer, store, clock, failed.set_exception)
    rules.show(METRICS)
    quotas = ClientQuotas(cluster_in(ports))
    quota_feed = QuotaFeed(quotas.use, store, clock, failed.set_exception)
    quota_feed.show(METRICS)
    METRICS.show(QuotaMetrics(quotas.accounts))
    receiver = ReceiverCheck()
    session = SessionKeeper(store, receiver, settings.zookeeper_connect)
    placing = asyncio.Lock()
    topics = TopicAdministration(
        store,
        default_replication_factor=settings.default_replication_factor,
        default_min_insync_replicas=settings.default_min_insync_replicas,
        writing=placing,
    )
    elections = ElectionAdministration(store, Survey(ThroughController(store)))
    sizes = ReplicaSizes(store, clock)
    log_dirs = LogDirAdministration(store, DisksOfBrokers(store, clock))
    reassignments = ReassignmentAdministration(store, sizes, log_dirs=log_dirs)
    servicer = AdminServicer(
        topics,
        elections,
        descriptions=Descriptions(store, settings.advertised_listeners.by_name),
        configs=ConfigAdministration(store),
        requests=AnsweredOnce(store, clock),
        reassignments=reassignments,
        partitions=PartitionAdministration(store, placing),
        brokers=BrokerAdministration(store, reassignments, sizes, clock),
        log_dirs=log_dirs,
        acls=AclAdministration(store, settings.super_users),
        quotas=QuotaAdministration(store),
        schemas=SchemaAdministration(store, clock),
        audit_lines=AuditLines(store, authorization_enabled=settings.authorization_enabled),
        of_callers=quotas,
        accesses=authorization.accesses,
        request_timeout_ms=settings.admin_request_timeout_ms,
    )
    service = Service(add_admin_service, servicer, SERVICE_NAME)
    stop = contextlib.AsyncExitStack()

    async def start() -> None:
        metrics = serve_metrics(settings, identity_in(ports))
        METRICS.show(store.metrics)
        stop.callback(METRICS.hide, store.metrics)
        stop.callback(metrics.close)
        health, gate = settings.health_listeners, authorization.gate
        server = GrpcServer(ports, [service], health=health, gate=gate, limits=limits_of(settings), receiver=receiver)
        await server.start()
        stop.push_async_callback(server.stop, settings.shutdown_grace_ms / 1000)
        stop.push_async_callback(session.stop)
        await session.start()
        await rules.start()
        stop.push_async_callback(rules.stop)
        await quota_feed.start()
        stop.push_async_callback(quota_feed.stop)
        await server.set_serving(True)
        stop.push_async_callback(server.stop, settings.shutdown_grace_ms / 1000)
        _log.info("serving", extra={"address": str(settings.listeners), "ports": list(server.ports.values())})

    with NativeLines(METRICS):
        path = settings.termination_message_path
        return await run_until_stopped(start, stop.aclose, failed=failed, termination_path=path)


def main() -> None:
    """Run the admin service."""
    settings = load_settings(AdminSettings)
    configure_logging(settings.log_level, settings.log_format, AdminSettings.owner)
    end_process(run_watched(serve(settings, load_ports(settings, Role.ADMIN))))


if __name__ == "__main__":
    main()
