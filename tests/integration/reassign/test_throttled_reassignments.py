# SPDX-License-Identifier: Apache-2.0
"""A move with a throttle among real processes: it takes the time of the throttle, and does not slow other traffic
(M2).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import BrokerId, PartitionReassignment, TopicPartition
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.store import ZooKeeperMetadataStore

from tests.integration.harness.metrics import samples

DEADLINE_S = 30.0
VALUE_BYTES = 100_000
RECORDS = 60
RATE = 2_000_000
MOVED = TopicPartition("moved", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", controllers=1) as started:
        yield started


def submit(cluster: LocalCluster, move: PartitionReassignment) -> None:
    async def submitted() -> None:
        store = ZooKeeperMetadataStore(cluster.zookeeper.connect, session_timeout_ms=6000, clock=SystemClock())
        await store.start()
        try:
            await store.submit_moves([move])
        finally:
            await store.stop()

    asyncio.run(submitted())


def metric(cluster: LocalCluster, broker: int, name: str) -> float:
    return samples(cluster, broker_name(broker))[f"tidemark_replica_{name}"]


@pytest.mark.alone
def test_a_reassignment_keeps_to_its_throttle_and_does_not_delay_producers(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topic(MOVED.topic, partitions=1, replication_factor=2)
        for handle in [producer.send(MOVED.topic, os.urandom(VALUE_BYTES), partition=0) for _ in range(RECORDS)]:
            handle.result(DEADLINE_S)
        before = admin.describe_topics([MOVED.topic])[0].partitions[0]
        (added,) = {BrokerId(0), BrokerId(1), BrokerId(2)} - set(before.assigned_replicas)
        target = (before.assigned_replicas[0], added)
        began_s = time.monotonic()
        submit(cluster, PartitionReassignment(MOVED, target, throttle_bytes_per_s=RATE))
        held_up_s = 0.0
        throttled = False
        while tuple(admin.describe_topics([MOVED.topic])[0].partitions[0].assigned_replicas) != target:
            assert time.monotonic() - began_s < DEADLINE_S, "the move has not ended"
            sent_s = time.monotonic()
            producer.send(MOVED.topic, b"small", partition=0).result(DEADLINE_S)
            held_up_s = max(held_up_s, time.monotonic() - sent_s)
            throttled |= metric(cluster, before.leader, "throttled") > 0
            assert (
                metric(cluster, before.leader, "reassignment_out_bytes_total")
                <= RATE * (1 + time.monotonic() - began_s) + 2 * VALUE_BYTES
            )
            time.sleep(0.05)
        took_s = time.monotonic() - began_s
        moved_bytes = RECORDS * VALUE_BYTES
        assert took_s >= moved_bytes / RATE - 1, "all but a second's worth waits for the throttle"
        assert throttled
        assert held_up_s < took_s / 2
        assert metric(cluster, added, "reassignment_in_bytes_total") >= moved_bytes
        assert metric(cluster, before.leader, "throttled") == 0
        after = admin.describe_topics([MOVED.topic])[0].partitions[0]
        assert set(after.in_sync_replicas) == set(target)
