# SPDX-License-Identifier: Apache-2.0
"""One of a broker's two log directories fails: the broker leads nothing there, and continues with the other (R6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TopicPartition
from tidemark.rpc.log_dirs import LogDirectoryContent

from tests.integration.harness.broken_disk import DEADLINE_S, cluster_with_hook, disks, held, led, two_disks
from tests.integration.harness.waiting import wait_for

HOOK = """
import os
real, broken = os.fdatasync, os.environ["BROKEN_DISK"]

def fdatasync(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if os.path.exists(broken) and path.startswith(open(broken).read()):
        raise OSError(5, "Input/output error")
    real(descriptor)

os.fdatasync = fdatasync
"""
TOPICS = ("idle", "safe")
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path, broken: Path) -> Iterator[LocalCluster]:
    with cluster_with_hook(HOOK, tmp_path, broken, brokers=3) as started:
        yield started


def test_a_directory_that_fails_loses_its_leaderships_idle_ones_too_and_the_other_keeps_its(
    cluster: LocalCluster, broken: Path
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        everything = {TopicPartition(topic, index) for topic in TOPICS for index in range(PARTITIONS)}

        def create() -> Sequence[str]:
            admin.create_topic("idle", partitions=PARTITIONS, replication_factor=3)
            admin.create_topic(
                "safe", partitions=PARTITIONS, replication_factor=3, configs={"flush.policy": "group-commit"}
            )
            wait_for(lambda: set.union(*map(held, disks(cluster))) == everything, "broker 0 has all replicas open")
            return TOPICS

        found = two_disks(cluster, admin, create, leaderships=len(everything) // 3)
        bad, good = sorted(found, key=lambda disk: len(led(disk)), reverse=True)
        written = next(one for one in sorted(held(bad)) if one.topic == "safe")
        broken.write_text(bad.path)
        producer.send("safe", b"record", partition=written.partition).result(DEADLINE_S)

        def lost() -> bool:
            topics = {one.topic: one for one in admin.describe_topics(TOPICS)}
            states = [topics[one.topic].partitions[one.partition] for one in held(bad)]
            return all(state.leader != 0 and 0 not in state.in_sync_replicas for state in states)

        wait_for(lost, "other brokers lead the directory's partitions, and this one is not in sync")
        after: dict[str, LogDirectoryContent] = {}

        def told_of_all() -> bool:
            """After a command for the next leader, the broker opens each log again; until then it does not report
            the replica.
            """
            after.update({disk.directory_id: disk for disk in disks(cluster)})
            return held(after[bad.directory_id]) == held(bad)

        wait_for(told_of_all, "the broker reports every replica of that directory")
        failed = after[bad.directory_id]
        assert failed.error is not None
        assert failed.error.code is ErrorCode.STORAGE_ERROR
        assert all(replica.offline and replica.size_bytes == -1 for replica in failed.replicas)
        assert after[good.directory_id].error is None
        assert set(led(after[good.directory_id])) >= set(led(good))
        handles = [producer.send(one.topic, b"after", partition=one.partition) for one in sorted(everything)]
        for handle in handles:
            handle.result(DEADLINE_S)
