# SPDX-License-Identifier: Apache-2.0
"""Real incidents: each makes its alert fire in a real Prometheus, and the alert ends after the incident."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import NO_LEADER, PartitionReassignment, TopicPartition

from tests.charts.busy_cluster import BROKERS, CONTROLLERS, targets
from tests.charts.prometheus import Prometheus, impatient, program
from tests.charts.test_dashboards import PANELS
from tests.charts.test_panels import asked_now, has_data
from tests.integration.harness.waiting import wait_for

TOPIC: Final = "flights"
HOOK: Final = """
import os
real, broken = os.pwritev, os.environ["BROKEN_DISK"]

def pwritev(descriptor, buffers, position):
    if os.path.exists(broken):
        with open(broken) as file:
            number, place = file.read().split()
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(place):
            raise OSError(int(number), os.strerror(int(number)))
    return real(descriptor, buffers, position)

os.pwritev = pwritev
"""
SETTINGS: Final = {
    "broker": {"zookeeper.session.timeout.ms": "3000", "replica.lag.time.max.ms": "2000"},
    "controller": {"zookeeper.session.timeout.ms": "3000"},
}

OF_THE_MACHINE: Final = {"TidemarkDiskSpaceLow", "TidemarkEventLoopStalls", "TidemarkZooKeeperSlow"}
"""Alerts that can fire on a small or overloaded machine in any case."""


class World(NamedTuple):
    """A cluster, a Prometheus that scrapes it, and the file that breaks broker 0's second disk."""

    cluster: LocalCluster
    prometheus: Prometheus
    broken: Path
    disk: Path

    def produce(self, topic: str, records: int, acks: str | int = "all") -> None:
        with Producer(self.cluster.bootstrap, acks=acks) as producer:
            for number in range(records):
                producer.send(topic, str(number).encode(), key=str(number).encode())
            producer.flush(20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    program("prometheus")
    directory = tmp_path_factory.mktemp("incidents")
    hook, broken, disk = directory / "hook", directory / "broken", directory / "disk-b"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), *filter(None, [os.environ.get("PYTHONPATH")])])
    cluster = LocalCluster(
        directory / "cluster",
        brokers=BROKERS,
        controllers=CONTROLLERS,
        settings=SETTINGS | {broker_name(0): {"log.dirs": f"{directory / 'disk-a'},{disk}"}},
        environment={"PYTHONPATH": path, "BROKEN_DISK": str(broken)},
    )
    cluster.start()
    try:
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(TOPIC, partitions=6, replication_factor=3, configs={"min.insync.replicas": "2"})
        with Prometheus(directory / "prometheus", targets(cluster), impatient()) as prometheus:
            yield World(cluster, prometheus, broken, disk)
    finally:
        cluster.kill_all()


def filled(world: World, title: str) -> bool:
    """Whether a panel that is empty without an incident has data now."""
    panel = next(panel for _, panel in PANELS if panel.title == title)
    assert panel.empty_until is not None
    return all(has_data(world.prometheus, asked_now(query.selected)) for query in panel.queries)


def test_no_alert_fires_in_a_healthy_cluster(world: World) -> None:
    world.produce(TOPIC, 100)
    prometheus = world.prometheus
    wait_for(lambda: len(prometheus.query("up == 1")) == BROKERS + CONTROLLERS + 1, "all are scraped")
    wait_for(lambda: bool(prometheus.query("sum(tidemark_replica_count) == 18")), "all replicas are scraped")
    wait_for(lambda: set(prometheus.alerts()) <= OF_THE_MACHINE, "nothing is wrong")


def test_a_killed_broker(world: World) -> None:
    world.cluster.kill(broker_name(2))
    alerts = world.prometheus.wait_for_alerts("TidemarkServiceDown", "TidemarkUnderReplicated")
    assert alerts["TidemarkServiceDown"]["annotations"]["summary"] == "broker broker-2 does not answer"
    wait_for(lambda: filled(world, "Not in sync now"), "the panel names the partitions")
    world.cluster.restart(broker_name(2))
    world.prometheus.wait_for_peace("TidemarkServiceDown", "TidemarkUnderReplicated")


def test_a_disk_that_fails(world: World) -> None:
    world.broken.write_text(f"{errno.EIO} {world.disk}")
    world.produce(TOPIC, 200)
    alerts = world.prometheus.wait_for_alerts("TidemarkLogDirectoryOffline")
    assert alerts["TidemarkLogDirectoryOffline"]["labels"]["instance"] == broker_name(0)
    world.broken.unlink()
    world.cluster.restart(broker_name(0))
    world.prometheus.wait_for_peace("TidemarkLogDirectoryOffline", "TidemarkUnderReplicated")


