# SPDX-License-Identifier: Apache-2.0
"""Connections, logs and all else share the files that a process may have open."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from tidemark.runtime import limits
from tidemark.runtime import metrics as metrics_module
from tidemark.runtime.metrics import Metrics, start_metrics_server


@pytest.mark.parametrize("limit", [200, 256, 1024, 4096, 20_000, 65_536])
def test_connections_and_logs_together_leave_spare_descriptors(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(limits, "raise_open_files", lambda: limit)
    assert limit // 8 <= limits.connections_max() <= 10_000
    assert limits.connections_max() + limits.log_files_max() <= limit - 64


def test_a_metrics_server_takes_in_only_so_many_and_the_longest_waiting_one_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "_CONNECTIONS_MAX", 3)
    server = start_metrics_server("127.0.0.1", 0, Metrics())
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(5)]
    for one in held[:2]:
        assert one.recv(1) == b"", "the server closed this connection"
    for _ in range(10):
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert answer.status == 200
    for one in held:
        one.close()
    server.close()
