# SPDX-License-Identifier: Apache-2.0
"""Metrics for one writing thread: /metrics has the same text as with the library's counters and histograms."""

from __future__ import annotations

from prometheus_client import generate_latest
from tidemark.runtime.loop_metrics import LATENCY_BUCKETS_S
from tidemark.runtime.metrics import Metrics


def text_of(metrics: Metrics, name: str) -> list[str]:
    return [line for line in generate_latest(metrics.registry).decode().splitlines() if name in line]


def test_a_sum_has_the_text_of_a_counter() -> None:
    ours, theirs = Metrics(), Metrics()
    counter, of_library = ours.loop_counter("sent_bytes", "Bytes"), theirs.counter("sent_bytes", "Bytes")
    assert text_of(ours, "sent_bytes") == text_of(theirs, "sent_bytes")
    for amount in (1, 0, 70_000):
        counter.value += amount
        of_library.inc(amount)
    assert text_of(ours, "sent_bytes") == text_of(theirs, "sent_bytes")


def test_durations_have_the_text_of_a_histogram() -> None:
    ours, theirs = Metrics(), Metrics()
    durations, of_library = ours.loop_histogram("wait_seconds", "Time").of(), theirs.histogram("wait_seconds", "Time")
    assert text_of(ours, "wait_seconds") == text_of(theirs, "wait_seconds")
    for seconds in (0.0, LATENCY_BUCKETS_S[3], 0.0251, 31.0):
        durations.observe(seconds)
        of_library.observe(seconds)
    assert text_of(ours, "wait_seconds") == text_of(theirs, "wait_seconds")


def test_durations_by_label_have_the_text_of_a_histogram() -> None:
    ours, theirs = Metrics(), Metrics()
    by_kind = ours.loop_histogram("wait_seconds", "Time", ("kind",), ("read", "write"))
    of_library = theirs.histogram("wait_seconds", "Time", ("kind",))
    for kind, seconds in (("read", 0.0004), ("write", 3.0)):
        by_kind.of(kind).observe(seconds)
        of_library.labels(kind).observe(seconds)
    assert text_of(ours, "wait_seconds") == text_of(theirs, "wait_seconds")
