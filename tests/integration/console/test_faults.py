# SPDX-License-Identifier: Apache-2.0
"""Faults of a cluster of the test's own, on the console's pages: a killed broker, a silent ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.harness.waiting import wait_for

JSON = {"Accept": "application/json"}
REASONS = [{"broker_id": 1, "reason": reason} for reason in ("suspected", "broker_failed")]


@pytest.mark.usefixtures("own_zookeeper")
def test_the_console_shows_a_killed_broker_and_a_silent_zookeeper(tmp_path: Path) -> None:
    settings = {"console": {"console.refresh.ms": "200"}}
    with LocalCluster(tmp_path, brokers=2, controllers=1, console=True, settings=settings) as cluster:
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic("flights", partitions=2, replication_factor=2, configs={"min.insync.replicas": 1})
        with httpx.Client(base_url=cluster.console_url, timeout=30) as browser:

            def overview() -> dict[str, Any]:
                found: dict[str, Any] = browser.get("/", headers=JSON).json()
                return found

            def changes(partition: int) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = page(partition)["isr_changes"]
                return found

            def page(partition: int) -> dict[str, Any]:
                data: dict[str, Any] = browser.get(f"/topics/flights/{partition}", headers=JSON).json()["data"]
                return data

            wait_for(lambda: overview()["data"]["health"]["level"] == "healthy", "the cluster is healthy")
            led = next(partition for partition in (0, 1) if page(partition)["leader"] == 1)
            assert changes(led) == []
            cluster.kill(broker_name(1))
            wait_for(lambda: bool(overview()["data"]["away"]), "the killed broker is away")
            (away,) = overview()["data"]["away"]
            assert (away["broker_id"], away["may_be_longer"]) == (1, False)
            assert "Broker 1 is not live" in browser.get("/").text
            wait_for(lambda: changes(led), "the new leader has noted the change that elected it")
            assert changes(led)[0]["left"][0] in REASONS
            assert changes(led)[0]["isr"] == [0]
            cluster.zookeeper.stop()
            wait_for(lambda: bool(overview()["problems"]), "a page states that an answer is missing")
            shown = overview()
            assert shown["problems"][0]["since_ms"] > away["since_ms"]
            assert shown["data"]["partition_count"] == 2
            assert "No answer since" in browser.get("/topics").text
        cluster.kill_all()
