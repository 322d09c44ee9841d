"""A round of real faults: brokers are killed and stopped under a producer; then everything is read back."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tidemark.client import AdminClient, Producer, RecordMetadata, SendHandle
from tidemark.client.ranges import RangeReader
from tidemark.local.cluster import LocalCluster, broker_name

TOPIC = "round"
PARTITIONS = 6
KEYS = 50
ROUND_S = 15.0
LAST_FAULT_S = 4.0
"""So long before its end the round leaves the brokers alone."""
DRAIN_S = 60.0


@dataclass
class History:
    """What was sent, in order, and where each acknowledged record is said to be."""

    sent: list[SendHandle] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def acknowledged(self) -> dict[int, tuple[int, int]]:
        return {number: (told.partition, told.offset) for number, told in self._told()}

    def _told(self) -> list[tuple[int, RecordMetadata]]:
        return [(number, handle.result(0.0)) for number, handle in enumerate(self.sent)]


def strike(cluster: LocalCluster, seed: int, until_s: float, history: History) -> None:
    """Kill or stop one broker after the other, never two at once: min.insync.replicas are always alive."""
    chance = random.Random(seed)
    while time.monotonic() < until_s:
        broker = broker_name(chance.randrange(3))
        if chance.random() < 0.6:
            history.faults.append(f"kill -9 {broker}")
            cluster.kill(broker)
            time.sleep(chance.uniform(0.2, 1.5))
            cluster.restart(broker)
        else:
            history.faults.append(f"SIGSTOP {broker}")
            cluster.pause(broker)
            time.sleep(chance.uniform(0.2, 3.0))
            cluster.resume(broker)
        time.sleep(chance.uniform(0.3, 1.5))


def send_until(producer: Producer, until_s: float, history: History) -> None:
    number = 0
    while time.monotonic() < until_s:
        history.sent.append(producer.send(TOPIC, b"%d" % number, key=b"%d" % (number % KEYS)))
        number += 1
        if number % 100 == 0:
            time.sleep(0.01)  # a steady load, not a full buffer: faults are to meet batches under way


def read_back(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Where each record is; fails for one that is there twice, or behind a later one of its key."""
    found: dict[int, tuple[int, int]] = {}
    latest: dict[bytes, int] = {}
    with RangeReader(bootstrap, deadline_s=DRAIN_S) as reader:
        for partition, bounds in reader.bounds(TOPIC, range(PARTITIONS)).items():
            for rows in reader.read(TOPIC, partition, bounds.earliest, bounds.latest):
                for row in rows.select(["key", "value", "offset"]).to_pylist():
                    number = int(row["value"])
                    assert number not in found, f"record {number} is there twice"
                    assert latest.get(row["key"], -1) < number, f"record {number} is behind a later one of its key"
                    found[number] = (partition, row["offset"])
                    latest[row["key"]] = number
    return found


@pytest.mark.timeout(240)
def test_killed_and_stopped_brokers_lose_double_or_reorder_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    history = History()
    with LocalCluster(tmp_path) as cluster:
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        end_s = time.monotonic() + ROUND_S
        nemesis = threading.Thread(target=strike, args=(cluster, seed, end_s - LAST_FAULT_S, history))
        nemesis.start()
        with Producer(cluster.bootstrap) as producer:
            send_until(producer, end_s, history)
            nemesis.join()
            producer.flush(DRAIN_S)
        acknowledged = history.acknowledged()
        found = read_back(cluster.bootstrap)
    story = f"seed {seed}: {', '.join(history.faults)}"
    assert acknowledged == found, story
    assert len(history.faults) >= 2, story
