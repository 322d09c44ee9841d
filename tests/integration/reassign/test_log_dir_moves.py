# SPDX-License-Identifier: Apache-2.0
"""Replicas move between the two log directories of a broker, among real processes: under load, through kill -9 (M3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.rpc.codecs.alter_log_dirs import AlterLogDirs, alterations_to_proto, results_from_proto
from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk, describe_log_dirs
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

from tests.integration.harness.beside import Beside
from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

DEADLINE_S = 60.0
BROKER = broker_name(0)
MOVING = TopicPartition("moving", 0)
VALUE_BYTES = 500
SLOW_BYTES_PER_S = 100_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    disks = {BROKER: {"log.dirs": f"{tmp_path / 'disk-a'},{tmp_path / 'disk-b'}"}}
    with LocalCluster(tmp_path / "cluster", brokers=1, controllers=1, settings=disks) as started:
        yield started


class Load(Beside):
    """Sends records one after the other, and notes the acknowledged ones."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[bytes] = []
        self.refused: list[BaseException] = []
        super().__init__()

    def run(self) -> None:
        with Producer(self._cluster.bootstrap, acks="all") as producer:
            while not self.stopping.is_set():
                value = b"%010d" % len(self.acknowledged) + b"x" * VALUE_BYTES
                try:
                    producer.send(MOVING.topic, value, partition=MOVING.partition).result(DEADLINE_S)
                except TidemarkError as error:
                    self.refused.append(error)
                    return
                self.acknowledged.append(value)

    def wait_for(self, count: int) -> None:
        """Wait for this number of further records."""
        wanted = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= wanted or bool(self.refused), "records are acknowledged")
        assert self.refused == []


def disks(cluster: LocalCluster, broker: str = BROKER) -> list[LogDirectoryContent]:
    return list(asyncio.run(describe_log_dirs(cluster.address(broker), partitions=[MOVING])))


def where(cluster: LocalCluster, broker: str = BROKER) -> tuple[int | None, ReplicaOnDisk | None]:
    """(index of the directory of the replica, index of the directory with its copy)."""
    place: int | None = None
    copy = None
    for index, disk in enumerate(disks(cluster, broker)):
        for replica in disk.replicas:
            place, copy = (place, replica) if replica.future else (index, copy)
    return place, copy


def ask(
    cluster: LocalCluster, log_dir: Path | str, *, throttle_bytes_per_s: int = 0, broker: str = BROKER
) -> TidemarkError | None:
    request = AlterLogDirs(((MOVING, str(log_dir)),), throttle_bytes_per_s=throttle_bytes_per_s)
    with grpc.insecure_channel(cluster.address(broker)) as channel:
        stub: Any = BrokerServiceStub(channel)
        response = stub.AlterReplicaLogDirs(alterations_to_proto(request), timeout=DEADLINE_S)
    ((_, error),) = results_from_proto(response)
    return error


def paths(cluster: LocalCluster, broker: str = BROKER) -> list[str]:
    return [disk.path for disk in disks(cluster, broker)]


