# SPDX-License-Identifier: Apache-2.0
"""The job of `bench spark` for Tidemark and for the peer, in a separate Python: needs PySpark only.

usage: python spark_job.py '{"format": "kafka", "bootstrap": {...}, ...}'; see `Task`. Its last line is JSON: rates in
rows a second, times in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

WARM_ROUNDS = 3
SMALL_ROUNDS = 5
MICRO_BATCHES = 12
_WAIT_S = 300


@dataclass
class Task:
    """The parameters of the measurement.

    Attributes:
        format: the format of source and sink; "memory": `MemorySource`, which has no sink.
        bootstrap: the option with the brokers' addresses; for "memory" the number of records.
        topic: the topic to read; it has `records`.
        sink_topic: the topic that gets `write_rows` rows; "": reads only.
        wide_topic: a topic of many partitions with 1,000 records in partition 0 for each micro-batch; "": skip.
        small_topic: a topic of many partitions with few records each, `small_records` in all; "": skip.
        jars: jars for Spark.
        streams: whether the source supports streaming.
    """

    format: str
    bootstrap: dict[str, str]
    topic: str
    records: int
    sink_topic: str
    write_rows: int
    wide_topic: str = ""
    small_topic: str = ""
    small_records: int = 0
    jars: list[str] = field(default_factory=list)
    streams: bool = True


class MemorySource(DataSource):
    """Rows as the format "tidemark" reads them, from memory: the ceiling of a source in Python.

    Spark gets the class by value: its methods use nothing of this module except `MemoryReader`.
    """

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
        return f"{columns}, timestampType int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return MemoryStream(self.options, schema)


class MemoryReader(DataSourceReader):
    """A task for each of six partitions; each returns the same batch of rows repeatedly."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        self.records = int(options["records"])
        self.fields = schema

    def partitions(self, *_: Any) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(6)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        rows, left = 1 << 14, self.records // 6 + (partition.value < self.records % 6)
        schema = to_arrow_schema(self.fields, timezone="UTC")
        values = {"value": bytes(100), "topic": "spark-source", "partition": partition.value, "timestampType": 0}
        arrays = {name: pa.array([value] * rows, schema.field(name).type) for name, value in values.items()}
        arrays["key"] = pa.nulls(rows, pa.binary())
        arrays["offset"] = pa.array(range(rows), pa.int64())
        arrays["timestamp"] = pa.array(range(rows), pa.int64()).cast(schema.field("timestamp").type)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
        while left > 0:
            yield batch.slice(0, min(rows, left))
            left -= rows


class MemoryStream(MemoryReader, DataSourceStreamReader):
    """The same rows as one micro-batch."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"records": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"records": self.records}


def session(jars: list[str]) -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(jars),
        "spark.python.unix.domain.socket.enabled": "true",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batch_read_s(spark: SparkSession, task: Task, topic: str, records: int) -> float:
    """Time of a count and the length of all values, so that every value is read."""
    started_s = time.perf_counter()
    table = spark.read.format(task.format).options(**task.bootstrap, subscribe=topic).load()
    row = table.selectExpr("count(*)", "sum(length(value))").collect()[0]
    assert row[0] == records, f"{row[0]} rows of {records}"
    return time.perf_counter() - started_s


def batch_read_per_s(spark: SparkSession, task: Task) -> float:
    return task.records / batch_read_s(spark, task, task.topic, task.records)


def cold_read_per_s(spark: SparkSession, task: Task) -> float:
    """The first query of a session, and the registration of its source: each makes Spark look for installed sources."""
    started_s = time.perf_counter()
    if task.format == "memory":
        spark.dataSource.register(MemorySource)
    batch_read_s(spark, task, task.topic, task.records)
    return task.records / (time.perf_counter() - started_s)


def stream_read_per_s(spark: SparkSession, task: Task) -> float:
    """All records with availableNow, from start() to the end."""
    options = {**task.bootstrap, "subscribe": task.topic, "startingOffsets": "earliest"}
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
        started_s = time.perf_counter()
        table = spark.readStream.format(task.format).options(**options).load().selectExpr("length(value)")
        writer = table.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(_WAIT_S), "the stream did not end"
        seconds = time.perf_counter() - started_s
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert rows == task.records, f"{rows} rows of {task.records}"
    return rows / seconds


def write_per_s(spark: SparkSession, task: Task, *, keyed: bool = False) -> float:
    """All rows written and acknowledged; `keyed`: each row has its own key, whose hash chooses the partition."""
    started_s = time.perf_counter()
    columns = ["cast(repeat('x', 100) as binary) as value"] + ["concat('customer-', id) as key"] * keyed
    table = spark.range(task.write_rows).selectExpr(*columns)
    writer = table.write.format(task.format).mode("append").options(**task.bootstrap, topic=task.sink_topic)
    writer.save()
    return task.write_rows / (time.perf_counter() - started_s)


def driver_ms(spark: SparkSession, name: str, options: dict[str, str]) -> float:
    """Median time of a micro-batch without its tasks, and of planning the tasks."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
        table = spark.readStream.format(name).options(**options).load()
        query = table.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline_s = time.monotonic() + _WAIT_S
        while (query.lastProgress or {"batchId": -1})["batchId"] < MICRO_BATCHES - 1:
            assert query.exception() is None, query.exception()
            assert time.monotonic() < deadline_s, "the micro-batches do not run"
            time.sleep(0.1)
        query.stop()
        durations = [progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]]
    print(name, durations[-1], file=sys.stderr)
    return statistics.median(took["triggerExecution"] - took["addBatch"] for took in durations[2:MICRO_BATCHES])


def measure(task: Task) -> dict[str, Any]:
    spark = session(task.jars)
    found: dict[str, Any] = {"batch_read_cold": cold_read_per_s(spark, task)}
    found["batch_read_warm"] = max(batch_read_per_s(spark, task) for _ in range(WARM_ROUNDS))
    if task.streams:
        found["stream_read"] = max(stream_read_per_s(spark, task) for _ in range(WARM_ROUNDS))
    if not task.sink_topic:
        spark.stop()
        return found
    found["write"] = max(write_per_s(spark, task) for _ in range(WARM_ROUNDS))
    found["write_keyed"] = max(write_per_s(spark, task, keyed=True) for _ in range(WARM_ROUNDS))
    if task.small_topic:
        rounds_s = [batch_read_s(spark, task, task.small_topic, task.small_records) for _ in range(SMALL_ROUNDS)]
        found["small_ranges_ms"] = min(rounds_s) * 1000
    if task.streams and task.wide_topic:
        rate = {"rowsPerBatch": "1000", "numPartitions": "1"}
        options = {**task.bootstrap, "subscribe": task.wide_topic, "startingOffsets": "earliest"}
        own = driver_ms(spark, "rate-micro-batch", rate)
        found["spark_own_ms"] = own
        found["microbatch_overhead_ms"] = (
            driver_ms(spark, task.format, {**options, "maxOffsetsPerTrigger": "1000"}) - own
        )
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))
