# SPDX-License-Identifier: Apache-2.0
"""Brokers are restarted one after the other under load, as an orchestrator does it that waits for readiness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.cli.test_cli import tidemark
from tests.integration.harness.numbers_load import NumbersLoad
from tests.integration.services.test_readiness import wait_until_says

PARTITIONS = 24
TOPIC = "rolling"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as started:
        yield started


def test_a_rolling_restart_that_waits_for_readiness_loses_nothing_and_is_safe_at_every_step(
    cluster: LocalCluster,
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    with NumbersLoad(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        for number in range(3):
            before = len(load.acknowledged)
            wait = () if number else ("--wait", "30")
            safe = tidemark(cluster, "cluster", "safe-to-restart", str(number), *wait)
            assert safe.status == 0, f"the last broker said that it was ready: {safe.out}"
            name = broker_name(number)
            cluster.terminate(name)
            cluster.process(name).start()
            wait_until_says(cluster, name, "readiness")
            assert len(load.acknowledged) > before
    load.assert_nothing_lost_or_twice()
