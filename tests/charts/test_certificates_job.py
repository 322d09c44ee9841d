# SPDX-License-Identifier: Apache-2.0
"""The chart's Job makes an authority once and keeps it, and issues certificates that are missing or end soon."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.service import service_identity

from tests.charts.rendering import CHARTS, Manifest, manifests, one

SCRIPT = CHARTS / "tidemark" / "files" / "certificates.py"
SECURE: dict[str, Any] = {"security": {"mode": "secure"}, "zookeeper": {"tls": {"enabled": True}}}
Objects = dict[str, dict[str, Any]]


class Kubernetes:
    """Secrets and ConfigMaps behind an HTTP port, with versions as the API server has."""

    def __init__(self) -> None:
        self.objects: Objects = {}
        self.writes: list[str] = []
        self.interfere = ""

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        key = path.removeprefix("/api/v1/namespaces/streams/")
        if method == "GET":
            found = self.objects.get(key)
            return (200, found) if found else (404, {"message": f"{key} not found"})
        assert body is not None
        if method == "POST":
            key = f"{key}/{body['metadata']['name']}"
            if key in self.objects or key == self.interfere:
                return 409, {"message": f"{key} already exists"}
            version = 0
        else:
            version = int(self.objects[key]["metadata"]["resourceVersion"])
            if body["metadata"]["resourceVersion"] != str(version):
                return 409, {"message": f"{key} was changed"}
        body["metadata"]["resourceVersion"] = str(version + 1)
        self.objects[key] = body
        self.writes.append(key)
        return 200, body


@pytest.fixture
def kubernetes() -> Iterator[tuple[Kubernetes, int]]:
    state = Kubernetes()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            assert self.headers["Authorization"] == "Bearer a token"
            size = int(self.headers.get("Content-Length") or 0)
            status, content = state.answer(self.command, self.path, json.loads(self.rfile.read(size)) if size else None)
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - names of the library

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's stderr empty."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state, server.server_port
        server.shutdown()
        thread.join()


def plan_of(found: list[Manifest]) -> str:
    job = one(found, "Job", "tide-tidemark-certificates-now")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (plan,) = [each["value"] for each in container["env"] if each["name"] == "PLAN"]
    return str(plan)


def run(port: int, directory: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (directory / "token").write_text("a token\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PLAN": plan_of(manifests(values)),
        "ACCOUNT_DIRECTORY": str(directory),
        "API_SCHEME": "http",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def files_of(state: Kubernetes, secret: str, directory: Path) -> TlsFiles:
    """The files of a Secret, with the authorities of the ConfigMap."""
    data = {name: base64.b64decode(value) for name, value in state.objects[f"secrets/{secret}"]["data"].items()}
    data["trust.crt"] = state.objects["configmaps/tide-tidemark-ca"]["data"]["ca.crt"].encode()
    (directory / secret).mkdir(exist_ok=True)
    for name, content in data.items():
        (directory / secret / name).write_bytes(content)
    return TlsFiles(*(str(directory / secret / name) for name in ("trust.crt", "tls.crt", "tls.key")))


def set_authority(state: Kubernetes, directory: Path, days: int) -> None:
    """Replace the authority by one that ends in some days."""
    Authority.create(directory, "tide-tidemark.streams", days=days)
    data = state.objects["secrets/tide-tidemark-authority"]["data"]
    for name in ("ca.crt", "ca.key"):
        data[name] = base64.b64encode((directory / name).read_bytes()).decode()


def test_each_service_gets_a_certificate_that_it_accepts(kubernetes: tuple[Kubernetes, int], tmp_path: Path) -> None:
    state, port = kubernetes
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 0, done.stderr
    for role, number in ((Role.BROKER, 2), (Role.CONTROLLER, 101)):
        assert service_identity(files_of(state, f"tide-tidemark-{role}-{number}-tls", tmp_path), role, number)
    assert service_identity(files_of(state, "tide-tidemark-admin-tls", tmp_path), Role.ADMIN)
    operator = TlsIdentity(files_of(state, "tide-tidemark-operator-tls", tmp_path))
    assert operator.current().uris == ("tidemark://tide-tidemark.streams/user/operator",)
    servers = state.objects["secrets/tide-zookeeper-tls"]
    assert set(servers["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    assert servers["type"] == "kubernetes.io/tls"
    assert servers["metadata"]["labels"]["app.kubernetes.io/instance"] == "tide"


def test_a_second_run_changes_nothing_and_a_scale_up_adds(kubernetes: tuple[Kubernetes, int], tmp_path: Path) -> None:
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    before = json.dumps(state.objects, sort_keys=True)
    assert run(port, tmp_path, SECURE).returncode == 0
    assert json.dumps(state.objects, sort_keys=True) == before, "the authority is kept over upgrades"
    state.writes.clear()
    assert run(port, tmp_path, {**SECURE, "broker": {"replicas": 5}}).returncode == 0
    assert state.writes == ["secrets/tide-tidemark-broker-3-tls", "secrets/tide-tidemark-broker-4-tls"]


def test_a_certificate_that_ends_soon_is_replaced(kubernetes: tuple[Kubernetes, int], tmp_path: Path) -> None:
    state, port = kubernetes
    few_days = {**SECURE, "security": {"mode": "secure", "certificates": {"days": 20}}}
    assert run(port, tmp_path, few_days).returncode == 0
    state.writes.clear()
    done = run(port, tmp_path, {**SECURE, "security": {"mode": "secure", "certificates": {"days": 90}}})
    assert "issued tide-tidemark-broker-0-tls, which ends in 19 days" in done.stdout
    assert len(state.writes) == 3 + 2 + 1 + 1 + 1


def test_an_expired_authority_ends_the_job_with_the_next_step(
    kubernetes: tuple[Kubernetes, int], tmp_path: Path
) -> None:
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    set_authority(state, tmp_path / "expired", days=0)
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 1
    assert "ca.crt expired on" in done.stderr
    assert "raise security.certificates.generation" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_generation_trusts_both_authorities_before_it_issues(
    kubernetes: tuple[Kubernetes, int], tmp_path: Path
) -> None:
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    old = state.objects["configmaps/tide-tidemark-ca"]["data"]["ca.crt"]
    state.writes.clear()
    before = state.objects["secrets/tide-tidemark-broker-0-tls"]["data"]["tls.crt"]
    waiting = {**SECURE, "security": {"mode": "secure", "certificates": {"generation": 2}}, "broker": {"replicas": 4}}
    done = run(port, tmp_path, waiting)
    assert done.returncode == 0, done.stderr
    assert "certificates of the former authority stay until a later run" in done.stdout
    assert state.objects["secrets/tide-tidemark-broker-0-tls"]["data"]["tls.crt"] == before
    assert "secrets/tide-tidemark-broker-3-tls" in state.writes, "a new broker cannot wait"
    second = {**SECURE, "security": {"mode": "secure", "certificates": {"generation": 2, "settleSeconds": 0}}}
    assert run(port, tmp_path, second).returncode == 0
    bundle = state.objects["configmaps/tide-tidemark-ca"]["data"]["ca.crt"]
    new, former = x509.load_pem_x509_certificates(bundle.encode())
    assert former == x509.load_pem_x509_certificate(old.encode())
    servers = base64.b64decode(state.objects["secrets/tide-zookeeper-tls"]["data"]["ca.crt"])
    assert servers.decode() == bundle, "ZooKeeper's servers trust both, too"
    issued = x509.load_pem_x509_certificate(
        Path(files_of(state, "tide-tidemark-broker-0-tls", tmp_path).certificate).read_bytes()
    )
    issued.verify_directly_issued_by(new)
    assert state.writes.index("configmaps/tide-tidemark-ca") == 1, "right after the authority"
    trusted = state.writes.index("secrets/tide-zookeeper-tls")
    assert state.writes[trusted + 1 :].count("secrets/tide-zookeeper-tls") == 1, "first trusted, then issued again"
    third = {**SECURE, "security": {"mode": "secure", "certificates": {"generation": 3}}}
    assert run(port, tmp_path, third).returncode == 0
    assert former not in x509.load_pem_x509_certificates(
        state.objects["configmaps/tide-tidemark-ca"]["data"]["ca.crt"].encode()
    )


def test_two_runs_at_once_make_one_authority(kubernetes: tuple[Kubernetes, int], tmp_path: Path) -> None:
    state, port = kubernetes
    state.interfere = "secrets/tide-tidemark-authority"
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 1, "the Job tries again, and finds the authority of the other run"
    assert "HTTP 409" in done.stderr
    assert not state.writes


def test_certificates_that_end_with_their_authority_are_not_issued_again(
    kubernetes: tuple[Kubernetes, int], tmp_path: Path
) -> None:
    """A new one would end at the same time."""
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    set_authority(state, tmp_path / "short", days=20)
    assert run(port, tmp_path, SECURE).returncode == 0
    state.writes.clear()
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 0, done.stderr
    assert state.writes == []
    assert "authority 1 ends in 19 days: raise security.certificates.generation" in done.stdout


def test_a_damaged_certificate_is_issued_again(kubernetes: tuple[Kubernetes, int], tmp_path: Path) -> None:
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    state.objects["secrets/tide-tidemark-broker-0-tls"]["data"]["tls.crt"] = base64.b64encode(b"damaged").decode()
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 0, done.stderr
    assert "issued tide-tidemark-broker-0-tls, which is damaged" in done.stdout
    assert service_identity(files_of(state, "tide-tidemark-broker-0-tls", tmp_path), Role.BROKER, 0)


def test_a_rollback_of_another_generation_trusts_the_certificates_in_use(
    kubernetes: tuple[Kubernetes, int], tmp_path: Path
) -> None:
    """No pod has a certificate of the second authority yet, and all have one of the first."""
    state, port = kubernetes
    assert run(port, tmp_path, SECURE).returncode == 0
    before = state.objects["secrets/tide-tidemark-broker-0-tls"]["data"]["tls.crt"]
    second = {**SECURE, "security": {"mode": "secure", "certificates": {"generation": 2}}}
    assert run(port, tmp_path, second).returncode == 0
    done = run(port, tmp_path, SECURE)
    assert done.returncode == 0, done.stderr
    assert state.objects["secrets/tide-tidemark-broker-0-tls"]["data"]["tls.crt"] == before
    in_use = x509.load_pem_x509_certificate(base64.b64decode(before))
    bundle = x509.load_pem_x509_certificates(state.objects["configmaps/tide-tidemark-ca"]["data"]["ca.crt"].encode())
    assert len(bundle) == 3
    in_use.verify_directly_issued_by(bundle[-1])
