# SPDX-License-Identifier: Apache-2.0
"""Compacted topics among real processes: each replica keeps the latest record of each key, after any kill (L1)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode

from tests.integration.harness.metrics import samples
from tests.integration.harness.waiting import wait_for
from tests.refusals import raises_code

DEADLINE_S = 60.0
TOPIC = "prices"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.insync.replicas": "2",
}
CLEANER = {"log.cleaner.backoff.ms": "100"}
Records = list[tuple[int, bytes | None, bytes | None]]
Latest = dict[bytes, bytes | None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", controllers=1, settings={"broker": CLEANER}) as started:
        yield started


def metric(cluster: LocalCluster, broker: int, name: str) -> float:
    return samples(cluster, broker_name(broker))[f"tidemark_broker_log_cleaner_{name}"]


def produce(producer: Producer, latest: Latest, rng: random.Random, count: int) -> None:
    """Send updates of a hundred keys, some of them deletions, until all are acknowledged."""
    sent = []
    for _ in range(count):
        key = b"key-%d" % rng.randrange(100)
        value = None if rng.random() < 0.05 else rng.randbytes(60)
        sent.append(producer.send(TOPIC, value, key=key, partition=0))
        latest[key] = value
    for handle in sent:
        handle.result(DEADLINE_S)


def consume(cluster: LocalCluster, producer: Producer) -> Records:
    """Send a record, and read all records from the start up to this one."""
    end = producer.send(TOPIC, b"", key=b"end", partition=0).result(DEADLINE_S).offset
    found: Records = []
    ends_s = time.monotonic() + DEADLINE_S
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(TOPIC, [0])
        while not found or found[-1][0] < end:
            assert time.monotonic() < ends_s, f"consumed up to {found[-1:]}, not {end}"
            batch = consumer.poll(1.0)
            if batch is not None:
                columns = (batch.rows.column(name).to_pylist() for name in ("offset", "key", "value"))
                found += zip(*columns, strict=True)
    return found


def check(found: Records, latest: Latest) -> None:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets)), "in order, once each"
    last = {key: value for _, key, value in found if key != b"end"}
    assert {key: value for key, value in last.items() if value is not None} == {
        key: value for key, value in latest.items() if value is not None
    }


def test_each_replica_is_cleaned_and_serves_the_latest_record_of_each_key(cluster: LocalCluster) -> None:
    latest: Latest = {}
    rng = random.Random(1)
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=1) as producer:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, configs=SETTINGS)
        with raises_code(ErrorCode.NULL_KEY):
            producer.send(TOPIC, b"x", partition=0).result(DEADLINE_S)
        for _ in range(5):
            produce(producer, latest, rng, 1000)
        wait_for(lambda: all(metric(cluster, one, "runs_total") > 0 for one in range(3)), "every broker has cleaned")
        dirtiest = 'dirty_ratio_max{directory="0"}'
        wait_for(lambda: all(metric(cluster, one, dirtiest) < 0.1 for one in range(3)), "nothing is dirty")
        found = consume(cluster, producer)
        check(found, latest)
        assert len(found) < 2500
        assert all(metric(cluster, one, "freed_bytes_total") > 0 for one in range(3))
        assert sum(metric(cluster, one, "failures_total") for one in range(3)) == 0


def test_brokers_that_are_killed_while_they_clean_come_back_and_follow_across_holes(cluster: LocalCluster) -> None:
    latest: Latest = {}
    rng = random.Random(2)
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap, linger_ms=1) as producer:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, configs=SETTINGS)

        def in_sync() -> bool:
            return len(admin.describe_topics([TOPIC])[0].partitions[0].in_sync_replicas) == 3

        def leader() -> int:
            return admin.describe_topics([TOPIC])[0].partitions[0].leader

        produce(producer, latest, rng, 1000)
        for broker in range(3):
            cluster.kill(broker_name(broker))
            for _ in range(3):
                produce(producer, latest, rng, 1000)
            cluster.restart(broker_name(broker))
            wait_for(in_sync, "the broker that was killed catches up")
        for _ in range(3):
            gone = leader()
            check(consume(cluster, producer), latest)
            cluster.kill(broker_name(gone))
            wait_for(lambda gone=gone: leader() not in (gone, -1), "another leads")  # type: ignore[misc]
            check(consume(cluster, producer), latest)
            cluster.restart(broker_name(gone))
            wait_for(in_sync, "the broker that was killed catches up")
        assert sum(metric(cluster, one, "failures_total") for one in range(3)) == 0
