# SPDX-License-Identifier: Apache-2.0
"""A broker's rack is the zone of its node, which the init container reads from the API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import CHARTS

SCRIPT = CHARTS / "tidemark" / "files" / "rack.py"
NODES = {"node-1": {"topology.kubernetes.io/zone": "eu-1a"}, "node-2": {}}
TOKEN = "a token"


class ApiServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        node = self.path.removeprefix("/api/v1/nodes/")
        allowed = self.headers["Authorization"] == f"Bearer {TOKEN}"
        body = json.dumps({"metadata": {"name": node, "labels": NODES.get(node, {})}}).encode()
        self.send_response(200 if allowed and node in NODES else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's stderr empty."""


@pytest.fixture
def api_server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def run(port: int, directory: Path, node: str) -> subprocess.CompletedProcess[str]:
    (directory / "token").write_text(TOKEN + "\n")
    (directory / "broker.yaml").write_text('log.format: "json"')
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "API_SCHEME": "http",
        "ACCOUNT_DIRECTORY": str(directory),
        "PAUSE_S": "0",
        "NODE_NAME": node,
        "RACK_LABEL": "topology.kubernetes.io/zone",
        "CONFIG_FROM": str(directory / "broker.yaml"),
        "CONFIG_TO": str(directory / "written.yaml"),
        "PATH": os.environ["PATH"],
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_zone_of_the_node_becomes_the_rack(api_server: int, tmp_path: Path) -> None:
    done = run(api_server, tmp_path, "node-1")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "written.yaml").read_text()) == {"log.format": "json", "broker.rack": "eu-1a"}


def test_a_node_without_a_zone_gives_no_rack(api_server: int, tmp_path: Path) -> None:
    done = run(api_server, tmp_path, "node-2")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "written.yaml").read_text()) == {"log.format": "json"}
    assert "has no label topology.kubernetes.io/zone" in done.stderr


def test_a_refusal_ends_the_start_with_the_next_step(api_server: int, tmp_path: Path) -> None:
    done = run(api_server, tmp_path, "node-3")
    assert done.returncode == 1
    assert "HTTP 403: its service account must be allowed to get nodes, or set rack.source: none" in done.stderr
    assert not (tmp_path / "written.yaml").exists()
