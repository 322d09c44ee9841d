# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper's disks are restored from a copy that is older than the logs (docs/backup.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tidemark.client import Consumer, Producer
from tidemark.local.cluster import LocalCluster

from tests.integration.cli.test_cli import succeeds

TOPIC = "orders"


def send(cluster: LocalCluster, *values: bytes) -> None:
    """Each value comes from a producer of its own."""
    for value in values:
        with Producer(cluster.bootstrap) as producer:
            producer.send(TOPIC, value).result(30.0)


def values_in(cluster: LocalCluster) -> list[bytes | None]:
    with Consumer(cluster.bootstrap) as consumer:
        (where,) = consumer.assign(TOPIC)
        found: list[bytes | None] = []
        while len(found) < consumer.end_offsets()[where]:
            batch = consumer.poll(timeout_s=10.0)
            found += [] if batch is None else batch.rows.column("value").to_pylist()
    return found


def elect_furthest(cluster: LocalCluster) -> None:
    """Step 3 of the page."""
    topics = json.loads(succeeds(cluster, "topic", "describe", "--output", "json"))
    names = [
        f"{topic['topic']}:{one['partition']}" for topic in topics for one in topic["partitions"] if one["leader"] < 0
    ]
    if names:
        succeeds(cluster, "elect", "--last-known", "--yes", *names)


@pytest.mark.usefixtures("own_zookeeper")
def test_a_log_keeps_the_records_of_new_producers_behind_an_older_tree(tmp_path: Path) -> None:
    """The tree has the next producer id: a log that knows a reused id would treat a new batch as a duplicate."""
    cluster = LocalCluster(tmp_path / "cluster", controllers=1)
    with cluster:
        succeeds(cluster, "topic", "create", TOPIC, "-p", "1", "-r", "3")
        send(cluster, b"before the copy")
    shutil.copytree(cluster.directory / "zookeeper", tmp_path / "copy")
    with cluster:
        send(cluster, *(b"after the copy %d" % number for number in range(4)))
        sent = values_in(cluster)
    shutil.rmtree(cluster.directory / "zookeeper")
    shutil.copytree(tmp_path / "copy", cluster.directory / "zookeeper")
    with cluster:
        elect_furthest(cluster)
        new = [b"behind the older tree %d" % number for number in range(4)]
        send(cluster, *new)
        assert values_in(cluster) == [*sent, *new]
