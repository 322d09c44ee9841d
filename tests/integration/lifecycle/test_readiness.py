# SPDX-License-Identifier: Apache-2.0
"""Probes of real processes: alive from the start, ready when a rolling restart may continue."""

from __future__ import annotations

import shutil
import signal
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.client import AdminClient, Producer
from tidemark.core.cluster_view import PartitionView
from tidemark.local.cluster import LocalCluster, broker_name, controller_name

from tests.integration.harness.waiting import wait_for
from tests.integration.harness.zookeeper_root import own_zookeepers

TOPIC = "boots"
SETTINGS = {"broker": {"zookeeper.session.timeout.ms": "3000"}}
WAIT_S = 60.0


def wait_until_says(cluster: LocalCluster, name: str, service: str) -> None:
    wait_for(lambda: says(cluster, name, service), f"{name} states {service}")


def says(cluster: LocalCluster, name: str, service: str) -> bool:
    """Whether its health is SERVING; False if no process listens."""
    with grpc.insecure_channel(cluster.address(name)) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=2
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with own_zookeepers(), LocalCluster(tmp_path_factory.mktemp("readiness"), settings=SETTINGS) as started:
        yield started


@pytest.fixture
def cluster(whole: LocalCluster) -> Iterator[LocalCluster]:
    """A cluster with all services ready before a test, and after it."""
    yield whole
    for name in whole.names:
        wait_until_says(whole, name, "readiness")


def test_every_service_is_alive_and_ready_a_standby_too(cluster: LocalCluster) -> None:
    for name in cluster.names:
        for service in ("readiness", "", "liveness"):
            wait_until_says(cluster, name, service)


def test_a_restarted_broker_is_ready_only_when_its_replicas_are_back_in_their_isrs(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=6, replication_factor=3)

        def partitions() -> list[PartitionView]:
            return list(admin.describe_topics([TOPIC])[0].partitions.values())

        def everywhere(broker: int) -> bool:
            return all(broker in one.in_sync_replicas for one in partitions())

        with Producer(cluster.bootstrap) as producer:
            for number in range(60):
                producer.send(TOPIC, str(number).encode(), partition=number % 6)
            producer.flush(15)
        for broker, end in ((0, cluster.terminate), (1, cluster.kill)):
            end(broker_name(broker))
            cluster.pause(broker_name(2))  # no leader there can add the other to an ISR
            cluster.process(broker_name(broker)).start()
            wait_until_says(cluster, broker_name(broker), "liveness")
            cluster.resume(broker_name(2))
            wait_until_says(cluster, broker_name(broker), "readiness")
            assert everywhere(broker)


def test_a_broker_whose_disk_was_replaced_is_ready_when_the_others_have_filled_it(cluster: LocalCluster) -> None:
    name = broker_name(1)
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("refilled", partitions=6, replication_factor=3)
        for number in range(60):
            producer.send("refilled", str(number).encode(), partition=number % 6)
        producer.flush(15)
        cluster.terminate(name)
        shutil.rmtree(cluster.directory / name)
        cluster.process(name).start()
        wait_until_says(cluster, name, "readiness")
        assert all(1 in one.in_sync_replicas for one in admin.describe_topics(["refilled"])[0].partitions.values())


def test_brokers_of_a_whole_cluster_that_starts_one_after_the_other_do_not_wait_for_one_another(
    cluster: LocalCluster,
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("everywhere", partitions=6, replication_factor=3)
        admin.create_topic("alone", partitions=3, replication_factor=1)
    names = [broker_name(index) for index in range(3)]
    for name in names:
        cluster.terminate(name)
    for name in names:
        cluster.process(name).start()
        wait_until_says(cluster, name, "readiness")


def test_a_broker_without_zookeeper_is_alive_and_not_ready_with_a_reason(cluster: LocalCluster) -> None:
    name = broker_name(0)
    cluster.terminate(name)
    cluster.zookeeper.stop()
    process = cluster.process(name)
    process.start()
    wait_until_says(cluster, name, "liveness")
    wait_for(lambda: "waiting for ZooKeeper" in process.tail(), "the broker logs the wait")
    assert not says(cluster, name, "readiness")
    assert not says(cluster, name, "tidemark.v1.BrokerService")
    with urllib.request.urlopen(f"http://{cluster.metrics_address(name)}/metrics", timeout=30) as page:
        assert b"tidemark_" in page.read(), "the metrics are served"
    cluster.zookeeper.start()
    wait_until_says(cluster, name, "readiness")


def test_a_stopping_broker_is_not_ready_while_it_serves(cluster: LocalCluster) -> None:
    name, controllers = broker_name(0), (controller_name(0), controller_name(1))
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("led", partitions=3, replication_factor=1)
    for controller in controllers:
        cluster.pause(controller)  # no controller elects other leaders
    process = cluster.process(name)
    process.signal(signal.SIGTERM)
    wait_for(lambda: not says(cluster, name, "readiness"), "not ready")
    for service in ("liveness", "tidemark.v1.BrokerService"):
        wait_until_says(cluster, name, service)  # a stopped service never reports SERVING again
    for controller in controllers:
        cluster.resume(controller)
    assert process.wait(WAIT_S), process.tail()
    assert process.exit_status == 0
    cluster.restart(name)
