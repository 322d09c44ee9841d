# SPDX-License-Identifier: Apache-2.0
"""A cluster whose services have IPv6 addresses, which need brackets in front of a port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local import cluster as local
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.harness.metrics import samples

pytestmark = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this system has no IPv6")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setattr(local, "HOST", "[::1]")
    with LocalCluster(tmp_path, brokers=2, controllers=1) as started:
        yield started


def test_brokers_replicate_and_coordinate_at_ipv6_addresses(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("t", partitions=2, replication_factor=2)
        brokers = admin.describe_cluster().view.brokers.values()
    assert {broker.address for broker in brokers} == set(cluster.bootstrap.split(","))
    with Producer(cluster.bootstrap, transactional_id="x") as producer, producer.transaction():
        producer.send("t", b"1")
    with Consumer(bootstrap=cluster.bootstrap, group="g", isolation_level="read_committed") as consumer:
        consumer.subscribe(["t"])
        assert next(consumer).value == b"1"
        consumer.commit()
    assert samples(cluster, broker_name(0))
