# SPDX-License-Identifier: Apache-2.0
"""A killed broker opens its logs again: from the recovery point on, in both directories, with a log line (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.harness.metrics import samples

DEADLINE_S = 30.0
PARTITIONS = 12
RECORDS = 1200
TOPIC = "flights"


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-a", tmp_path / "disk-b"]


@pytest.fixture
def cluster(tmp_path: Path, disks: list[Path]) -> Iterator[LocalCluster]:
    settings = {
        broker_name(0): {
            "log.dirs": ",".join(str(disk) for disk in disks),
            "log.dir.choice": "most-free-bytes",
            "num.recovery.threads.per.data.dir": "1",
        }
    }
    with LocalCluster(tmp_path / "cluster", brokers=1, controllers=1, settings=settings) as started:
        yield started


def produce(cluster: LocalCluster, name: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        sent = [
            producer.send(TOPIC, f"{name}-{number}".encode(), partition=number % PARTITIONS)
            for number in range(RECORDS)
        ]
        for one in sent:
            one.result(DEADLINE_S)


def consumed(cluster: LocalCluster, count: int) -> Counter[bytes]:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(TOPIC, list(range(PARTITIONS)), 0)
        return Counter(record.value or b"" for record in islice(consumer, count))


def remaining(cluster: LocalCluster, what: str) -> dict[str, float]:
    """A gauge of recovery by directory."""
    prefix = f'tidemark_log_recovery_remaining_{what}{{directory="'
    found = samples(cluster, broker_name(0)).items()
    return {key.removeprefix(prefix).removesuffix('"}'): value for key, value in found if key.startswith(prefix)}


def test_after_kills_every_record_is_there_though_indexes_are_lost_or_wrong(
    cluster: LocalCluster, disks: list[Path]
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1, configs={"segment.bytes": "16384"})
    expected: Counter[bytes] = Counter()
    for name in ("first", "second", "third"):
        produce(cluster, name)
        expected.update(f"{name}-{number}".encode() for number in range(RECORDS))
        cluster.kill(broker_name(0))
        for disk in disks:
            assert list(disk.glob(f"{TOPIC}-*/*.log")), "the replicas are in both directories"
            indexes = sorted(disk.glob(f"{TOPIC}-*/*.*index"))
            for number, index in enumerate(indexes):
                if number % 3 == 0:
                    index.unlink()
                elif number % 3 == 1:
                    index.write_bytes(index.read_bytes()[:-1] + b"?")
        cluster.restart(broker_name(0))
        assert consumed(cluster, expected.total()) == expected
        zero = {str(disk): 0.0 for disk in disks}
        assert remaining(cluster, "logs") == zero
        assert remaining(cluster, "bytes") == zero
