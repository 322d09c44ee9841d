# SPDX-License-Identifier: Apache-2.0
"""The longest that a stop may take, for a pod's terminationGracePeriodSeconds (docs/operations.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name, controller_name

from tests.children import resume, suspend

SESSION_S, CONTROLLED_S, GRACE_S, LOGS_S = 3.0, 2.0, 4.0, 10.0
SETTINGS = {
    "broker": {
        "zookeeper.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
        "controlled.shutdown.max.wait.ms": f"{CONTROLLED_S * 1000:.0f}",
        "shutdown.grace.ms": f"{GRACE_S * 1000:.0f}",
    }
}


@pytest.mark.usefixtures("own_zookeeper")
@pytest.mark.parametrize("zookeeper", ["is silent", "is gone"])
def test_a_broker_without_a_controller_stops_within_the_sum_of_its_bounds(tmp_path: Path, zookeeper: str) -> None:
    with LocalCluster(tmp_path, brokers=1, controllers=1, settings=SETTINGS) as cluster:
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic("t", partitions=4, replication_factor=1)
        with Producer(cluster.bootstrap) as producer:
            producer.send("t", b"x").result(15)
            cluster.kill(controller_name(0))
            if zookeeper == "is silent":
                suspend(cluster.zookeeper.pid)
            elif zookeeper == "is gone":
                cluster.zookeeper.kill()
            cluster.terminate(broker_name(0), timeout_s=SESSION_S + CONTROLLED_S + GRACE_S + LOGS_S)
        if zookeeper == "is silent":
            resume(cluster.zookeeper.pid)
        elif zookeeper == "is gone":
            cluster.zookeeper.start()
        cluster.restart(broker_name(0))
        assert "is not clean" not in cluster.process(broker_name(0)).log.read_text()