def test_a_disk_that_is_full(world: World) -> None:
    world.broken.write_text(f"{errno.ENOSPC} {world.disk}")
    world.produce(TOPIC, 200)
    world.prometheus.wait_for_alerts("TidemarkLogDirectoryFull")
    world.broken.unlink()
    world.produce(TOPIC, 200)
    world.prometheus.wait_for_peace("TidemarkLogDirectoryFull", timeout_s=60)


def test_followers_that_hang(world: World) -> None:
    """No record is committed in this time, although the leader accepts acks=1 records."""
    with AdminClient(world.cluster.admin_address) as admin:
        partition, view = next(iter(admin.describe_topics([TOPIC])[0].partitions.items()))
    leader = view.leader
    others = [broker_name(broker) for broker in range(BROKERS) if broker != leader]
    bootstrap = world.cluster.bootstrap
    with Producer(bootstrap, acks=1) as producer, Producer(bootstrap) as careful, stopped(world.cluster, others):
        for number in range(20):
            producer.send(TOPIC, str(number).encode(), partition=partition)
        alerts = world.prometheus.wait_for_alerts("TidemarkHighWatermarkStalled", "TidemarkUnderMinIsr")
        assert alerts["TidemarkHighWatermarkStalled"]["labels"]["instance"] == broker_name(leader)
        wait_for(lambda: filled(world, "Under min ISR now"), "the panel names the partitions")
        refused = careful.send(TOPIC, b"to all", partition=partition)
        world.prometheus.wait_for_alerts("TidemarkProduceRefused")
        assert not refused.done()
    world.prometheus.wait_for_peace("TidemarkHighWatermarkStalled", "TidemarkUnderMinIsr", "TidemarkUnderReplicated")


@contextmanager
def stopped(cluster: LocalCluster, names: list[str]) -> Iterator[None]:
    try:
        for name in names:
            cluster.pause(name)
        yield
    finally:
        for name in names:
            cluster.resume(name)


def test_an_unclean_election(world: World) -> None:
    topic, cluster = "gauges", world.cluster
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    with AdminClient(cluster.admin_address) as admin:
        before = admin.create_topic(topic, replication_factor=2, configs=configs).partitions[0]
        leader = broker_name(before.leader)
        follower = broker_name(next(broker for broker in before.assigned_replicas if broker != before.leader))
        world.produce(topic, 10)
        cluster.terminate(follower)
        world.produce(topic, 10)
        cluster.kill(leader)
        world.prometheus.wait_for_alerts("TidemarkPartitionsOffline")
        assert admin.describe_topics([topic])[0].partitions[0].leader == NO_LEADER
    cluster.restart(follower)
    world.prometheus.wait_for_alerts("TidemarkUncleanElection")
    cluster.restart(leader)
    world.prometheus.wait_for_peace("TidemarkPartitionsOffline", "TidemarkUnderReplicated", "TidemarkServiceDown")


def test_a_move_to_a_broker_that_is_gone(world: World) -> None:
    where = TopicPartition("parcels", 0)
    with AdminClient(world.cluster.admin_address) as admin:
        view = admin.create_topic(where.topic, replication_factor=1).partitions[0]
        gone = (view.leader + 1) % BROKERS
        world.cluster.kill(broker_name(gone))
        admin.alter_partition_reassignments([PartitionReassignment(where, (gone,))])
        world.prometheus.wait_for_alerts("TidemarkReassignmentStuck")
        world.cluster.restart(broker_name(gone))
        for _ in admin.watch_partition_reassignments([where]):
            pass
    world.prometheus.wait_for_peace("TidemarkReassignmentStuck", "TidemarkUnderReplicated")


def test_no_controller(world: World) -> None:
    names = [controller_name(number) for number in range(CONTROLLERS)]
    for name in names:
        world.cluster.kill(name)
    alerts = world.prometheus.wait_for_alerts("TidemarkNoActiveController")
    assert alerts["TidemarkNoActiveController"]["annotations"]["summary"] == "cluster test has no active controller"
    for name in names:
        world.cluster.restart(name)
    world.prometheus.wait_for_peace("TidemarkNoActiveController")


def test_zookeeper_is_away(world: World) -> None:
    world.cluster.zookeeper.stop()
    world.prometheus.wait_for_alerts("TidemarkZooKeeperSessionLost")
    disconnected = 'count(max by (instance) (tidemark_zookeeper_session_state{state="connected"}) == 0)'
    wait_for(
        lambda: bool(world.prometheus.query(f"{disconnected} == {BROKERS + CONTROLLERS + 1}")), "all services report it"
    )
    world.cluster.zookeeper.start()
    world.prometheus.wait_for_peace("TidemarkZooKeeperSessionLost", "TidemarkNoActiveController")
