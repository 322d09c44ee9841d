# SPDX-License-Identifier: Apache-2.0
"""Handshakes with damaged bytes: the server refuses them, and continues with others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles

from tests.fakes.grpc_server import make_server

HOST = "127.0.0.1"
CALL_S = 10.0
NOTHING = b"\x14\x03\x03\x00\x01\x01"
SILENCE_S = 0.05
"""A server that got less than it expects waits; so does the test, for a moment."""


class Served(NamedTuple):
    """A server that asks for certificates, and the files of a client."""

    port: int
    files: TlsFiles


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    authority = Authority.create(tmp_path_factory.mktemp("certs"), "shop")
    identity = TlsIdentity(authority.issue_service(Role.BROKER, "3", (HOST,)))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> int:
        server = make_server(HOST, 0, [], identity=identity)
        await server.start()
        ends.push_async_callback(server.stop, 0)
        return server.port

    ends = contextlib.AsyncExitStack()
    yield Served(asyncio.run_coroutine_threadsafe(start(), loop).result(CALL_S), authority.issue_client("alice"))
    asyncio.run_coroutine_threadsafe(ends.aclose(), loop).result(CALL_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    return context


class Damage(NamedTuple):
    """A change of one of the client's flights.

    Attributes:
        flight: 0: the hello; 1: certificate and proof of the key.
        where: place in the flight, as a fraction.
        junk: takes the place of `cut` bytes.
        cut: bytes.
    """

    flight: int
    where: float
    junk: bytes
    cut: int

    def done_to(self, flight: bytes) -> bytes:
        """The damaged flight. TLS 1.3 ignores ChangeCipherSpec and the first version, so these stay whole."""
        start = len(NOTHING) if flight.startswith(NOTHING) else 3
        at = start + int(self.where * (len(flight) - start))
        return flight[:at] + self.junk + flight[at + self.cut :]


DAMAGES = st.builds(
    Damage,
    st.integers(0, 1),
    st.floats(0, 1, exclude_max=True),
    st.binary(max_size=64),
    st.sampled_from([0, 1, 2, 16, 1 << 20]),
)


def answer_to(served: Served, damage: Damage) -> tuple[bool, bytes]:
    """Whether any byte was damaged, and the server's answer to the client; b"" if it refuses the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context_of(served.files).wrap_bio(incoming, outgoing, server_hostname=HOST)
    damaged = False
    with (
        socket.create_connection((HOST, served.port), timeout=CALL_S) as connection,
        contextlib.suppress(OSError),  # of the server's refusal, of its silence, or of OpenSSL here
    ):
        flight = 0
        part = b"the server's answers arrive in parts of any size"
        while part:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                return damaged, client.read(9)
            if whole := outgoing.read():
                sent = damage.done_to(whole) if flight == damage.flight else whole
                damaged |= sent != whole
                connection.sendall(sent)
                flight += 1
            connection.settimeout(SILENCE_S if damaged else CALL_S)
            part = connection.recv(1 << 16)
            incoming.write(part)
    return damaged, b""


SETTINGS_FRAME = b"\x04"


@settings(max_examples=80)
@given(DAMAGES)
@example(Damage(0, 0.0, b"", 0))
def test_a_damaged_handshake_is_refused_and_other_clients_are_served(served: Served, damage: Damage) -> None:
    damaged, answer = answer_to(served, damage)
    assert answer[3:4] == (b"" if damaged else SETTINGS_FRAME)
    with (
        socket.create_connection((HOST, served.port), timeout=CALL_S) as connection,
        context_of(served.files).wrap_socket(connection, server_hostname=HOST) as secured,
    ):
        assert secured.selected_alpn_protocol() == "h2"
        assert secured.recv(9)[3:4] == SETTINGS_FRAME
