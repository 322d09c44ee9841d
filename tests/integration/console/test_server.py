# SPDX-License-Identifier: Apache-2.0
"""The console's HTTP server: HTTPS, refused settings, streams that share their work."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tidemark.console.app import STREAMS_MAX, Console
from tidemark.console.metrics import ConsoleMetrics
from tidemark.console.page import Asked, Page, View
from tidemark.console.pages import overview
from tidemark.console.server import HttpServer, open_socket
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.host_port import HostPort
from tidemark.runtime.metrics import Metrics

from tests.integration.harness.group_member import until
from tests.refusals import raises_code
from tests.unit.console.conftest import FakeClients, FakeCluster

ANY_PORT = HostPort("127.0.0.1", 0)
EVENTS = {"Accept": "text/event-stream"}
OPEN_PAGES = 50
LOOKS = 5
LARGE = 64 << 20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 9\r\n\r\ntok"


class CountedPage:
    """The overview, and the number of times that it was made."""

    def __init__(self) -> None:
        self.made = 0

    async def load(self, asked: Asked) -> View:
        self.made += 1
        return await overview.load(asked)


@asynccontextmanager
async def serving(load: Any = overview.load, **options: Any) -> AsyncIterator[HttpServer]:
    clients: Any = FakeClients(FakeCluster())
    pages = (Page("overview", "/", load, "Overview"),)
    console = Console(clients, refresh_ms=200, pages=pages, metrics=ConsoleMetrics(Metrics()))
    server = HttpServer(console.app, ANY_PORT, grace_s=1, **options)
    await server.start()
    try:
        yield server
    finally:
        console.stop_streams()
        await server.stop()


async def large(scope: Any, receive: Any, send: Any) -> None:
    """An application whose responses are larger than the buffers of the system."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        await send({"type": "http.response.body", "body": bytes(LARGE)})


async def test_open_pages_at_one_address_share_the_making_of_their_updates() -> None:
    page = CountedPage()
    async with (
        serving(page.load) as server,
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=30) as client,
        asyncio.TaskGroup() as tasks,
    ):

        async def tab() -> None:
            looks = 0
            async with client.stream("GET", f"http://localhost:{server.port}/", headers=EVENTS) as response:
                async for line in response.aiter_lines():
                    looks += line == "event: alive"
                    if looks == LOOKS:
                        return

        for _ in range(OPEN_PAGES):
            tasks.create_task(tab())
    assert page.made < OPEN_PAGES * LOOKS / 5


async def test_too_many_open_pages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STREAMS_MAX >= 100
    monkeypatch.setattr("tidemark.console.app.STREAMS_MAX", 1)
    async with (
        serving() as server,
        httpx.AsyncClient(base_url=f"http://localhost:{server.port}", timeout=5) as client,
        client.stream("GET", "/", headers=EVENTS) as first,
    ):
        chunks = first.aiter_raw()
        await anext(chunks)
        async with client.stream("GET", "/", headers=EVENTS) as second:
            assert second.status_code == 503
        assert (await client.get("/")).status_code == 200
        await chunks.aclose()


async def test_the_console_serves_https(tmp_path: Path) -> None:
    files = Authority.create(tmp_path, "local").issue_service(Role.ADMIN, "admin", ("127.0.0.1", "localhost"))
    trust = ssl.create_default_context(cafile=files.ca)
    async with (
        serving(certificate_file=files.certificate, key_file=files.key) as server,
        httpx.AsyncClient(verify=trust) as client,
    ):
        page = await client.get(f"https://localhost:{server.port}/")
    assert (page.status_code, page.headers["x-frame-options"]) == (200, "DENY")


