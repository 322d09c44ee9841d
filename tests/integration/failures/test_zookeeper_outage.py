# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper is down for longer than every session: partitions continue if F2 proves their leader; others wait."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import TidemarkError

from tests.children import resume, suspend

SESSION_S = 3.0
SETTINGS = {kind: {"zookeeper.session.timeout.ms": str(int(SESSION_S * 1000))} for kind in ("broker", "controller")}


@pytest.mark.alone
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("own_zookeeper")
def test_while_zookeeper_is_away_replicated_partitions_take_and_give_records_and_single_replicas_do_not(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS) as cluster, AdminClient(cluster.admin_address) as admin:
        admin.create_topic("safe", partitions=2, replication_factor=3, configs={"min.insync.replicas": "2"})
        admin.create_topic("alone", partitions=1, replication_factor=1, configs={"min.insync.replicas": "1"})
        with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
            for topic in ("safe", "alone"):
                producer.send(topic, b"before").result(30)
            consumer.assign("safe")
            assert next(consumer).value == b"before"
            suspend(cluster.zookeeper.pid)
            until_s = time.monotonic() + 1.5 * SESSION_S
            during = 0
            while time.monotonic() < until_s:
                producer.send("safe", b"during %d" % during).result(2.0)
                assert next(consumer).value == b"during %d" % during
                during += 1
            with Producer(cluster.bootstrap, delivery_timeout_ms=2000) as other, pytest.raises(TidemarkError):
                other.send("alone", b"during").result(30)
            resume(cluster.zookeeper.pid)
            deadline_s = time.monotonic() + 30
            while True:
                assert time.monotonic() < deadline_s, "no replica leads again"
                try:
                    producer.send("alone", b"after").result(5.0)
                    break
                except TidemarkError:
                    continue
            producer.send("safe", b"after").result(30)
            assert next(consumer).value == b"after"
            assert consumer.poll(0.2) is None
