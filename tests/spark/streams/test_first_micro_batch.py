# SPDX-License-Identifier: Apache-2.0
"""The first micro-batch of a query, when a driver repeats the micro-batch that an earlier driver planned.

Spark does not store the start of a query, so the second driver gets a start of its own time. Only brokers are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster
from tidemark_spark.stream_offsets import CheckpointError, DataLossError

from tests.spark.harness.reading import needs_read_limits, next_end, places, stream_reader

MakeTopic = Callable[..., str]


def fill(cluster: LocalCluster, topic: str, counts: dict[int, int]) -> None:
    with Producer(cluster.bootstrap) as producer:
        for partition, count in counts.items():
            producer.send_table(topic, pa.table({"value": pa.array([b"v"] * count, pa.binary())}), partition=partition)
        producer.flush(30)


def first_end(reader: DataSourceStreamReader) -> dict[str, Any]:
    """The end of the first micro-batch, as Spark's checkpoint has it; the driver ends before the tasks run."""
    end = next_end(reader, reader.initialOffset())
    reader.stop()
    return end


def repeated(reader: DataSourceStreamReader, end: dict[str, Any]) -> Any:
    """The tasks that the next driver plans."""
    return reader.partitions(json.loads(json.dumps(reader.initialOffset())), end)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_was_added_meanwhile_is_not_taken_for_a_removed_one(
    cluster: LocalCluster, topic: MakeTopic, fails: str
) -> None:
    name = topic(f"first-grown-{fails}", partitions=1)
    fill(cluster, name, {0: 5})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    options["failOnDataLoss"] = fails
    end = first_end(stream_reader(options))
    with AdminClient(cluster.admin_address) as admin:
        admin.create_partitions(name, 2)
    fill(cluster, name, {0: 1, 1: 2})
    second = stream_reader(options)
    assert places(second, repeated(second, end)) == [(name, 0, offset) for offset in range(5)]
    rest = next_end(second, end)
    assert sorted(places(second, second.partitions(end, rest))) == [(name, 0, 5), (name, 1, 0), (name, 1, 1)]
    second.stop()


@needs_read_limits
def test_records_that_were_deleted_meanwhile_are_lost_and_not_before_the_start(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("first-shortened", partitions=1)
    fill(cluster, name, {0: 5})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    end = first_end(stream_reader(options))
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_records(name, 0, 3)
    strict, lenient = stream_reader(options), stream_reader({**options, "failOnDataLoss": "false"})
    with pytest.raises(DataLossError, match="first-shortened-0: offsets 0 to 3 were deleted"):
        repeated(strict, end)
    assert places(lenient, repeated(lenient, end)) == [(name, 0, 3), (name, 0, 4)]


@needs_read_limits
def test_a_query_from_the_end_repeats_the_same_offsets(cluster: LocalCluster, topic: MakeTopic) -> None:
    name = topic("first-latest", partitions=1)
    fill(cluster, name, {0: 2})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "startingOffsets": "latest"}
    first = stream_reader(options)
    start = first.initialOffset()
    fill(cluster, name, {0: 3})
    end = next_end(first, start)
    fill(cluster, name, {0: 4})
    second = stream_reader(options)
    assert places(second, repeated(second, end)) == [(name, 0, offset) for offset in (2, 3, 4)]


@needs_read_limits
def test_an_available_now_query_checks_the_cluster_of_a_repeated_micro_batch(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("first-elsewhere", partitions=1)
    fill(cluster, name, {0: 5})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "failOnDataLoss": "false"}
    start = stream_reader({**options, "startingOffsets": "earliest"}).initialOffset()
    end = next_end(stream_reader(options), start)
    for offset in (start, end):
        offset["cluster"] = "another"
    second = stream_reader(options)
    second.prepareForTriggerAvailableNow()
    with pytest.raises(CheckpointError, match="the checkpoint is of cluster another"):
        second.partitions(start, end)


@needs_read_limits
def test_an_available_now_query_finds_a_truncation_of_a_repeated_micro_batch(
    cluster: LocalCluster, topic: MakeTopic
) -> None:
    name = topic("first-truncated", partitions=1)
    fill(cluster, name, {0: 5})
    options = {"tidemark.bootstrap": cluster.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    start = stream_reader(options).initialOffset()
    end = next_end(stream_reader(options), start)
    end["topics"][name]["partitions"]["0"] |= {"offset": 9, "leaderEpoch": -1}
    second = stream_reader(options)
    second.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="the micro-batch ends at offset 9"):
        second.partitions(start, end)
