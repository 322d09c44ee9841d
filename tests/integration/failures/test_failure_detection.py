# SPDX-License-Identifier: Apache-2.0
"""A leader that is suspended while its connections stay: its silence alone ends its leadership (rule C5)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import NO_LEADER

from tests.integration.harness.by_hand import kazoo_of
from tests.integration.harness.waiting import wait_for

SESSION_MS = 60_000
"""The session of the stopped leader stays for at least 40 s: its last ping was sent within a third of the timeout."""
SOON_S = 15.0
SETTINGS = {"broker": {"zookeeper.session.timeout.ms": str(SESSION_MS), "replica.lag.time.max.ms": "3000"}}
REQUEST_MS = 3000
"""A producer whose metadata stream is at a hanging broker asks another broker after this time without an answer."""
_HOOK = """
import os, signal, time

def hang(*_):
    while os.path.exists(os.environ["HANGS"]):
        time.sleep(0.05)

signal.signal(signal.SIGUSR1, hang)
"""

Still = Callable[[LocalCluster, str], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("suspicion")
    (directory / "sitecustomize.py").write_text(_HOOK)
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "HANGS": str(directory / "hangs")}
    with LocalCluster(directory, settings=SETTINGS, environment=environment) as started:
        yield started


@contextmanager
def stopped(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Stop the whole process.

    Without the heartbeats' deadline, gRPC's keepalive takes three times as long to detect this.
    """
    cluster.pause(name)
    try:
        yield
    finally:
        cluster.resume(name)


@contextmanager
def hanging(cluster: LocalCluster, name: str) -> Iterator[None]:
    """Stop only the event loop: threads of gRPC and ZooKeeper continue, and answer pings."""
    hangs = cluster.directory / "hangs"
    hangs.touch()
    cluster.process(name).signal(signal.SIGUSR1)
    try:
        yield
    finally:
        hangs.unlink()


@pytest.mark.parametrize("stand_still", [stopped, hanging])
def test_a_leader_that_stands_still_is_replaced_long_before_its_session_ends(
    cluster: LocalCluster, stand_still: Still
) -> None:
    topic = stand_still.__name__
    sender = Producer(cluster.bootstrap, request_timeout_ms=REQUEST_MS)
    with AdminClient(cluster.admin_address) as admin, sender as producer:

        def partition() -> PartitionView:
            return admin.describe_topics([topic])[0].partitions[0]

        first = admin.create_topic(topic, replication_factor=3, configs={"min.insync.replicas": "2"}).partitions[0]
        sent = [producer.send(topic, b"before")]
        assert sent[0].result(SOON_S).offset == 0
        with kazoo_of(cluster) as zookeeper, stand_still(cluster, broker_name(first.leader)):
            sent += [producer.send(topic, str(number).encode()) for number in range(20)]
            wait_for(lambda: partition().leader not in (first.leader, NO_LEADER), "another one leads", SOON_S)
            sent += [producer.send(topic, str(number).encode()) for number in range(20)]
            assert [one.result(SOON_S).offset for one in sent] == list(range(len(sent)))
            assert zookeeper.exists(f"/brokers/ids/{first.leader}"), "ZooKeeper has not ended its session"
        wait_for(lambda: len(partition().in_sync_replicas) == 3, "the broker is in sync again")
        assert producer.send(topic, b"after").result(SOON_S).offset == len(sent)
