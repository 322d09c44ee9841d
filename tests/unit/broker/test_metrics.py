"""Gauges that are computed when somebody looks."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest
from tidemark.broker.metrics import BrokerMetrics
from tidemark.core.broker_context import MoveTraffic
from tidemark.runtime.metrics import Metrics


async def test_a_scrape_shows_what_moves_carried_and_what_their_throttles_hold() -> None:
    shown = Metrics()
    metrics = BrokerMetrics(shown)
    traffic = MoveTraffic(0, 0, 0)
    metrics.show_replicas(lambda: (), lambda: traffic)
    traffic = MoveTraffic(7_000, 500, 3)
    text = (await asyncio.to_thread(generate_latest, shown.registry)).decode()
    assert "tidemark_replica_reassignment_out_bytes_total 7000.0" in text
    assert "tidemark_replica_reassignment_in_bytes_total 500.0" in text
    assert "tidemark_replica_throttled 3.0" in text
