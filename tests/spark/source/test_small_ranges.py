# SPDX-License-Identifier: Apache-2.0
"""Tasks of one worker process, on real brokers without Spark: they share a reader, and small ranges share fetches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tidemark.client import AdminClient, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.rpc.raw_methods import fetch_method
from tidemark_spark import topics
from tidemark_spark.reader_pool import ReaderPool

from tests.spark.harness.reading import Place, batch_reader, batches, places

MakeTopic = Callable[..., str]
PARTITIONS = 12
COUNT = 20


@pytest.fixture(scope="module")
def small(cluster: LocalCluster) -> str:
    """Topic `small`, with COUNT records in each of its PARTITIONS."""
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("small", partitions=PARTITIONS, replication_factor=3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(PARTITIONS * COUNT):
            producer.send("small", str(number).encode(), partition=number % PARTITIONS)
        producer.flush(30)
    return "small"


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReaderPool]:
    """The readers of a worker process that has just started."""
    made = ReaderPool()
    monkeypatch.setattr(topics, "_pool", made)
    yield made
    made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RangeReader]:
    """The readers that are opened during the test."""
    found: list[RangeReader] = []
    open_reader = topics.open_reader

    def note(options: Any) -> RangeReader:
        found.append(open_reader(options))
        return found[-1]

    monkeypatch.setattr(topics, "open_reader", note)
    return found


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each fetch during the test."""
    found: list[int] = []
    call = BlockingCluster.call

    def note(kept: BlockingCluster, address: str, method: Any, request: Any, *more: Any) -> Any:
        if method is fetch_method:
            found.append(len(request.partitions))
        return call(kept, address, method, request, *more)

    monkeypatch.setattr(BlockingCluster, "call", note)
    return found


def options_of(cluster: LocalCluster, topic: str, **more: str) -> dict[str, str]:
    return {"tidemark.bootstrap": cluster.bootstrap, "subscribe": topic, **more}


def everywhere(topic: str) -> list[Place]:
    return [(topic, partition, offset) for partition in range(PARTITIONS) for offset in range(COUNT)]


def test_the_tasks_of_a_worker_process_open_one_reader(
    cluster: LocalCluster, small: str, opened: list[RangeReader]
) -> None:
    reader = batch_reader(options_of(cluster, small))
    tasks = reader.partitions()
    opened.clear()
    assert sorted(places(reader, tasks)) == everywhere(small)
    assert sorted(places(reader, tasks)) == everywhere(small)
    assert (len(tasks), len(opened)) == (PARTITIONS, 1)


def test_small_ranges_of_one_broker_share_a_task_and_a_fetch(
    cluster: LocalCluster, small: str, fetches: list[int]
) -> None:
    reader = batch_reader(options_of(cluster, small, minPartitions="1"))
    tasks = reader.partitions()
    with AdminClient(cluster.admin_address) as admin:
        leaders = {one.leader for one in admin.describe_topics([small])[0].partitions.values()}
    assert len(tasks) == len(leaders)
    assert sorted(places(reader, tasks)) == everywhere(small)
    assert (len(fetches), sum(fetches)) == (len(leaders), PARTITIONS)
    assert len(list(batches(reader, tasks))) == len(tasks), "the rows of small ranges cross to Spark together"


def test_a_shared_task_gives_the_values_and_the_place_of_each_record(cluster: LocalCluster, small: str) -> None:
    reader = batch_reader(options_of(cluster, small, minPartitions="1"))
    rows = pa.Table.from_batches(list(batches(reader, reader.partitions()))).to_pylist()
    assert {row["value"]: (row["partition"], row["offset"]) for row in rows} == {
        str(number).encode(): (number % PARTITIONS, number // PARTITIONS) for number in range(PARTITIONS * COUNT)
    }


def test_a_reader_that_outlives_a_leader_reads_from_the_next_one(
    cluster: LocalCluster, small: str, opened: list[RangeReader]
) -> None:
    reader = batch_reader(options_of(cluster, small, minPartitions="1"))
    tasks = reader.partitions()
    opened.clear()
    assert sorted(places(reader, tasks)) == everywhere(small)
    with AdminClient(cluster.admin_address) as admin:
        leader = broker_name(admin.describe_topics([small])[0].partitions[0].leader)
    cluster.kill(leader)
    try:
        assert sorted(places(reader, tasks)) == everywhere(small)
    finally:
        cluster.restart(leader)
    assert len(opened) == 1


def test_a_cancelled_task_does_not_disturb_the_next_one(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("cancelled", partitions=1)
    count = 60_000
    with Producer(cluster.bootstrap) as producer:
        for _ in range(count // 5000):
            producer.send_table(name, pa.table({"value": pa.array([bytes(100)] * 5000, pa.binary())}), partition=0)
        producer.flush(30)
    reader = batch_reader(options_of(cluster, name, columns="offset"))
    tasks = reader.partitions()
    for _ in range(3):
        rows = reader.read(tasks[0])
        assert next(rows).num_rows
        del rows  # Spark drops the generator of a cancelled task, with a fetch in flight
        found = [offset for batch in batches(reader, tasks) for offset in batch.column("offset").to_pylist()]
        assert found == list(range(count))


def test_two_reads_at_the_same_time_are_both_whole(cluster: LocalCluster, small: str) -> None:
    reader = batch_reader(options_of(cluster, small, columns="topic, partition, offset"))
    one, other = [reader.partitions()] * 2
    pairs = zip(batches(reader, one), batches(reader, other), strict=True)
    for first, second in pairs:
        assert first.num_rows == COUNT
        assert first.equals(second)
