# SPDX-License-Identifier: Apache-2.0
"""TLS to a server that speaks a part of ZooKeeper's protocol, and divides its answers into records of any size."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.security.paths import TlsFiles
from tidemark.zookeeper.security.tls import ZooKeeperTls, tls_of

HOST = "127.0.0.1"
PATIENCE_S = 20.0
STALL_S = 1.0
SESSION_MS = 12_000


class Peer:
    """The server's side of one connection; the test decides when its records are sent."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self.connection = connection
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        try:
            self._until(self._tls.do_handshake)
        finally:
            self._send()  # the alert, too

    def record(self, content: bytes) -> bytes:
        self._tls.write(content)
        return self._out.read()

    def request(self) -> bytes:
        """The next request, without its length."""
        (length,) = struct.unpack(">i", self._take(4))
        return self._take(length)

    def _take(self, length: int) -> bytes:
        taken = b""
        while len(taken) < length:
            taken += self._until(partial(self._tls.read, length - len(taken)))
        return taken

    def _until(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._send()
                arrived = self.connection.recv(65536)
                if not arrived:
                    raise ConnectionError("the client has left") from None
                self._in.write(arrived)

    def _send(self) -> None:
        if self._out.pending:
            self.connection.sendall(self._out.read())


class Server:
    """Serves each connection with `play`."""

    def __init__(self, files: TlsFiles, play: Callable[[Peer], None]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        self._context.load_verify_locations(files.ca)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._play = play
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self._play(Peer(connection, self._context))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certs", "shop")


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    return authority.issue_service(Role.BROKER, "0", [HOST])


Serve = Callable[[Callable[[Peer], None]], Server]


@pytest.fixture
def serve(authority: Authority) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(play: Callable[[Peer], None]) -> Server:
        servers.append(Server(authority.issue_zookeeper("1", [HOST]), play))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def answer_to(request: bytes) -> bytes:
    """An empty stat, for a request of `exists`."""
    (xid,) = struct.unpack_from(">i", request)
    return framed(struct.pack(">iqi", xid, 1, 0) + bytes(68))


def three_answers_in_one_record(peer: Peer) -> None:
    peer.request()
    accepted = struct.pack(">iiqi", 0, SESSION_MS, 7, 16) + bytes(16) + b"\0"
    peer.connection.sendall(peer.record(framed(accepted)))
    answers = b"".join(answer_to(peer.request()) for _ in range(3))
    peer.connection.sendall(peer.record(answers))
    peer.request()


def seconds_of_three_requests(client: Any) -> float:
    client.start(PATIENCE_S)
    began_s = time.monotonic()
    answers = [client.exists_async(f"/{index}") for index in range(3)]
    for answer in answers:
        with contextlib.suppress(client.handler.timeout_exception):
            answer.get(timeout=max(0.0, began_s + STALL_S - time.monotonic()))
    return time.monotonic() - began_s


def test_answers_that_share_a_record_of_tls_do_not_wait_for_the_next_ping(serve: Serve, files: TlsFiles) -> None:
    server = serve(three_answers_in_one_record)
    client = KazooClient(f"{HOST}:{server.port}", timeout=SESSION_MS / 1000, handler=ZooKeeperTls(files).handler())
    try:
        assert seconds_of_three_requests(client) < STALL_S
    finally:
        client.stop()
        client.close()


def test_the_handler_of_kazoo_itself_lets_them_wait(serve: Serve, files: TlsFiles) -> None:
    """The reason for Tidemark's own handler, which is obsolete once kazoo selects better."""
    server = serve(three_answers_in_one_record)
    client = KazooClient(
        f"{HOST}:{server.port}",
        timeout=SESSION_MS / 1000,
        use_ssl=True,
        ca=files.ca,
        certfile=files.certificate,
        keyfile=files.key,
    )
    try:
        assert seconds_of_three_requests(client) >= STALL_S
    finally:
        client.stop()
        client.close()


def test_a_part_of_a_record_is_not_readable_yet(serve: Serve, files: TlsFiles) -> None:
    """kazoo sends no request while it reads an answer."""
    go_on = threading.Event()

    def in_two_parts(peer: Peer) -> None:
        record = peer.record(b"answer")
        peer.connection.sendall(record[:-3])
        assert go_on.wait(PATIENCE_S)
        peer.connection.sendall(record[-3:])
        peer.connection.recv(1)

    server, tls = serve(in_two_parts), ZooKeeperTls(files)
    handler = tls.handler()
    with handler.create_connection(address=(HOST, server.port), hostname=HOST, timeout=PATIENCE_S) as connection:
        connection.setblocking(False)
        assert handler.select([connection], [], [], 0.3) == ([], [], [])
        go_on.set()
        assert handler.select([connection], [], [], PATIENCE_S)[0] == [connection]
        assert (connection.recv(4), connection.pending()) == (b"answ", 2)
        assert handler.select([connection], [], [], PATIENCE_S)[0] == [connection]
        assert connection.recv(4) == b"er"
        with pytest.raises(ssl.SSLWantReadError):
            connection.recv(4)


def reason_of(tls: ZooKeeperTls, port: int, host: str = HOST) -> str:
    """The error of a connection, in the handshake or at the first answer."""
    handler = tls.handler()
    with (
        contextlib.suppress(OSError),
        handler.create_connection(address=(HOST, port), hostname=host, timeout=PATIENCE_S) as connection,
    ):
        connection.setblocking(False)
        handler.select([connection], [], [], PATIENCE_S)
    return tls.failure


def answer_nothing(peer: Peer) -> None:
    peer.connection.recv(1)


def test_a_failed_connection_names_the_setting_and_the_reason(
    serve: Serve, authority: Authority, files: TlsFiles, tmp_path: Path
) -> None:
    port = serve(answer_nothing).port
    other = Authority.create(tmp_path / "other", "other").issue_service(Role.BROKER, "0", [HOST])
    assert reason_of(ZooKeeperTls(files._replace(ca=other.ca)), port).startswith(
        f"zookeeper.tls.ca.file ({other.ca}) does not accept {HOST}:{port}: "
    )
    assert f"the certificate of localhost:{port} has another name" in reason_of(ZooKeeperTls(files), port, "localhost")
    refused = reason_of(ZooKeeperTls(other._replace(ca=files.ca)), port)
    assert f"{HOST}:{port} refused the connection with TLSV1_ALERT_UNKNOWN_CA" in refused
    assert f"may not accept zookeeper.tls.certificate.file ({other.certificate})" in refused


def test_a_server_without_tls_is_named(files: TlsFiles) -> None:
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)  # ZooKeeper, too, ends a connection after a request of an absurd length

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        port = listener.getsockname()[1]
        assert "does not speak TLS: zookeeper.connect must have ZooKeeper's secureClientPort" in reason_of(
            ZooKeeperTls(files), port
        )


def test_only_the_given_authorities_are_trusted(
    files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authorities of the operating system are not."""
    monkeypatch.setenv("SSL_CERT_FILE", Authority.create(tmp_path / "system", "system").files("ca").ca)
    context = ZooKeeperTls(files).context()
    assert [dict(part[0] for part in one["subject"])["commonName"] for one in context.get_ca_certs()] == ["shop"]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_changed_files_are_used_by_the_next_connection_and_half_written_ones_are_not(
    serve: Serve, authority: Authority, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.rpc.security.files._CHECK_S", 0.0)
    serials: list[str] = []

    def note(peer: Peer) -> None:
        serials.append(peer._tls.getpeercert()["serialNumber"])  # type: ignore[index]
        peer.connection.sendall(peer.record(b"answer"))
        peer.connection.recv(1)

    port, tls = serve(note).port, ZooKeeperTls(files)
    assert reason_of(tls, port) == ""
    assert reason_of(tls, port) == ""
    authority.issue_service(Role.BROKER, "0", [HOST])
    assert reason_of(tls, port) == ""
    whole = Path(files.key).read_bytes()
    Path(files.key).write_bytes(whole[:50])
    assert reason_of(tls, port) == ""
    first, second, third, fourth = serials
    assert first == second
    assert first != third
    assert third == fourth


def settings(**given: str) -> Any:
    names = ("zookeeper_tls_ca_file", "zookeeper_tls_certificate_file", "zookeeper_tls_key_file")
    return SimpleNamespace(**dict.fromkeys((*names, "tls_certificate_file", "tls_key_file"), "") | given)


def test_sessions_are_plain_text_without_an_authority_and_present_the_certificate_of_the_service_by_default(
    files: TlsFiles, authority: Authority
) -> None:
    service = {"tls_certificate_file": files.certificate, "tls_key_file": files.key}
    assert tls_of(settings(**service)) is None
    assert tls_of(settings(zookeeper_tls_ca_file=files.ca, **service)) is not None
    other = authority.issue_client("other")
    own = {"zookeeper_tls_certificate_file": other.certificate, "zookeeper_tls_key_file": other.key}
    assert tls_of(settings(zookeeper_tls_ca_file=files.ca, **own)) is not None


@pytest.mark.parametrize(
    ("missing", "config"),
    [
        ({"zookeeper_tls_ca_file": ""}, "zookeeper.tls.ca.file"),
        ({"zookeeper_tls_key_file": ""}, "zookeeper.tls.key.file"),
        ({"zookeeper_tls_certificate_file": ""}, "zookeeper.tls.certificate.file"),
        ({"zookeeper_tls_key_file": "", "zookeeper_tls_certificate_file": ""}, "zookeeper.tls.certificate.file"),
        ({"zookeeper_tls_key_file": "/no/such"}, "zookeeper.tls.key.file"),
    ],
)
def test_an_incomplete_set_of_files_is_refused_with_the_setting(
    files: TlsFiles, missing: dict[str, str], config: str
) -> None:
    given = {
        "zookeeper_tls_ca_file": files.ca,
        "zookeeper_tls_certificate_file": files.certificate,
        "zookeeper_tls_key_file": files.key,
    }
    with pytest.raises(TidemarkError) as raised:
        tls_of(settings(**given | missing))
    assert (raised.value.code, raised.value.metadata) == (ErrorCode.INVALID_CONFIG, {"config": config})
    assert config in raised.value.message
