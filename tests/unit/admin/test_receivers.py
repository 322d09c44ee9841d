# SPDX-License-Identifier: Apache-2.0
"""Calls of the admin service to a broker or the controller: another one at the address refuses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tidemark.admin.log_dirs import DisksOfBrokers
from tidemark.admin.surveys import ThroughController
from tidemark.core.security.listeners import Listener
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ErrorCode
from tidemark.ports import MetadataStore
from tidemark.rpc.codecs.alter_log_dirs import AlterLogDirs
from tidemark.rpc.log_dirs import Wanted
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort
from tidemark.v1 import alter_log_dirs_pb2, controller_service_pb2
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer, add_BrokerServiceServicer_to_server
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server

from tests.fakes.metadata_store import FakeZooKeeper, ManualClock
from tests.refusals import raises_code


class Broker(BrokerServiceServicer):
    async def DescribeLogDirs(self, request: object, context: object) -> AsyncIterator[pb.DescribeLogDirsResponse]:  # noqa: N802
        yield pb.DescribeLogDirsResponse()

    async def AlterReplicaLogDirs(  # noqa: N802
        self, request: object, context: object
    ) -> alter_log_dirs_pb2.AlterReplicaLogDirsResponse:
        return alter_log_dirs_pb2.AlterReplicaLogDirsResponse()


class Controller(ControllerServiceServicer):
    async def AskReplicas(self, request: object, context: object) -> controller_service_pb2.AskReplicasResponse:  # noqa: N802
        return controller_service_pb2.AskReplicasResponse()


Call = Callable[[MetadataStore, BrokerRegistration], Awaitable[object]]
CALLS: dict[str, Call] = {
    "describe": lambda store, broker: DisksOfBrokers(store, ManualClock()).describe(broker, Wanted()),
    "alter": lambda store, broker: DisksOfBrokers(store, ManualClock()).alter(broker, AlterLogDirs(())),
    "survey": lambda store, broker: ThroughController(store).ask(broker.broker_id, BrokerEpoch(0), []),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_service_of_another_cluster_refuses_the_calls_of_the_admin_service(call: str) -> None:
    store: Any = FakeZooKeeper().store()
    await store.start()
    receiver = ReceiverCheck(1)
    services = [
        Service(add_BrokerServiceServicer_to_server, Broker(), "tidemark.v1.BrokerService"),
        Service(add_ControllerServiceServicer_to_server, Controller(), "tidemark.v1.ControllerService"),
    ]
    port = ListenerPort(Listener.ONLY, HostPort("127.0.0.1", 0), None)
    server = GrpcServer([port], services, receiver=receiver)
    await server.start()
    assert await store.elect_controller(BrokerId(100), f"127.0.0.1:{server.port}")
    broker = BrokerRegistration(BrokerId(1), "127.0.0.1", server.port)
    for cluster_id, is_refused in ((await store.cluster_id(), False), ("other", True)):
        receiver.cluster_id = cluster_id
        if is_refused:
            with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "this is a service of cluster other"):
                await CALLS[call](store, broker)
        else:
            await CALLS[call](store, broker)
    await server.stop(0)
    await store.stop()
