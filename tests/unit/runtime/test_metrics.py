"""Metrics: names, bounded labels, the port."""

from __future__ import annotations

import time
import urllib.request

import pytest
from tidemark.model import TidemarkError
from tidemark.runtime.metrics import OTHER, LabelLimit, Metrics, start_metrics_server


def test_metrics_are_served_with_our_prefix_until_closed() -> None:
    metrics = Metrics()
    metrics.counter("records", "Records appended", ["topic"]).labels("flights").inc(3)
    server = start_metrics_server("127.0.0.1", 0, metrics)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        with pytest.raises(TidemarkError, match=r"metrics\.listeners"):
            start_metrics_server("127.0.0.1", server.port, metrics)
    finally:
        server.close()
    assert 'tidemark_records_total{topic="flights"} 3.0' in text
    assert "process_resident_memory_bytes" in text


def test_label_values_beyond_the_limit_are_counted_together() -> None:
    limit = LabelLimit(2)
    assert [limit.admit(name, "0") for name in ("a", "b", "c", "a")] == [
        ("a", "0"),
        ("b", "0"),
        (OTHER, OTHER),
        ("a", "0"),
    ]
    limit.forget("a", "0")
    assert limit.admit("c", "0") == ("c", "0")


def test_closing_does_not_wait_until_the_server_looks_again() -> None:
    servers = [start_metrics_server("127.0.0.1", 0, Metrics()) for _ in range(8)]
    began_s = time.monotonic()
    for server in servers:
        server.close()
    assert time.monotonic() - began_s < 8 * 0.2
