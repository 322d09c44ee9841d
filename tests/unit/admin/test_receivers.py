# SPDX-License-Identifier: Apache-2.0
"""Calls of the admin service to a broker or the controller: another process at the address refuses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tidemark.admin.auditing import AuditLines
from tidemark.admin.configs import ConfigAdministration
from tidemark.admin.log_dirs import DisksOfBrokers
from tidemark.admin.replica_sizes import ReplicaSizes
from tidemark.admin.surveys import ThroughController
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.security.audit_lines import AuditFilter
from tidemark.core.security.listeners import Listener
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.codecs.alter_log_dirs import AlterLogDirs
from tidemark.rpc.log_dirs import Wanted
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort
from tidemark.v1 import admin_configs_pb2, alter_log_dirs_pb2, audit_pb2, controller_service_pb2
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer, add_BrokerServiceServicer_to_server
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server
from tidemark.zookeeper.store import MetadataStore

from tests.fakes.metadata_store import FakeZooKeeper, ManualClock
from tests.refusals import raises_code


class Broker(BrokerServiceServicer):
    async def DescribeLogDirs(self, request: object, context: object) -> AsyncIterator[pb.DescribeLogDirsResponse]:  # noqa: N802
        yield pb.DescribeLogDirsResponse()

    async def AlterReplicaLogDirs(  # noqa: N802
        self, request: object, context: object
    ) -> alter_log_dirs_pb2.AlterReplicaLogDirsResponse:
        return alter_log_dirs_pb2.AlterReplicaLogDirsResponse()

    async def DescribeBrokerConfigs(  # noqa: N802
        self, request: object, context: object
    ) -> admin_configs_pb2.DescribeBrokerConfigsResponse:
        entry = admin_configs_pb2.ConfigEntry(key="broker.rack", value="told")
        return admin_configs_pb2.DescribeBrokerConfigsResponse(entries=[entry])

    async def ListBrokerAuditLines(  # noqa: N802
        self, request: object, context: object
    ) -> audit_pb2.ListBrokerAuditLinesResponse:
        return audit_pb2.ListBrokerAuditLinesResponse()


class Controller(ControllerServiceServicer):
    async def AskReplicas(self, request: object, context: object) -> controller_service_pb2.AskReplicasResponse:  # noqa: N802
        return controller_service_pb2.AskReplicasResponse()


Call = Callable[[MetadataStore, BrokerRegistration], Awaitable[object]]


async def sizes(store: MetadataStore, broker: BrokerRegistration) -> object:
    """The sizes that the admin service knows of the broker; raises the error of a broker that has none."""
    found = await ReplicaSizes(store, ManualClock()).of([TopicPartition("flights", 0)], {broker.broker_id: broker})
    if broker.broker_id not in found:
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "this is a service of cluster other, perhaps")
    return found


async def configs(store: MetadataStore, broker: BrokerRegistration) -> object:
    """The settings of the broker; raises the error of a broker that reported none."""
    resource = ConfigResource(ConfigKind.BROKER, str(broker.broker_id))
    (rack,) = await ConfigAdministration(store).describe(resource, ["broker.rack"])
    if rack.value != "told":
        raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "this is a service of cluster other, perhaps")
    return rack


async def audit(store: MetadataStore, _: BrokerRegistration) -> object:
    """The audit log lines; raises the error of a broker that reported none."""
    _own, of_broker = await AuditLines(store, authorization_enabled=False).gather(AuditFilter())
    if of_broker.error is not None:
        raise of_broker.error
    return of_broker


CALLS: dict[str, Call] = {
    "describe": lambda store, broker: DisksOfBrokers(store, ManualClock()).describe(broker, Wanted()),
    "alter": lambda store, broker: DisksOfBrokers(store, ManualClock()).alter(broker, AlterLogDirs(())),
    "sizes": sizes,
    "configs": configs,
    "audit": audit,
    "survey": lambda store, broker: ThroughController(store).ask(broker.broker_id, BrokerEpoch(0), []),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_service_of_another_cluster_refuses_the_calls_of_the_admin_service(call: str) -> None:
    store: Any = FakeZooKeeper().store()
    await store.start()
    receiver = ReceiverCheck(1)
    receiver.cluster_id = await store.create_cluster_id()
    services = [
        Service(add_BrokerServiceServicer_to_server, Broker(), "tidemark.v1.BrokerService"),
        Service(add_ControllerServiceServicer_to_server, Controller(), "tidemark.v1.ControllerService"),
    ]
    port = ListenerPort(Listener.ONLY, HostPort("127.0.0.1", 0), None)
    server = GrpcServer([port], services, receiver=receiver)
    await server.start()
    assert await store.elect_controller(BrokerId(100), f"127.0.0.1:{server.port}")
    broker = BrokerRegistration(BrokerId(1), "127.0.0.1", server.port, directory_ids=("d",), boot_id="b")
    await store.register_broker(broker, clean=True, locked_directory_ids=frozenset("d"))
    try:
        await CALLS[call](store, broker)
        receiver.cluster_id = "other"
        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "this is a service of cluster other"):
            await CALLS[call](store, broker)
    finally:
        await server.stop(0)
        await store.stop()
