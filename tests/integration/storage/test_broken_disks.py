# SPDX-License-Identifier: Apache-2.0
"""Disks that fail under appends, full, with I/O errors, read-only; among real processes (rules R6, R7)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.integration.harness.broken_disk import DEADLINE_S, cluster_with_hook, disks, led, two_disks
from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for

HOOK = """
import os
real, broken = os.pwritev, os.environ["BROKEN_DISK"]

def pwritev(descriptor, buffers, position):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    try:
        lines = open(broken).read().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        number, place = line.split(" ", 1)
        if path.startswith(place):
            raise OSError(int(number), os.strerror(int(number)))
    return real(descriptor, buffers, position)

os.pwritev = pwritev
"""
PARTITIONS = 4


@pytest.fixture
def cluster(tmp_path: Path, broken: Path) -> Iterator[LocalCluster]:
    with cluster_with_hook(HOOK, tmp_path, broken, brokers=2) as started:
        yield started


def metric(cluster: LocalCluster, name: str) -> float:
    return samples(cluster, broker_name(0))[f"tidemark_{name}"]


def create(admin: AdminClient, topic: str, *, replicas: int) -> list[str]:
    configs = {"min.insync.replicas": "1"}
    admin.create_topic(topic, partitions=PARTITIONS * 2, replication_factor=replicas, configs=configs)
    return [topic]


def refusal(producer: Producer, partition: TopicPartition) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        producer.send(partition.topic, b"record", partition=partition.partition).result(DEADLINE_S)
    return caught.value


def test_a_full_directory_refuses_the_other_continues_and_space_is_enough_to_continue(
    cluster: LocalCluster, broken: Path
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        bad, good = two_disks(cluster, admin, lambda: create(admin, "alone", replicas=1), leaderships=PARTITIONS)
        with Producer(cluster.bootstrap) as producer:
            for one in (*led(bad), *led(good)):
                producer.send("alone", b"before", partition=one.partition).result(DEADLINE_S)
            broken.write_text(f"{errno.ENOSPC} {bad.path}\n")

            def is_full() -> bool:
                """On a busy machine a record may time out before its append reaches the disk."""
                with Producer(cluster.bootstrap, delivery_timeout_ms=2_000) as impatient:
                    assert refusal(impatient, led(bad)[0]).code in (ErrorCode.DISK_FULL, ErrorCode.REQUEST_TIMED_OUT)
                return metric(cluster, "full_log_directories") == 1

            wait_for(is_full, "a refused record has shown that the directory is full")
            for one in led(good):
                producer.send("alone", b"meanwhile", partition=one.partition).result(DEADLINE_S)
        assert metric(cluster, "full_log_directories") == 1
        assert [disk.error for disk in disks(cluster)] == [None, None], "a full disk is not a broken one"
        broken.unlink()
        with Producer(cluster.bootstrap) as producer:
            for one in led(bad):
                told = producer.send("alone", b"after", partition=one.partition).result(DEADLINE_S)
                assert told.offset == 1, "no refused record is in the log"
        wait_for(lambda: metric(cluster, "full_log_directories") == 0, "the gauge goes back")


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_directory_that_cannot_be_written_goes_offline_with_its_leaders_and_the_last_takes_the_broker(
    cluster: LocalCluster, broken: Path, number: int
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        bad, good = two_disks(cluster, admin, lambda: create(admin, "safe", replicas=2), leaderships=PARTITIONS)
        assert metric(cluster, "offline_log_directories") == 0
        broken.write_text(f"{number} {bad.path}\n")
        everything = [TopicPartition("safe", index) for index in range(2 * PARTITIONS)]
        for one in everything:
            producer.send("safe", b"record", partition=one.partition).result(DEADLINE_S)

        def leaders() -> dict[int, int]:
            return {index: one.leader for index, one in admin.describe_topics(["safe"])[0].partitions.items()}

        wait_for(lambda: all(leaders()[one.partition] == 1 for one in led(bad)), "its leaders are elsewhere")
        assert all(leaders()[one.partition] == 0 for one in led(good)), "the other directory's stay"
        wait_for(lambda: metric(cluster, "offline_log_directories") == 1, "the directory is known to be offline")
        states = {disk.path: disk.error for disk in disks(cluster)}
        assert states[good.path] is None
        assert (states[bad.path] or TidemarkError(ErrorCode.INTERNAL, "")).code is ErrorCode.STORAGE_ERROR
        broken.write_text(f"{number} {bad.path}\n{number} {good.path}\n")
        for one in everything:
            producer.send("safe", b"record", partition=one.partition).result(DEADLINE_S)
        wait_for(lambda: not cluster.process(broker_name(0)).running, "a broker without a directory leaves")
        wait_for(lambda: set(leaders().values()) == {1}, "and the other one leads everything")
