"""A broker is removed while records are written, and the controller and the admin service die on the way."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.client.records import records_of
from tidemark.local.cluster import LocalCluster, controller_name

from tests.integration.test_reassignments import SETTINGS, wait_for

PARTITIONS = 8
REMOVAL_S = 90


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four brokers and two controllers, for one test."""
    with LocalCluster(tmp_path, brokers=4, controllers=2, settings=SETTINGS) as started:
        yield started


class Load:
    """Numbers, one record each, acknowledged by everybody in sync; stops when told, or when one fails.

    `acknowledged`: partition and offset of each number.
    """

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
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
                number = 0
                while not self._stop.wait(0.02):
                    sent = range(number, number + PARTITIONS)
                    handles = [producer.send("load", str(one).encode(), partition=one % PARTITIONS) for one in sent]
                    for one, handle in zip(sent, handles, strict=True):
                        self.acknowledged[one] = (one % PARTITIONS, handle.result(60).offset)
                    number = sent.stop
        except Exception as error:  # noqa: BLE001 - told by the test, on its own thread
            self.failure = error


def all_records(bootstrap: str) -> dict[tuple[int, int], int]:
    with Consumer(bootstrap) as consumer:
        consumer.assign("load")
        total = sum(consumer.end_offsets().values())
        found: dict[tuple[int, int], int] = {}
        while len(found) < total:
            batch = consumer.poll(20)
            assert batch is not None, f"{len(found)} of {total} records came"
            for record in records_of(*batch):
                assert record.value is not None
                found[record.partition, record.offset] = int(record.value)
    return found


def test_a_removal_outlives_controller_and_admin_service_and_loses_no_record(cluster: LocalCluster) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("load", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
    command = ["cluster", "remove-brokers", "1", "--yes", "--admin", cluster.admin_address]
    with Load(cluster.bootstrap) as load:
        wait_for(lambda: len(load.acknowledged) > 20 * PARTITIONS, "records are written")
        removal = subprocess.Popen(
            [sys.executable, "-m", "tidemark.cli.app", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert removal.stdout is not None
            cost = next(line for line in removal.stdout if line.startswith("cost: "))
            assert cost.startswith("cost: 6 moves, 6 replicas to copy")
            cluster.kill("admin")
            cluster.kill(controller_name(0))
            cluster.restart("admin")
            out, error = removal.communicate(timeout=REMOVAL_S)
        finally:
            removal.kill()
        assert (removal.returncode, error) == (0, "")
        assert out.endswith("broker 1 is removed and holds nothing: stop it now\n")
        so_far = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > so_far + 20 * PARTITIONS, "records are written all the while")
    assert load.failure is None
    with AdminClient(cluster.admin_address) as admin:
        (topic,) = admin.describe_topics(["load"])
    assert all(1 not in one.assigned_replicas and len(one.assigned_replicas) == 3 for one in topic.partitions.values())
    found = all_records(cluster.bootstrap)
    lost = [number for number, where in load.acknowledged.items() if found.get(where) != number]
    assert lost == []
    assert sorted(found.values()) == sorted(set(found.values())), "nothing twice"
