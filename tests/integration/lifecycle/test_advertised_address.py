# SPDX-License-Identifier: Apache-2.0
"""The advertised address of a broker is called before it registers: it must lead to this very process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tidemark.broker.lifecycle import advertised_address
from tidemark.broker.lifecycle.advertised_address import check_advertised
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.ports import HeldPorts
from tidemark.model import ErrorCode
from tidemark.rpc.channel import use_identity
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.server import GrpcServer
from tidemark.runtime.host_port import HostPort

from tests.fakes.grpc_server import make_server
from tests.refusals import raises_code

ME = "process/me"
HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def listening(name: str, port: int = 0, identity: TlsIdentity | None = None) -> AsyncIterator[GrpcServer]:
    server = make_server(HOST, port, [], identity=identity)
    await server.start()
    await server.answer_to(name)
    try:
        yield server
    finally:
        await server.stop(0)


@pytest.fixture
def unheard_port() -> Iterator[int]:
    """A port at which no process listens until the test does."""
    ports = HeldPorts()
    ports.take("unused", 0)
    ports.hand_over()
    yield ports["unused"]
    ports.release()


async def refusal(address: HostPort, timeout_ms: int = 700) -> str:
    with raises_code(ErrorCode.ADVERTISED_ADDRESS_UNREACHABLE) as refused:
        async with asyncio.timeout(15):
            await check_advertised(address, ME, timeout_ms)
    assert f"advertised.listeners is {address}" in refused.value.message
    assert "\n" not in refused.value.message
    return refused.value.message


async def test_an_address_that_leads_here_is_accepted_at_once() -> None:
    async with listening(ME) as server:
        for host in (HOST, "localhost"):
            async with asyncio.timeout(10):
                await check_advertised(HostPort(host, server.port), ME, 60_000)


async def test_an_address_without_a_listener_is_refused_with_the_cause(unheard_port: int) -> None:
    assert "no process listens there" in await refusal(HostPort(HOST, unheard_port))


async def test_a_name_that_dns_does_not_know_is_refused_with_the_cause() -> None:
    assert "the name no-such-broker.invalid cannot be resolved" in await refusal(HostPort("no-such-broker.invalid", 9))


async def test_a_name_that_no_name_can_be_is_refused_with_the_cause() -> None:
    assert "cannot be resolved" in await refusal(HostPort("a" * 70 + ".invalid", 9))


async def test_an_address_where_another_process_answers_is_refused() -> None:
    async with listening("process/other") as other:
        assert f"another process answers at {HOST}:{other.port}" in await refusal(HostPort(HOST, other.port))


async def test_an_address_where_something_else_listens_is_refused() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, HOST, 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        assert "does not answer as a broker" in await refusal(HostPort(HOST, port))


async def test_an_address_that_never_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(advertised_address.asyncio, "open_connection", never)
    assert f"{HOST}:9 does not answer within 0.3 s" in await refusal(HostPort(HOST, 9), timeout_ms=300)


async def test_a_dns_that_does_not_answer_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: object, **named: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    assert "DNS did not answer for slow.example" in await refusal(HostPort("slow.example", 9), timeout_ms=300)


async def test_an_address_that_leads_here_only_later_is_waited_for(unheard_port: int) -> None:
    checking = asyncio.create_task(check_advertised(HostPort(HOST, unheard_port), ME, 60_000))
    assert not (await asyncio.wait({checking}, timeout=0.2))[0]
    async with listening(ME, unheard_port):
        async with asyncio.timeout(15):
            await checking


async def test_a_name_that_also_resolves_to_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's name instead of the pod's: some of its resolutions lead to this broker."""

    async def both(host: str, timeout_s: float) -> list[str]:
        return [HOST, "127.0.0.2"]

    monkeypatch.setattr(advertised_address, "_resolve", both)
    async with listening(ME) as server:
        other = make_server("127.0.0.2", server.port, [])
        await other.start()
        try:
            assert "another process answers at 127.0.0.2" in await refusal(HostPort("brokers.example", server.port))
        finally:
            await other.stop(0)


async def test_the_check_can_be_switched_off(unheard_port: int) -> None:
    await check_advertised(HostPort(HOST, unheard_port), ME, 0)


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[TlsIdentity]:
    """The TLS files of this process, whose authority did not sign the certificate."""
    files = identity_of("one", tmp_path).files._replace(ca=identity_of("other", tmp_path).files.ca)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(Path(files.ca).read_bytes())
    identity = TlsIdentity(files._replace(ca=str(ca)))
    use_identity(identity)
    yield identity
    use_identity(None)


def identity_of(cluster: str, directory: Path) -> TlsIdentity:
    return TlsIdentity(Authority.create(directory / cluster, cluster).issue_service(Role.BROKER, "1", [HOST]))


async def test_a_broker_that_does_not_accept_its_certificate_waits_for_other_files(
    untrusted: TlsIdentity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(advertised_address, "_LOG_S", 0.1)
    caplog.set_level(logging.ERROR, advertised_address.__name__)
    async with listening(ME, identity=untrusted) as server, asyncio.timeout(60):
        checking = asyncio.create_task(check_advertised(HostPort(HOST, server.port), ME, timeout_ms=2000))
        while caplog.text.count("waiting for other TLS files") < 6:
            assert not checking.done()
            await asyncio.sleep(0.05)
        assert "does not accept its own certificate" in str(caplog.records[-1].__dict__["why"])
        authority = tmp_path / "one" / "ca.crt"
        (tmp_path / "new").write_bytes(authority.read_bytes())
        (tmp_path / "new").rename(tmp_path / "ca.crt")
        await checking


async def test_an_address_where_another_cluster_answers_is_refused(untrusted: TlsIdentity, tmp_path: Path) -> None:
    assert untrusted.files.certificate
    async with listening(ME, identity=identity_of("third", tmp_path)) as stranger:
        assert "the certificate of the server is not accepted" in await refusal(HostPort(HOST, stranger.port))
