# SPDX-License-Identifier: Apache-2.0
"""An unclean election among real processes (rule T4): the last replica leads a new lineage; losses are reported."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path

from tidemark.client import AdminClient, Consumer, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name, controller_name

from tests.integration.harness.waiting import wait_for

TOPIC = "gauges"
SETTINGS = {"broker": {"zookeeper.session.timeout.ms": "3000"}}


def produce(cluster: LocalCluster, records: int) -> int:
    """Send records, acknowledged by all in-sync replicas; returns the last record's offset."""
    with Producer(cluster.bootstrap) as producer:
        handles = [producer.send(TOPIC, str(number).encode(), partition=0) for number in range(records)]
        producer.flush(15)
        return handles[-1].result(15).offset


def metric(cluster: LocalCluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.metrics_address(controller_name(0))}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def test_a_follower_that_was_away_is_elected_where_allowed_when_the_only_trusted_replica_dies(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, brokers=2, controllers=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        admin.create_topic(
            TOPIC,
            partitions=1,
            replication_factor=2,
            configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
        )

        def partition() -> PartitionView:
            return admin.describe_topics([TOPIC])[0].partitions[0]

        def in_sync(*replicas: int) -> Callable[[], bool]:
            return lambda: set(partition().in_sync_replicas) == set(replicas)

        wait_for(in_sync(0, 1), "both in sync")
        before = partition()
        leader, follower = broker_name(before.leader), broker_name(1 - before.leader)
        produce(cluster, 40)
        cluster.terminate(follower)
        wait_for(in_sync(before.leader), "the follower has left")
        assert produce(cluster, 25) == 64
        cluster.kill(leader)
        cluster.restart(follower)
        wait_for(lambda: partition().leader == 1 - before.leader, "the follower leads")
        after = partition()
        assert after.lineage == before.lineage + 1
        assert after.leader_epoch > before.leader_epoch
        assert metric(cluster, 'tidemark_controller_observations_total{kind="unclean_election"}') == 1
        assert metric(cluster, "tidemark_controller_records_maybe_lost_total") == 0, "no live replica knows of any"
        assert produce(cluster, 1) == 40, "it continues where its own log ended"
        cluster.restart(leader)
        wait_for(in_sync(0, 1), "the old leader follows the elected one")
        assert partition().lineage == after.lineage
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign(TOPIC)
            assert sum(consumer.end_offsets().values()) == 41
