# SPDX-License-Identifier: Apache-2.0
"""All brokers are killed, and the log of the leader lacks the end of its last write (rule T7)."""

from __future__ import annotations

from pathlib import Path

from tidemark.client import AdminClient, Consumer, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.harness.waiting import wait_for

TOPIC = "torn"
BROKERS = 3
CUT_BYTES = 100
BATCHES = 40
SETTINGS = {
    "broker": {"zookeeper.session.timeout.ms": "3000", "replica.high.watermark.checkpoint.interval.ms": "600000"},
    "controller": {"leader.election.wait.ms": "1000"},
}


def cut(cluster: LocalCluster, broker_id: int) -> None:
    segment = max((cluster.directory / broker_name(broker_id) / f"{TOPIC}-0").glob("*.log"))
    with segment.open("rb+") as file:
        file.truncate(segment.stat().st_size - CUT_BYTES)


def log_of(cluster: LocalCluster, broker_id: int) -> str:
    return (cluster.directory / "logs" / f"{broker_name(broker_id)}.log").read_text()


def test_a_replica_with_a_cut_tail_does_not_lead_alone_and_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, brokers=BROKERS, controllers=1, settings=SETTINGS) as cluster,
        AdminClient(cluster.admin_address) as admin,
    ):
        configs = {"min.insync.replicas": str(BROKERS)}  # so that all stay eligible in any order of the sessions' ends
        admin.create_topic(TOPIC, partitions=1, replication_factor=BROKERS, configs=configs)

        def partition() -> PartitionView:
            return admin.describe_topics([TOPIC])[0].partitions[0]

        wait_for(lambda: len(partition().in_sync_replicas) == BROKERS, "all in sync")
        with Producer(cluster.bootstrap, linger_ms=0) as producer:
            for number in range(BATCHES):
                producer.send(TOPIC, b"%d" % number, partition=0).result(30)
        first = partition().leader
        for broker_id in range(BROKERS):
            cluster.kill(broker_name(broker_id))
        cut(cluster, first)
        wait_for(lambda: partition().leader == -1, "the sessions have expired")
        cluster.restart(broker_name(first))
        wait_for(lambda: "tail_cut" in log_of(cluster, first), "the log is open")
        for broker_id in range(BROKERS):
            if broker_id != first:
                cluster.restart(broker_name(broker_id))
        wait_for(lambda: partition().leader >= 0, "a leader")
        wait_for(lambda: len(partition().in_sync_replicas) == BROKERS, "all in sync again")
        records: list[bytes] = []
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign(TOPIC, start="earliest")
            while len(records) < BATCHES:
                found = consumer.poll(timeout_s=30)
                assert found, f"{len(records)} of {BATCHES} records are left"
                records += found.rows.column("value").to_pylist()
        assert records == [b"%d" % number for number in range(BATCHES)]
        assert not admin.list_unclean_elections([TOPIC])