def consumed(cluster: LocalCluster, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline_s = time.monotonic() + DEADLINE_S
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(MOVING.topic, [MOVING.partition])
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{len(found)} of {count} records came"
            batch = consumer.poll(1.0)
            if batch is not None:
                found += batch.rows.column("value").to_pylist()
    return found


def metric(cluster: LocalCluster, name: str) -> float:
    return samples(cluster, BROKER)[f"tidemark_{name}"]


def make_topic(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(MOVING.topic, replication_factor=1, configs={"segment.bytes": "200000"})
    wait_for(lambda: where(cluster)[0] is not None, "the replica is there")


def fill(cluster: LocalCluster, count: int) -> list[bytes]:
    values = [b"before %010d" % number + b"x" * VALUE_BYTES for number in range(count)]
    with Producer(cluster.bootstrap) as producer:
        sent = [producer.send(MOVING.topic, value, partition=MOVING.partition) for value in values]
        for one in sent:
            one.result(DEADLINE_S)
    return values


def test_a_replica_moves_under_load_and_back_and_no_record_is_lost_or_doubled(cluster: LocalCluster) -> None:
    make_topic(cluster)
    before = fill(cluster, 2000)
    first, _ = where(cluster)
    assert first is not None
    with Load(cluster) as load:
        load.wait_for(20)
        for target in (1 - first, first):
            assert ask(cluster, paths(cluster)[target]) is None
            wait_for(lambda: where(cluster) == (target, None), "the replica has moved")  # noqa: B023 - called here
            load.wait_for(20)
    assert consumed(cluster, 2000 + len(load.acknowledged)) == before + load.acknowledged
    assert metric(cluster, "broker_log_dir_moves_done_total") == 2
    assert metric(cluster, "broker_log_dir_moves_failed_total") == 0


def test_a_broker_that_is_killed_in_the_middle_of_a_move_continues_with_it(cluster: LocalCluster) -> None:
    make_topic(cluster)
    before = fill(cluster, 4000)
    first, _ = where(cluster)
    assert first is not None
    with Load(cluster) as load:
        assert ask(cluster, paths(cluster)[1 - first], throttle_bytes_per_s=SLOW_BYTES_PER_S) is None
        wait_for(lambda: copied(cluster) > 0, "the copy grows")
        load.wait_for(5)
        assert where(cluster)[0] == first
        cluster.kill(BROKER)
        cluster.restart(BROKER)
        wait_for(lambda: where(cluster) == (1 - first, None), "the move ends, without being asked for again")
        load.wait_for(20)
    found = consumed(cluster, 4000 + len(load.acknowledged))
    assert found == before + load.acknowledged
    cluster.restart(BROKER)
    wait_for(lambda: where(cluster) == (1 - first, None), "the replica is in the new directory after a clean stop, too")
    assert consumed(cluster, len(found)) == found


def test_a_log_dir_move_is_cancelled_by_naming_the_current_directory_and_errors_are_reported(
    cluster: LocalCluster,
) -> None:
    make_topic(cluster)
    before = fill(cluster, 1000)
    first, _ = where(cluster)
    assert first is not None
    error = ask(cluster, "/no/such/directory")
    assert error is not None
    assert error.code is ErrorCode.LOG_DIR_NOT_FOUND
    assert all(path in error.message for path in paths(cluster))
    assert ask(cluster, paths(cluster)[1 - first], throttle_bytes_per_s=20_000) is None
    wait_for(lambda: copied(cluster) > 0, "the copy grows")
    assert ask(cluster, paths(cluster)[first]) is None
    wait_for(lambda: where(cluster) == (first, None), "the copy goes")
    assert consumed(cluster, 1000) == before


def test_leader_and_follower_move_at_once_and_the_isr_stays(tmp_path: Path) -> None:
    names = [broker_name(0), broker_name(1)]
    settings = {one: {"log.dirs": f"{tmp_path / one / 'a'},{tmp_path / one / 'b'}"} for one in names}
    with LocalCluster(tmp_path / "cluster", brokers=2, controllers=1, settings=settings) as cluster:
        configs = {"segment.bytes": "100000", "min.insync.replicas": "2", "flush.policy": "group-commit"}
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(MOVING.topic, replication_factor=2, configs=configs)
            leader = leader_of(admin)
        with Load(cluster) as load:
            load.wait_for(100)
            for _ in range(2):
                places = {one: where(cluster, one)[0] for one in names}
                targets = {one: 1 - place for one, place in places.items() if place is not None}
                assert len(targets) == 2
                for one in names:
                    assert ask(cluster, paths(cluster, one)[targets[one]], broker=one) is None
                wait_for(lambda: all(where(cluster, one) == (targets[one], None) for one in names), "moved")  # noqa: B023
                load.wait_for(50)
            with AdminClient(cluster.admin_address) as admin:
                (topic,) = admin.describe_topics([MOVING.topic])
                assert sorted(topic.partitions[0].in_sync_replicas) == [0, 1]
                assert leader_of(admin) == leader, "a pause that short moves no leadership"
            cluster.kill(leader)
            cluster.restart(leader)
            load.wait_for(20)
        assert consumed(cluster, len(load.acknowledged)) == load.acknowledged


def leader_of(admin: AdminClient) -> str:
    return broker_name(admin.describe_topics([MOVING.topic])[0].partitions[0].leader)


def copied(cluster: LocalCluster) -> int:
    copy = where(cluster)[1]
    return 0 if copy is None else copy.log_end_offset
