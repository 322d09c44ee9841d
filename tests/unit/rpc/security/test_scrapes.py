# SPDX-License-Identifier: Apache-2.0
"""/metrics with TLS: the certificate of the service, certificates of scrapers, files that change."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.model import ErrorCode
from tidemark.rpc.security import files as tls
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.scrapes import serve_metrics
from tidemark.runtime import metrics
from tidemark.runtime.host_port import HostPort

from tests.refusals import raises_code

CALL_S = 10


class Settings(NamedTuple):
    metrics_tls: str
    metrics_listeners: HostPort = HostPort("127.0.0.1", 0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "certs", "shop")


@pytest.fixture
def service(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> TlsIdentity:
    """An identity that checks its files each time."""
    monkeypatch.setattr(tls, "_CHECK_S", 0.0)
    return TlsIdentity(authority.issue_service(Role.BROKER, "3", ("127.0.0.1",)))


@pytest.fixture(params=["server", "mutual"])
def served(request: pytest.FixtureRequest, service: TlsIdentity) -> Iterator[tuple[str, int]]:
    """The kind of TLS, and the port."""
    server = serve_metrics(Settings(request.param), service)
    yield request.param, server.port
    server.close()


def scrape(port: int, files: TlsFiles) -> str:
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", timeout=CALL_S, context=context) as answer:
        text: str = answer.read().decode()
    return text


def test_a_scraper_with_a_certificate_reads_the_metrics_also_after_a_renewal(
    served: tuple[str, int], authority: Authority, tmp_path: Path
) -> None:
    _, port = served
    user = authority.issue_client("prometheus")
    assert "process_resident_memory_bytes" in scrape(port, user)
    before = ssl.get_server_certificate(("127.0.0.1", port)) if served[0] == "server" else ""
    authority.issue_service(Role.BROKER, "3", ("127.0.0.1",))
    assert "process_resident_memory_bytes" in scrape(port, user)
    if before:
        assert ssl.get_server_certificate(("127.0.0.1", port)) != before
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "certs"]


def test_a_scraper_without_a_certificate_is_refused_where_one_is_asked_for(
    served: tuple[str, int], service: TlsIdentity
) -> None:
    kind, port = served
    anonymous = TlsFiles(service.files.ca)
    if kind == "server":
        assert "process_resident_memory_bytes" in scrape(port, anonymous)
        return
    with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|certificate required|reset|closed|EOF|Broken pipe"):
        scrape(port, anonymous)


def test_plain_text_and_an_unfinished_handshake_keep_no_other_scraper_waiting(
    served: tuple[str, int], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = served
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CALL_S)
    monkeypatch.setattr(metrics, "_IDLE_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=CALL_S) as silent:
        assert "process_resident_memory_bytes" in scrape(port, authority.issue_client("prometheus"))
        assert silent.recv(1) == b"", "the time of a handshake is bounded"


def test_tls_without_files_is_refused() -> None:
    with raises_code(ErrorCode.INVALID_CONFIG, r"set tls\.certificate\.file, or metrics\.tls to none"):
        serve_metrics(Settings("server"), None)
