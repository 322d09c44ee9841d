# SPDX-License-Identifier: Apache-2.0
"""Metrics of a session with a real ZooKeeper, from start to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.model import TidemarkError
from tidemark.ports import StoreEvent
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.children import resume, suspend
from tests.contract.conftest import Ear
from tests.unit.broker.scraped import scraped

NAME = "tidemark_zookeeper"


def told(store: ZooKeeperMetadataStore) -> tuple[str, dict[str, float]]:
    """The state, and the metrics without a label."""
    found = scraped(store.metrics.render())
    (state,) = [
        labels.removeprefix("state=")
        for (name, labels), value in found.items()
        if name == f"{NAME}_session_state" and value
    ]
    return state, {name.removeprefix(f"{NAME}_"): value for (name, labels), value in found.items() if not labels}


async def test_metrics_count_a_partitioned_session_that_expires_and_is_replaced(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path) as process:
        store = ZooKeeperMetadataStore(process.connect, 1000, SystemClock())
        ear = Ear(store)
        assert told(store)[0] == "closed"
        await store.start()
        state, found = told(store)
        assert state == "connected"
        assert 0 < found["lease_seconds"] <= found["session_timeout_seconds"]
        assert found["request_seconds_count"] > 0
        assert found["requests_failed_total"] == found["disconnects_total"] == found["session_expiries_total"] == 0
        suspend(process.pid)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(TidemarkError):
                    await store.next_producer_ids(1)
                await ear.hears(StoreEvent.SESSION_SUSPENDED)
            state, found = told(store)
            assert state == "suspended"
            assert found["disconnects_total"] == 1
            assert found["requests_failed_total"] >= 1
            assert found["lease_seconds"] == 0
        finally:
            resume(process.pid)
        process.kill()  # ZooKeeper may have the session only in memory: the session continues, or is lost
        process.start()
        await store.new_session()
        assert told(store)[0] == "connected"
        await store.stop()
        state, found = told(store)
        assert (state, found["lease_seconds"]) == ("closed", 0)