async def test_a_handshake_uses_the_newest_certificate_that_fits_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidemark.rpc.security.changed_file._CHECK_S", 0.0)
    names = ("127.0.0.1", "localhost")
    old, new = (Authority.create(tmp_path / one, "local").issue_service(Role.ADMIN, one, names) for one in "ab")
    certificate, key = (Path(shutil.copy(path, tmp_path)) for path in (old.certificate, old.key))

    async def is_trusted(authority: str) -> bool:
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=authority)) as client:
            try:
                return (await client.get(f"https://localhost:{server.port}/")).status_code == 200
            except httpx.ConnectError:
                return False

    async with serving(certificate_file=str(certificate), key_file=str(key)) as server:
        assert await is_trusted(old.ca)
        replace(new.certificate, certificate)
        assert await is_trusted(old.ca), "the new certificate has no key yet"
        assert f"{certificate} and {key} changed, and the change is not used: " in caplog.text
        replace(new.key, key)
        assert await is_trusted(new.ca)
        assert not await is_trusted(old.ca)
        certificate.unlink()
        assert await is_trusted(new.ca), "a missing file keeps the certificate in use"


def replace(source: str, target: Path) -> None:
    """Replace a file by a copy, as a renewal does."""
    shutil.copy(source, target.with_suffix(".new")).rename(target)


async def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with raises_code(ErrorCode.INVALID_CONFIG, r"https\.certificate\.file and https\.key\.file cannot be used"):
        async with serving(certificate_file=str(broken), key_file=str(broken)):
            pass


@pytest.mark.parametrize("sent", [b"", GET[:-2], POST], ids=["nothing", "headers", "form"])
async def test_a_connection_without_a_whole_request_ends(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 0.2)
    async with serving() as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        await reader.read()  # the end
        writer.close()


async def test_an_idle_connection_with_tls_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 0.2)
    files = Authority.create(tmp_path, "local").issue_service(Role.ADMIN, "admin", ("127.0.0.1", "localhost"))
    trust = ssl.create_default_context(cafile=files.ca)
    async with serving(certificate_file=files.certificate, key_file=files.key) as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=trust)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.transport.abort()


async def test_a_connection_whose_client_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 0.2)
    server = HttpServer(large, ANY_PORT, grace_s=1)
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(GET)
        await until(lambda: server.connections == 1, lambda: "the server has the connection")
        await until(lambda: server.connections == 0, lambda: "the connection ends")
    await server.stop()


async def test_a_connection_whose_client_reads_slowly_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 0.2)
    server = HttpServer(large, ANY_PORT, grace_s=1)
    await server.start()
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=LARGE >> 5)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(16):
            await reader.readexactly(LARGE >> 4)
            await asyncio.sleep(0.05)
        writer.close()
    await server.stop()


async def test_a_connection_whose_client_reads_a_little_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes more from the server only when a large part of its own buffer is free."""
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 1.0)
    server = HttpServer(large, ANY_PORT, grace_s=1)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
    writer.write(GET)
    for _ in range(15):
        await reader.readexactly(1 << 16)
        await asyncio.sleep(0.2)
    assert server.connections == 1
    writer.close()
    await server.stop()


async def test_a_page_with_live_updates_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.connections.CLIENT_S", 0.2)
    looks = 0
    async with (
        serving() as server,
        httpx.AsyncClient(timeout=30) as client,
        client.stream("GET", f"http://localhost:{server.port}/", headers=EVENTS) as response,
    ):
        async for line in response.aiter_lines():
            looks += line == "event: alive"
            if looks == 2 * LOOKS:
                return


async def test_idle_connections_of_a_client_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.console.server._CONNECTIONS_MAX", 8)
    async with serving() as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        async with httpx.AsyncClient(timeout=5) as client:
            assert (await client.get(f"http://localhost:{server.port}/healthz")).status_code == 200
        for _, writer in idle:
            writer.close()


def test_a_connection_of_the_server_sends_at_once() -> None:
    with open_socket(ANY_PORT) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_address_in_use_is_refused() -> None:
    async with serving() as server:
        second = HttpServer(lambda *_: None, HostPort("127.0.0.1", server.port))
        with pytest.raises(TidemarkError, match=r"console\.listeners is 127\.0\.0\.1:\d+: cannot listen there"):
            await second.start()
        await second.stop()
