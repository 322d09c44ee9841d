# SPDX-License-Identifier: Apache-2.0
"""Metrics: names, bounded labels, the port."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Collection

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidemark.model import TidemarkError
from tidemark.runtime import metrics_text
from tidemark.runtime.metrics import METRICS, OTHER, LabelLimit, Metrics, start_metrics_server, tell_what_runs


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


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
def test_metrics_at_every_address_are_served_to_ipv6_too() -> None:
    """The chart names 0.0.0.0; pods of a cluster with IPv6 have no address of IPv4."""
    server = start_metrics_server("0.0.0.0", 0, Metrics())
    try:
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{server.port}/metrics", timeout=5) as answer:
                assert answer.status == 200
    finally:
        server.close()


class Fish:
    """A source of two families, as long as it is well."""

    well = True

    def render(self, names: Collection[str] = ()) -> str:
        if not self.well:
            raise RuntimeError("not well")
        one = metrics_text.family(
            "tidemark_fish", "gauge", "Fish", {metrics_text.labels(name='a "b"\\c\nd', pond="0"): 1, "": 2.5}
        )
        return one + metrics_text.counter("tidemark_bites_total", "Bites", 2**53 + 1)


def test_a_source_is_rendered_in_prometheus_text_format() -> None:
    metrics = Metrics()
    metrics.show(Fish())
    text = metrics.render().decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {(sample.labels.get("name"), sample.value) for sample in found["tidemark_fish"].samples} == {
        ('a "b"\\c\nd', 1.0),
        (None, 2.5),
    }
    assert found["tidemark_bites"].type == "counter"
    assert "tidemark_bites_total 9007199254740993\n" in text, "no digit of an offset is lost"
    assert "tidemark_scrape_seconds" in found


def test_a_source_that_fails_takes_nothing_else_with_it(caplog: pytest.LogCaptureFixture) -> None:
    metrics, fish = Metrics(), Fish()
    metrics.show(fish)
    fish.well = False
    text = metrics.render()
    assert b"process_cpu_seconds_total" in text
    assert b"tidemark_fish" not in text
    assert "a source of metrics failed" in caplog.text
    metrics.hide(fish)
    assert b"tidemark_fish" not in metrics.render()


def test_a_scraper_that_takes_gzip_is_given_it_and_may_keep_its_connection() -> None:
    metrics = Metrics()
    metrics.show(Fish())
    server = start_metrics_server("127.0.0.1", 0, metrics)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        for _ in range(2):
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            assert answer.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
            assert b"tidemark_fish" in gzip.decompress(answer.read())
    finally:
        connection.close()
        server.close()


def test_a_scrape_may_ask_for_some_names_alone() -> None:
    metrics, fish = Metrics(), Fish()
    metrics.histogram("walk_seconds", "Walks").observe(3)
    metrics.show(fish)
    some = metrics.render(["tidemark_walk_seconds_count", "tidemark_bites_total"]).decode()
    samples = [line for line in some.splitlines() if not line.startswith("#")]
    assert samples == ["tidemark_walk_seconds_count 1.0", "tidemark_bites_total 9007199254740993"]
    assert {family.name for family in text_string_to_metric_families(some)} == {
        "tidemark_walk_seconds",
        "tidemark_bites",
    }
    fish.well = False  # is not asked for the metrics of others
    assert b"tidemark_walk_seconds_count 1.0" in metrics.render(["tidemark_walk_seconds_count"])
    server = start_metrics_server("127.0.0.1", 0, metrics)
    try:
        url = f"http://127.0.0.1:{server.port}/metrics?name[]=tidemark_walk_seconds_sum"
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.read().decode().splitlines()[2:] == ["tidemark_walk_seconds_sum 3.0"]
    finally:
        server.close()


def test_metrics_have_the_version_and_the_service() -> None:
    tell_what_runs("broker")
    assert re.search(rb'tidemark_build_info\{service="broker",version="[^"]+"\} 1', METRICS.render())


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


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nDrip", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_clients_that_hold_all_connections_do_not_lock_the_scraper_out(said: bytes) -> None:
    """These clients send nothing, send headers without an end, or read no answer."""
    metrics = Metrics()
    gauge = metrics.gauge("pad", "Makes the answer long", ["of"])
    for number in range(200):
        gauge.labels(str(number) * 1_000).set(1)
    server = start_metrics_server("127.0.0.1", 0, metrics)
    held = []
    try:
        for _ in range(40):
            one = socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0))
            one.sendall(said)
            held.append(one)
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        for _ in range(2):
            kept.request("GET", "/metrics")
            assert b"tidemark_pad" in kept.getresponse().read()
            held.append(socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0)))
        kept.close()
        assert threading.active_count() < 60
    finally:
        for one in held:
            one.close()
        server.close()


class OfGroups:
    """A source whose labels have names of users."""

    def __init__(self, group_id: str) -> None:
        self._of = metrics_text.labels(group=group_id)

    def render(self, names: Collection[str] = ()) -> str:
        lag = metrics_text.family("tidemark_lag", "gauge", "Lag", {self._of: 5, metrics_text.labels(group="b"): 6})
        return lag + metrics_text.gauge("tidemark_other", "Other", 7)


@pytest.mark.parametrize("group_id", ["# HELP tidemark_other", "a # HELP b", 'a"} 1', "\\", "{", "tidemark_other "])
def test_a_named_family_is_whole_with_any_names_in_its_labels(group_id: str) -> None:
    metrics = Metrics()
    metrics.show(OfGroups(group_id))
    text = metrics.render(["tidemark_lag"]).decode()
    (family,) = text_string_to_metric_families(text)
    assert {sample.labels["group"]: sample.value for sample in family.samples} == {group_id: 5, "b": 6}
