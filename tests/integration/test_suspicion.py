"""A leader that stands still on connections that stay: its silence alone ends its leadership (rule C5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import NO_LEADER

from tests.integration.by_hand import kazoo_of
from tests.integration.waiting import wait_for

TOPIC = "orders"
SESSION_MS = 60_000
"""ZooKeeper ends it 40 s after the leader stopped at the earliest: its last ping is a third of that old at most."""
SOON_S = 15.0
SETTINGS = {"broker": {"zookeeper.session.timeout.ms": str(SESSION_MS), "replica.lag.time.max.ms": "3000"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, settings=SETTINGS) as started:
        yield started


@contextmanager
def stopped(cluster: LocalCluster, name: str) -> Iterator[None]:
    cluster.pause(name)
    try:
        yield
    finally:
        cluster.resume(name)


def test_a_leader_that_stands_still_is_replaced_long_before_its_session_ends(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        first = admin.create_topic(TOPIC, replication_factor=3, configs={"min.insync.replicas": "2"}).partitions[0]
        sent = [producer.send(TOPIC, b"before")]
        assert sent[0].result(SOON_S).offset == 0
        with stopped(cluster, broker_name(first.leader)), kazoo_of(cluster) as zookeeper:
            sent += [producer.send(TOPIC, str(number).encode()) for number in range(20)]
            wait_for(
                lambda: admin.describe_topics([TOPIC])[0].partitions[0].leader not in (first.leader, NO_LEADER),
                "another one leads",
                SOON_S,
            )
            assert [one.result(SOON_S).offset for one in sent] == list(range(len(sent)))
            assert zookeeper.exists(f"/brokers/ids/{first.leader}"), "ZooKeeper knew nothing yet"
        wait_for(
            lambda: len(admin.describe_topics([TOPIC])[0].partitions[0].in_sync_replicas) == 3, "it is in sync again"
        )
        assert producer.send(TOPIC, b"after").result(SOON_S).offset == len(sent)
