"""Moves of replicas among real processes, by the command as a shell meets it; seed 002's example to the letter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from tidemark.client import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster
from tidemark.model import TopicPartition

from tests.integration.test_cli import tidemark

SETTINGS = {kind: {"zookeeper.session.timeout.ms": "3000"} for kind in ("broker", "controller")}
WAIT_S = 30

AS_PRINTED = [[0, 1], [2, 0], [1, 2]]
"""The assignment that seed 002 begins with."""

THE_SEEDS_FILE = """
{
"version": 1,
"partitions": [
{
"topic": "test",
"partition": 2,
"replicas": [
2,
1
],
"log_dirs": [
"any",
"any"
]
}
]
}
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers, of which some may be killed; each test leaves all of them running and nothing moving."""
    with LocalCluster(tmp_path_factory.mktemp("four"), brokers=4, controllers=1, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def admin(four: LocalCluster) -> Iterator[AdminClient]:
    with AdminClient(four.admin_address) as client:
        yield client


@pytest.fixture
def zookeeper(four: LocalCluster) -> Iterator[KazooClient]:
    client = KazooClient(four.zookeeper.connect, timeout=4)
    client.start()
    yield client
    client.stop()
    client.close()


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.05)


def document(topic: str, *replicas: list[int] | None) -> dict[str, Any]:
    """The JSON of seed 002 for partitions 0, 1, ... of a topic; None leaves one out."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": index, "replicas": brokers}
            for index, brokers in enumerate(replicas)
            if brokers is not None
        ],
    }


def file_of(directory: Path, content: object) -> str:
    path = directory / "moves.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def assigned(admin: AdminClient, topic: str) -> list[list[int]]:
    view = admin.describe_topics([topic])[0]
    return [[int(broker) for broker in one.assigned_replicas] for one in view.partitions.values()]


def node(zookeeper: KazooClient, path: str) -> Any:
    return json.loads(zookeeper.get(path)[0])


def test_the_example_of_seed_002_to_the_letter(
    four: LocalCluster, admin: AdminClient, zookeeper: KazooClient, tmp_path: Path
) -> None:
    admin.create_topic("test", partitions=3, replication_factor=2, configs={"min.insync.replicas": "1"})
    ended = tidemark(four, "reassign", "execute", file_of(tmp_path, document("test", *AS_PRINTED)))
    assert ended.status == 0, ended
    with Producer(four.bootstrap) as producer:
        handles = [producer.send("test", str(number).encode(), partition=2) for number in range(500)]
        assert [handle.result(20).offset for handle in handles] == list(range(500))
    assert tidemark(four, "elect", "--preferred", "test").status == 0
    described = tidemark(four, "topic", "describe", "test").out.splitlines()
    assert described[0] == "Topic:test PartitionCount:3 ReplicationFactor:2 Configs:min.insync.replicas=1"
    assert [line.partition(" Isr:")[0] for line in described[1:]] == [
        "Topic: test Partition: 0 Leader: 0 Replicas: 0,1",
        "Topic: test Partition: 1 Leader: 2 Replicas: 2,0",
        "Topic: test Partition: 2 Leader: 1 Replicas: 1,2",
    ]
    assert node(zookeeper, "/brokers/topics/test")["partitions"] == {"0": [0, 1], "1": [2, 0], "2": [1, 2]}

    before = node(zookeeper, "/brokers/topics/test/2/leaderAndISR")
    ended = tidemark(four, "reassign", "execute", file_of(tmp_path, THE_SEEDS_FILE))
    assert (ended.status, ended.error) == (0, ""), ended
    assert "test:2 is on 2,1\n1 move done\n" in ended.out
    kept = ended.out[ended.out.index("{") : ended.out.index("}\n", ended.out.index("]\n")) + 1]
    assert json.loads(kept) == document("test", None, None, [1, 2]), "what takes it back is printed before it begins"

    topic = node(zookeeper, "/brokers/topics/test")
    assert topic["partitions"] == {"0": [0, 1], "1": [2, 0], "2": [2, 1]}
    assert not topic.get("adding_replicas")
    assert not topic.get("removing_replicas")
    assert zookeeper.exists("/admin/reassign_partitions") is None
    after = node(zookeeper, "/brokers/topics/test/2/leaderAndISR")
    assert (after["leader"], sorted(after["isr"])) == (1, sorted(before["isr"])), "step 7: a healthy leader stays"
    verified = tidemark(four, "reassign", "verify", file_of(tmp_path, THE_SEEDS_FILE), "-o", "json")
    assert (verified.status, [one["state"] for one in json.loads(verified.out)]) == (0, ["done"])
    with Consumer(four.bootstrap) as consumer:
        consumer.assign("test", [2])
        assert consumer.end_offsets() == {TopicPartition("test", 2): 500}


def led(admin: AdminClient, topic: str) -> list[int]:
    return [int(one.leader) for one in admin.describe_topics([topic])[0].partitions.values()]
