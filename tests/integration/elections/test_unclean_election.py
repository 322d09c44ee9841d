# SPDX-License-Identifier: Apache-2.0
"""An unclean election among real processes (rule T4): the last replica leads a new lineage; losses are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidemark.client import AdminClient, Consumer, LogTruncatedError, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name, controller_name

from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

TOPIC = "gauges"
GROUP: Any = {"group": "readers", "offset_reset": "earliest", "auto_commit_interval_ms": 0}
SETTINGS = {"broker": {"zookeeper.session.timeout.ms": "3000"}}


def produce(cluster: LocalCluster, records: int) -> int:
    """Send records, acknowledged by all in-sync replicas; returns the last record's offset."""
    with Producer(cluster.bootstrap) as producer:
        handles = [producer.send(TOPIC, str(number).encode(), partition=0) for number in range(records)]
        producer.flush(15)
        return handles[-1].result(15).offset


def metric(cluster: LocalCluster, name: str) -> float:
    return samples(cluster, controller_name(0))[name]


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
        assert produce(cluster, 1) == 40, "the leader continues where its own log ended"
        cluster.restart(leader)
        wait_for(in_sync(0, 1), "the old leader follows the elected one")
        assert partition().lineage == after.lineage
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign(TOPIC)
            assert sum(consumer.end_offsets().values()) == 41


def test_a_group_that_continues_after_an_unclean_election_learns_of_the_lost_records(tmp_path: Path) -> None:
    """The group's offset is below the end of the new log.

    Without a check the group would skip records of the new lineage.
    """
    with (
        LocalCluster(tmp_path, controllers=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        admin.create_topic(TOPIC, partitions=1, replication_factor=2, configs=configs)

        def partition() -> PartitionView:
            return admin.describe_topics([TOPIC])[0].partitions[0]

        wait_for(lambda: len(partition().in_sync_replicas) == 2, "both in sync")
        led_by = partition().leader
        (follower,) = set(partition().assigned_replicas) - {led_by}
        produce(cluster, 40)
        with Consumer(cluster.bootstrap, **GROUP) as consumer:
            consumer.subscribe(TOPIC)
            assert consumer.poll_records(30, 1)
            cluster.terminate(broker_name(follower))
            wait_for(lambda: partition().in_sync_replicas == (led_by,), "the follower has left")
            assert produce(cluster, 25) == 64
            wait_for(lambda: bool(consumer.poll_records(1, 65)) and consumer.position((TOPIC, 0)) == 65, "all are read")
            consumer.commit()
        cluster.kill(broker_name(led_by))
        cluster.restart(broker_name(follower))
        wait_for(lambda: partition().leader == follower, "the follower leads")
        assert produce(cluster, 30) == 69
        with Consumer(cluster.bootstrap, **GROUP) as consumer:
            consumer.subscribe(TOPIC)
            with pytest.raises(LogTruncatedError, match="continue at 40 or below") as truncated:
                consumer.poll_records(30, 1)
            end = int(truncated.value.metadata["diverging_end_offset"])
            assert end == 40
            consumer.seek((TOPIC, 0), end)
            assert consumer.poll_records(30, 1)[0].offset == 40
