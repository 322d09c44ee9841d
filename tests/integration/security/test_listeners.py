# SPDX-License-Identifier: Apache-2.0
"""One server with a listener of each kind: the identity of a caller on each, for calls of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode
from tidemark.rpc.channel import open_channel
from tidemark.rpc.security import token_file
from tidemark.rpc.security.callers import caller_of, listener_of_call
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.listeners import listener_ports
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenSource
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import Listeners
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)

from tests.integration.harness.certificates import signed_by
from tests.refusals import raises_code

NAMED = "internal://127.0.0.1:0,clients.mtls://127.0.0.1:0,clients.token://127.0.0.1:0"
SERVICE = "tidemark://shop/controller/100"


class Noting(BrokerServiceServicer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Listener, bool]] = []

    def note(self, context: Any) -> None:
        caller = caller_of(context)
        assert caller is not None
        self.seen.append((caller.name, listener_of_call(), caller.role is not None))

    async def GetMetadata(self, request: Any, context: Any) -> pb.GetMetadataResponse:  # noqa: N802
        self.note(context)
        return pb.GetMetadataResponse()

    async def WatchMetadata(self, request: Any, context: Any) -> AsyncIterator[pb.WatchMetadataResponse]:  # noqa: N802
        self.note(context)
        yield pb.WatchMetadataResponse()

    async def Produce(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.note(context)


class Shop:
    """A server; its clients have another authority than the cluster."""

    def __init__(self, directory: Path, rules: str = "") -> None:
        self.cluster = Authority.create(directory / "cluster", "shop")
        self.clients = Authority.create(directory / "clients", "shop")
        self.tokens = directory / "tokens"
        self.alice = token_file.create(self.tokens, "alice")
        hosts = ["127.0.0.1"]
        shown = self.clients.issue_service(Role.BROKER, "0", hosts)
        self.settings: Any = SimpleNamespace(
            clients_tls_ca_file=shown.ca,
            clients_tls_certificate_file=shown.certificate,
            clients_tls_key_file=shown.key,
            tls_principal_mapping_rules=rules,
            tokens_file=str(self.tokens),
            tokens_issuers_file="",
            tokens_clock_skew_ms=0,
        )
        self.refused: list[str] = []
        self.identity = TlsIdentity(self.cluster.issue_service(Role.BROKER, "0", hosts))
        ports = listener_ports(Listeners.parse(NAMED), self.identity, self.settings, self.refused.append)
        self.noting = Noting()
        service = Service(add_BrokerServiceServicer_to_server, self.noting, "tidemark.v1.BrokerService")
        self.server = GrpcServer(ports, [service])

    async def call(self, listener: Listener, identity: TlsIdentity) -> list[tuple[str, Listener, bool]]:
        """Call every kind of method; returns the caller as the server saw it."""
        self.noting.seen.clear()
        async with open_channel(f"127.0.0.1:{self.server.ports[listener]}", identity) as channel:
            stub: Any = BrokerServiceStub(channel)
            await stub.GetMetadata(pb.GetMetadataRequest(), timeout=30)
            assert [one async for one in stub.WatchMetadata(pb.WatchMetadataRequest(), timeout=30)]
            assert not [one async for one in stub.Produce(iter(()), timeout=30)]
        return self.noting.seen


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    made = Shop(tmp_path)
    await made.server.start()
    yield made
    await made.server.stop(0)


async def test_a_certificate_of_the_cluster_is_a_service_on_the_internal_listener(shop: Shop) -> None:
    identity = TlsIdentity(shop.cluster.issue_service(Role.CONTROLLER, "100", ["127.0.0.1"]))
    assert await shop.call(Listener.INTERNAL, identity) == [(SERVICE, Listener.INTERNAL, True)] * 3


async def test_the_authority_of_clients_makes_users_only(shop: Shop) -> None:
    forged = TlsIdentity(shop.clients.issue_service(Role.CONTROLLER, "100", ["127.0.0.1"]))
    assert await shop.call(Listener.MTLS, forged) == [(f"User:{SERVICE}", Listener.MTLS, False)] * 3
    trusting = forged.files._replace(ca=shop.cluster.files("ca").ca)
    with pytest.raises(grpc.aio.AioRpcError):
        await shop.call(Listener.INTERNAL, TlsIdentity(trusting))
    assert shop.noting.seen == []


async def test_a_subject_names_a_user_on_the_listener_of_clients_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "RULE:^CN=(.*)$/$1/U")
    await shop.server.start()
    try:
        for listener, name in ((Listener.MTLS, "User:CN=BY HAND"), (Listener.INTERNAL, "User:ANONYMOUS")):
            signed = signed_by(tmp_path / ("clients" if listener is Listener.MTLS else "cluster"), tmp_path / listener)
            seen = await shop.call(listener, TlsIdentity(signed))
            assert seen == [(name, listener, False)] * 3
    finally:
        await shop.server.stop(0)


async def test_rules_for_subjects_hold_on_the_one_port_too_and_other_text_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "DEFAULT")
    (port,) = listener_ports(Listeners.parse("127.0.0.1:0"), shop.identity, shop.settings)
    assert port.subjects is not None
    assert port.subjects.principal_of("CN=alice").name == "User:CN=alice"
    shop.settings.tls_principal_mapping_rules = "RULE:("
    with raises_code(ErrorCode.INVALID_CONFIG, r"tls\.principal\.mapping\.rules: expected RULE:PATTERN/NAME/"):
        listener_ports(Listeners.parse("127.0.0.1:0"), shop.identity, shop.settings)


async def test_a_token_is_its_user_also_beside_a_certificate(shop: Shop) -> None:
    path = shop.tokens.with_name("alice")
    path.write_text(shop.alice)
    ca = shop.clients.files("ca").ca
    for files in (TlsFiles(ca), shop.clients.issue_client("bob")):
        seen = await shop.call(Listener.TOKEN, TlsIdentity(files, TokenSource(path)))
        assert seen == [("User:token:alice", Listener.TOKEN, False)] * 3
    assert shop.refused == []


async def test_a_certificate_alone_is_refused_on_the_listener_for_tokens(shop: Shop) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await shop.call(Listener.TOKEN, TlsIdentity(shop.clients.issue_client("bob")))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (shop.noting.seen, shop.refused) == ([], ["missing"])
