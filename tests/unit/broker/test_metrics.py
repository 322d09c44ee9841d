"""Gauges that are computed when somebody looks."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest
from tidemark.broker.metrics import BrokerMetrics
from tidemark.runtime.metrics import Metrics

from tests.unit.core.stage import Stage


async def test_a_scrape_shows_what_moves_carried_and_what_their_throttles_hold() -> None:
    shown = Metrics()
    metrics = BrokerMetrics(shown)
    stage = Stage().leads((1,))
    metrics.show_replicas(stage.core)
    stage.core._ctx.added_bytes_out, stage.core._ctx.added_bytes_in = 7_000, 500
    text = (await asyncio.to_thread(generate_latest, shown.registry)).decode()
    assert "tidemark_replica_reassignment_out_bytes_total 7000.0" in text
    assert "tidemark_replica_reassignment_in_bytes_total 500.0" in text
    assert "tidemark_replica_throttled 0.0" in text
    assert "tidemark_replica_leader_count 1.0" in text
