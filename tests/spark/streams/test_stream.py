# SPDX-License-Identifier: Apache-2.0
"""readStream.format("tidemark") in a real Spark session over a real cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tidemark.client import AdminClient, Groups, Producer
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark_spark import TidemarkListener, compat
from tidemark_spark.progress import partition_progress

from tests.spark.harness.secure import GROUP, secrets_of, with_token

MakeTopic = Callable[..., str]
QUERY_S = 90
pytestmark = pytest.mark.timeout(300)


def fill(cluster: LocalCluster, topic: str, counts: dict[int, int]) -> None:
    with Producer(cluster.bootstrap) as producer:
        for partition, count in counts.items():
            producer.send_table(topic, pa.table({"value": pa.array([b"v"] * count, pa.binary())}), partition=partition)
        producer.flush(30)


class Job:
    """A query from a topic into Parquet, exactly once by Spark's sink; each `start` is a driver that starts again."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, directory: Path, **options: str) -> None:
        self._spark = spark
        self._options = {**with_token(cluster), **options}
        self._rows = str(directory / "rows")
        self.checkpoint = directory / "checkpoint"

    def start(self, **options: str) -> StreamingQuery:
        """Read up to the present end, then stop."""
        read = self._spark.readStream.format("tidemark")
        table = read.options(**{"startingOffsets": "earliest", **self._options, **options}).load()
        write = table.select("topic", "partition", "offset").writeStream.format("parquet").option("path", self._rows)
        return write.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, **options: str) -> list[dict[str, Any]]:
        """The progress of each micro-batch."""
        query = self.start(**options)
        assert query.awaitTermination(QUERY_S), "it hangs"
        return [json.loads(progress.json) for progress in query.recentProgress]

    def places(self) -> list[tuple[int, int]]:
        """Partition and offset of every row that was written."""
        return sorted((row["partition"], row["offset"]) for row in self._spark.read.parquet(self._rows).collect())


def committed(cluster: LocalCluster, topic: str) -> list[tuple[int, int]]:
    """Committed offset and lag of the group in each partition of a topic."""
    with Groups(cluster.bootstrap) as groups:
        (found,) = groups.describe_groups([GROUP])
    assert (found.state, found.members) == ("EMPTY", ())
    return [(one.committed, one.lag) for one in sorted(found.partitions) if one.partition.topic == topic]


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[TidemarkListener]:
    added = TidemarkListener()
    spark.streams.addListener(added)
    yield added
    spark.streams.removeListener(added)


def test_a_query_survives_restarts_and_growth_and_gives_every_record_once(
    spark: SparkSession, cluster: LocalCluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("restarted", partitions=2)
    fill(cluster, name, {0: 70, 1: 30})
    job = Job(spark, cluster, tmp_path, subscribe=name, maxOffsetsPerTrigger="40", groupId=GROUP)
    with pytest.raises(StreamingQueryException, match="GROUP_AUTHORIZATION_FAILED: option 'groupId'"):
        job.run(groupId="secret")
    progress = job.run()
    sizes = [batch["numInputRows"] for batch in progress if batch["numInputRows"]]
    if compat.HAS_READ_LIMITS:
        assert sizes == [40, 40, 20]
        lag = [sum(one.lag_offsets or 0 for one in partition_progress(batch["sources"][0])) for batch in progress[:3]]
        assert lag == [60, 20, 0]
    else:
        assert sizes == [100], "one micro-batch, with any option"
    # The driver was killed after it planned and wrote the last micro-batch, and before the commit log had it: Spark
    # reads it again.
    last = max((job.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_partitions(name, 3)
    fill(cluster, name, {0: 5, 2: 10})
    compat.finish_available_now(spark)  # as in the jobs: in some versions the query would repeat its micro-batch
    job.run()
    assert job.places() == [(index, at) for index, count in enumerate((75, 30, 10)) for at in range(count)]
    if compat.HAS_READ_LIMITS:  # before, PySpark does not report the end of the last micro-batch
        assert committed(cluster, name) == [(75, 0), (30, 0), (10, 0)]
    written = {path: path.read_bytes() for path in job.checkpoint.rglob("*") if path.is_file()}
    assert [path for secret in secrets_of(cluster) for path in written if secret.encode() in written[path]] == []


def test_a_query_continues_when_a_broker_is_killed_under_it(
    spark: SparkSession,
    cluster: LocalCluster,
    topic: MakeTopic,
    tmp_path: Path,
    listener: TidemarkListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tidemark.spark.progress")
    name = topic("bereft", partitions=3)
    fill(cluster, name, dict.fromkeys(range(3), 200))
    with RangeReader(cluster.bootstrap, deadline_s=10) as client:
        leader = broker_name(client.topics([name])[name].partitions[0].leader)
    job = Job(spark, cluster, tmp_path, subscribe=name, maxOffsetsPerTrigger="100")
    query = job.start()
    first = next(batch for batch in iter(lambda: query.lastProgress, ()) if batch is not None)
    cluster.kill(leader)
    try:
        assert query.awaitTermination(QUERY_S), "it hangs"
    finally:
        cluster.restart(leader)
    assert json.loads(first.json)["batchId"] < (5 if compat.HAS_READ_LIMITS else 1)
    assert job.places() == [(index, at) for index in range(3) for at in range(200)]
    told = [record.message for record in caplog.records if f"topic {name}, 3 partitions" in record.message]
    if compat.HAS_READ_LIMITS:
        assert any("batch 1:" in line and "100 offsets read" in line for line in told)
    else:
        assert ["batch 0:" in line for line in told] == [True]


def test_a_recreated_topic_ends_the_query_with_the_cause_and_the_next_step(
    spark: SparkSession, cluster: LocalCluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic("replaced", partitions=1)
    fill(cluster, name, {0: 4})
    job = Job(spark, cluster, tmp_path, subscribe=name)
    job.run()
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic(name)
        admin.create_topic(name, partitions=1, replication_factor=3)
    fill(cluster, name, {0: 2})
    query = job.start()
    with pytest.raises(StreamingQueryException, match=r"topic replaced was deleted and created again.*failOnDataLoss"):
        query.awaitTermination(QUERY_S)
    job.run(failOnDataLoss="false")
    assert job.places() == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 3)]
