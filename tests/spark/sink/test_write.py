# SPDX-License-Identifier: Apache-2.0
"""`write` and `writeStream` of format("tidemark") in a real Spark session over a real cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tidemark.client import AdminClient, Consumer, ConsumerRecord, Timestamp
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark_spark.sink.options import parse_write_options
from tidemark_spark.sink.writer import write_task

from tests.spark.harness.reading import committed_records
from tests.spark.harness.secure import with_token

COUNT = 1000
HEADERS = (
    "array(named_struct('key', 'n', 'value', unhex(lpad(hex(id), 16, '0'))), named_struct('key', 'n', 'value', null))"
)


def make(cluster: LocalCluster, *topics: str, partitions: int = 3) -> None:
    """Topics that keep records of years ago, as the tests write them."""
    with AdminClient(cluster.admin_address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions=partitions, replication_factor=3, configs={"retention.ms": "-1"})


def save(table: DataFrame, cluster: LocalCluster, mode: str = "append", **options: str) -> None:
    options = {**with_token(cluster), **options}
    table.write.format("tidemark").mode(mode).options(**options).save()


def records(cluster: LocalCluster, topic: str) -> list[ConsumerRecord]:
    return committed_records(cluster.bootstrap, topic)


def test_every_row_is_written_once_with_its_key_headers_and_time(spark: SparkSession, cluster: LocalCluster) -> None:
    make(cluster, "written")
    table = spark.range(COUNT).selectExpr(
        "cast(id % 7 as string) as key",
        "if(id = 5, null, cast(id as string)) as value",
        f"if(id % 2 = 0, {HEADERS}, null) as headers",
        "timestamp_micros(1700000000000000 + id) as timestamp",
    )
    save(table, cluster, topic="written")
    found = records(cluster, "written")
    assert len(found) == COUNT
    assert {record.timestamp_us - 1_700_000_000_000_000 for record in found} == set(range(COUNT))
    for record in found:
        number = record.timestamp_us - 1_700_000_000_000_000
        assert record.key == str(number % 7).encode()
        assert record.value == (None if number == 5 else str(number).encode())
        written = [] if number % 2 else [("n", number.to_bytes(8, "big")), ("n", None)]
        assert list(record.headers) == written
    places = {record.key: record.partition for record in found}
    assert all(places[record.key] == record.partition for record in found)


def test_rows_go_to_the_topic_and_partition_they_name_in_their_order(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    make(cluster, "north", "south")
    table = spark.range(0, COUNT, 1, 1).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, 'north', 'south') as topic",
        "cast(id % 3 as int) as partition",
        "'ignored' as colour",
    )
    save(table, cluster)
    for topic, rest in (("north", 0), ("south", 1)):
        found = records(cluster, topic)
        for partition in range(3):
            values = [int(record.value or b"") for record in found if record.partition == partition]
            assert values == [number for number in range(COUNT) if number % 2 == rest and number % 3 == partition]


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["'x' as word"], {"topic": "written"}, "needs the column 'value'"),
        (["id as value"], {"topic": "written"}, "column 'value' is bigint; expected string or binary"),
        (["'x' as value"], {}, "needs the option 'topic' or a column 'topic'"),
        (["'x' as value"], {"topic": "nowhere"}, "UNKNOWN_TOPIC"),
        (["'x' as value", "'nowhere' as topic"], {}, "UNKNOWN_TOPIC"),
        (["'x' as value", "if(id = 1, null, 'written') as topic"], {}, "column 'topic' is null in 1 of"),
        (
            ["'x' as value", "7 as partition"],
            {"topic": "written"},
            "UNKNOWN_PARTITION: topic written has no",
        ),
        (["'x' as value"], {"topic": "written", "tidemark.acks": "most"}, "option 'tidemark.acks' is 'most'"),
        (
            ["'x' as value"],
            {"topic": "written", "tidemark.bootstrap": "127.0.0.1:1", "deadlineMs": "500"},
            "127.0.0.1:1",
        ),
        (["repeat('x', 2000000) as value"], {"topic": "written"}, "BATCH_TOO_LARGE"),
    ],
)
def test_an_impossible_write_reports_the_cause(
    spark: SparkSession, cluster: LocalCluster, columns: list[str], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        save(spark.range(0, 3, 1, 1).selectExpr(*columns), cluster, **options)


def test_a_topic_is_not_overwritten(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(PySparkException, match='take mode\\("append"\\)'):
        save(spark.range(1).selectExpr("'x' as value"), cluster, mode="overwrite", topic="written")


def test_a_leader_that_dies_in_mid_task_costs_no_row_and_doubles_none(cluster: LocalCluster) -> None:
    make(cluster, "survivor", partitions=3)
    options = parse_write_options({"tidemark.bootstrap": cluster.bootstrap, "topic": "survivor"})

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(24):
            if number == 12:
                cluster.process(broker_name(0)).kill()
            values = [b"%d %s" % (index, b"x" * 1000) for index in range(number * 1000, (number + 1) * 1000)]
            yield pa.record_batch({"value": pa.array(values, pa.binary())})

    try:
        message = write_task(options, batches())
    finally:
        cluster.process(broker_name(0)).start()
        cluster.wait_until_serving(timeout_s=30)
    counted = Counter(int((record.value or b"").split()[0]) for record in records(cluster, "survivor"))
    assert counted == dict.fromkeys(range(24_000), 1)
    assert sum(written.records for written in message.written.values()) == 24_000


def test_a_task_that_runs_again_writes_again_and_loses_nothing(cluster: LocalCluster) -> None:
    make(cluster, "again-and-again", partitions=1)
    options = parse_write_options({"tidemark.bootstrap": cluster.bootstrap, "topic": "again-and-again"})

    def batches(*, ending: bool) -> Iterator[pa.RecordBatch]:
        for number in range(10):
            if ending and number == 7:
                raise OSError("the executor is lost")
            yield pa.record_batch({"value": pa.array([b"%d" % number + b" " * 1_000_000], pa.binary())})

    with pytest.raises(OSError, match="the executor is lost"):
        write_task(options, batches(ending=True))
    message = write_task(options, batches(ending=False))
    values = [int((record.value or b"").strip()) for record in records(cluster, "again-and-again")]
    assert values[-10:] == list(range(10))
    assert values[:-10] == list(range(len(values) - 10))
    written = message.written["again-and-again", 0]
    assert (written.first, written.last, written.records) == (len(values) - 10, len(values) - 1, 10)


def test_a_micro_batch_cut_short_by_the_end_of_its_driver_counts_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    make(cluster, "streamed")
    source = tmp_path / "source"

    def run(value: str) -> Any:
        table = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        rows = table.selectExpr(f"{value} as value", "cast(id % 5 as string) as key")
        query = (
            rows.writeStream.format("tidemark")
            .option("tidemark.bootstrap", cluster.bootstrap)
            .option("topic", "streamed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return query

    for first in range(0, COUNT, 500):
        spark.range(first, first + 500, 1, 1).write.mode("append").parquet(str(source))
    with pytest.raises(PySparkException, match="the driver ends here"):
        run("if(id = 950, raise_error('the driver ends here'), cast(id as string))")
    run("cast(id as string)")
    counted = Counter(int(record.value or b"") for record in records(cluster, "streamed"))
    assert counted == dict.fromkeys(range(COUNT), 1)


def test_a_streaming_query_refuses_unsupported_options(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    table = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("'x' as value")
    writer = table.writeStream.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    writer = writer.option("topic", "written").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.outputMode("complete").start()
    with pytest.raises(PySparkException, match="a log is appended to"):
        query.awaitTermination(60)


def test_rows_without_a_time_have_that_of_their_writing(spark: SparkSession, cluster: LocalCluster) -> None:
    make(cluster, "timed", partitions=1)
    save(spark.sql("select 'x' as value, cast(null as timestamp) as timestamp"), cluster, topic="timed")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign("timed", start=Timestamp(1_700_000_000_000_000))
        assert next(consumer).value == b"x"
