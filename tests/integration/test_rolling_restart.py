"""Brokers are restarted one after the other under load, as an orchestrator does it that waits for readiness."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.client.records import records_of
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.test_cli import tidemark
from tests.integration.test_readiness import wait_until_says

PARTITIONS = 24
TOPIC = "rolling"


class Load:
    """A number to each partition, round after round; `acknowledged` are those that everybody in sync has."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self.longest_s = 0.0
        self.failure: Exception | None = None
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._stop.wait(0.01):
                    began_s = time.monotonic()
                    numbers = range(self.acknowledged, self.acknowledged + PARTITIONS)
                    handles = [producer.send(TOPIC, str(one).encode(), partition=one % PARTITIONS) for one in numbers]
                    for handle in handles:
                        handle.result(60)
                    self.acknowledged = numbers.stop
                    self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        except Exception as error:  # noqa: BLE001 - told by the test, on its own thread
            self.failure = error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as started:
        yield started


def test_a_rolling_restart_that_waits_for_readiness_loses_nothing_and_is_safe_at_every_step(
    cluster: LocalCluster,
) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    with Load(cluster.bootstrap) as load:
        for number in range(3):
            before = load.acknowledged
            wait = () if number else ("--wait", "30")
            safe = tidemark(cluster, "cluster", "safe-to-restart", str(number), *wait)
            assert safe.status == 0, f"the last broker said that it was ready: {safe.out}"
            name = broker_name(number)
            cluster.terminate(name)
            cluster.process(name).start()
            wait_until_says(cluster, name, "readiness")
            assert load.acknowledged > before
    assert load.failure is None
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign(TOPIC)
        total = sum(consumer.end_offsets().values())
        found: list[int] = []
        while len(found) < total:
            batch = consumer.poll(20)
            assert batch is not None, f"{len(found)} of {total} records came"
            found += [int(record.value or b"") for record in records_of(*batch)]
    assert set(found) >= set(range(load.acknowledged)), "nothing is lost"
    assert len(found) == len(set(found)), "nothing is there twice"
