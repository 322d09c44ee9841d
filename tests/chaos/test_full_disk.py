# SPDX-License-Identifier: Apache-2.0
"""A broker runs out of disk: acknowledged records stay, and the other brokers continue.

Once space is free, the broker starts again and catches up.

Its directory is a small tmpfs in a mount namespace of its own, which a process of the test keeps; no root is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import LocalCluster
from tidemark.model import TopicPartition

from tests.chaos.arena.disks import entering, small_disk
from tests.chaos.checks.replicas import differences

TOPIC = "full"
PARTITIONS = 3
BALLAST_BYTES = 20 << 20
VALUE_BYTES = 1000
RECORDS = 16_000
DEADLINE_S = 60.0


def in_sync(admin: AdminClient) -> set[frozenset[int]]:
    return {frozenset(one.in_sync_replicas) for one in admin.describe_topics([TOPIC])[0].partitions.values()}


def wait_until(
    cluster: LocalCluster, admin: AdminClient, *wanted: int, meanwhile: Callable[[], None] = lambda: None
) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while in_sync(admin) != {frozenset(wanted)}:
        if time.monotonic() > deadline_s:
            pytest.fail(f"in sync: {in_sync(admin)}, wanted {wanted}; {cluster.process('broker-1').tail(60)}")
        meanwhile()
        time.sleep(0.1)


def send(producer: Producer, count: int) -> list[SendHandle]:
    value = b"v" * VALUE_BYTES
    return [producer.send(TOPIC, b"%d %s" % (n, value), partition=n % PARTITIONS) for n in range(count)]


def take_all_space(path: Path) -> None:
    """Write until the disk has no byte left."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size_bytes))


def offsets(bootstrap: str) -> dict[int, list[int]]:
    with RangeReader(bootstrap, deadline_s=DEADLINE_S) as reader:
        return {
            partition: [
                offset
                for rows in reader.read(TOPIC, partition, bounds.earliest, bounds.latest)
                for offset in rows["offset"].to_pylist()
            ]
            for partition, bounds in reader.bounds(TOPIC, range(PARTITIONS)).items()
        }


@pytest.mark.timeout(240)
def test_a_full_disk_costs_no_acknowledged_record_and_space_alone_brings_the_replica_back(tmp_path: Path) -> None:
    full = tmp_path / "broker-1"
    with small_disk(full) as keeper:
        seen_from_here = Path(f"/proc/{keeper}/root{full}")
        ballast = seen_from_here / "ballast"
        ballast.write_bytes(bytes(BALLAST_BYTES))
        with LocalCluster(tmp_path, launchers={"broker-1": entering(keeper)}) as cluster:
            with AdminClient(admin=cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
                admin.create_topic(
                    TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
                )
                sent = send(producer, RECORDS)
                producer.flush(DEADLINE_S)

                def send_more() -> None:
                    """Send once more, because a partition may have got all its records before the disk was full."""
                    sent.extend(send(producer, PARTITIONS))
                    producer.flush(DEADLINE_S)

                wait_until(cluster, admin, 0, 2, meanwhile=send_more)
                assert cluster.process("broker-1").running, "the broker itself stays"
                cluster.kill("broker-1")
                rest = seen_from_here / "rest"
                take_all_space(rest)
                cluster.restart("broker-1", DEADLINE_S)
                rest.unlink()
                ballast.unlink()
                wait_until(cluster, admin, 0, 1, 2)
                sent += send(producer, 100)
                producer.flush(DEADLINE_S)
            acknowledged: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
            for handle in sent:
                told = handle.result(0.0)
                acknowledged[told.partition].append(told.offset)
            assert offsets(cluster.bootstrap) == acknowledged
        directories = {0: [tmp_path / "broker-0"], 1: [seen_from_here], 2: [tmp_path / "broker-2"]}
        ends = {TopicPartition(TOPIC, partition): len(offsets) for partition, offsets in acknowledged.items()}
        assert differences(directories, ends, tmp_path) == []
