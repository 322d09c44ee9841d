# SPDX-License-Identifier: Apache-2.0
"""The jobs of `bench typed` for Tidemark and for the peer, in a separate Python: needs PySpark only.

usage: python typed_job.py '{"bootstrap": {...}, "topic": "flights", ...}'; see `Task`. Its last line is JSON: seconds
of the first read of the session and of the best later one, and the sums that prove the same answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from bench.jobs.spark_job import session

WARM_ROUNDS = 3
_WAIT_S = 600
CARRIERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")
DDL = (
    "carrier STRING, flight INT, origin STRING, dest STRING, tailnum STRING, at TIMESTAMP, delay INT, arr_delay INT, "
    "distance INT, air_time DOUBLE, price DOUBLE, remark STRING"
)
AVRO_TYPES = {
    "STRING": "string",
    "INT": "int",
    "DOUBLE": "double",
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
}
ROW = (
    f"element_at(array({', '.join(map(repr, CARRIERS))}), cast(id % {len(CARRIERS)} as int) + 1) as carrier",
    "cast(id % 7000 as int) as flight",
    "substring('EWRJFKLGA', cast(id % 3 as int) * 3 + 1, 3) as origin",
    "concat('D', lpad(cast(id % 89 as string), 2, '0')) as dest",
    "concat('N', lpad(cast(id % 4043 as string), 5, '0')) as tailnum",
    "timestamp_seconds(1356998400 + id * 15) as at",
    "cast(id % 180 - 30 as int) as delay",
    "cast(id % 220 - 40 as int) as arr_delay",
    "cast(200 + id % 2400 as int) as distance",
    "cast(30 + id % 300 as double) as air_time",
    "cast(id % 50000 as double) / 4 as price",
    "concat('gate ', id % 40, ', boarding ', id % 12, ', ', lpad(cast(id as string), 12, '0')) as remark",
)
"""A row of about 120 bytes as columns."""


@dataclass
class Task:
    """The parameters of one session.

    Attributes:
        bootstrap: the option with the brokers' addresses; its name states the format.
        topic: the topic to read or to fill.
        kind: of the values: typed, json or avro. `value_format` is json that the source decodes.
        rows: number of rows of the topic.
        action: fill, read, read_two or stream.
        jars: jars for Spark.
    """

    bootstrap: dict[str, str]
    topic: str
    kind: str
    rows: int
    action: str
    jars: list[str] = field(default_factory=list)

    @property
    def format(self) -> str:
        """The format of source and sink."""
        return "kafka" if "kafka.bootstrap.servers" in self.bootstrap else "tidemark"


def avro_schema() -> str:
    fields = [one.strip().split() for one in DDL.split(",")]
    columns = [{"name": name, "type": AVRO_TYPES[kind]} for name, kind in fields]
    return json.dumps({"type": "record", "name": "flight", "fields": columns})


def fill(spark: SparkSession, task: Task) -> None:
    rows = spark.range(0, task.rows, numPartitions=4).selectExpr(*ROW)
    if task.kind == "avro":
        from pyspark.sql.avro.functions import to_avro

        rows = rows.select(F.col("carrier").alias("key"), to_avro(F.struct("*"), avro_schema()).alias("value"))
    elif task.kind != "typed":
        rows = rows.select(F.col("carrier").alias("key"), F.to_json(F.struct("*")).alias("value"))
    rows.write.format(task.format).mode("append").options(**task.bootstrap, topic=task.topic).save()


def flights(spark: SparkSession, task: Task, reader: Any) -> DataFrame:
    """The rows of the topic as columns."""
    reader = reader.format(task.format).options(**task.bootstrap)
    if task.kind == "typed":
        reader = reader.options(columns="at, delay") if task.action == "read_two" else reader
        table: DataFrame = reader.option("subscribe", task.topic).load()
        return table
    if task.kind == "value_format":
        options = {"valueFormat": "json", "valueSchema": DDL, "columns": "value"}
        return reader.options(subscribe=task.topic, **options).load().select("value.*")
    table = reader.option("subscribe", task.topic).load()
    if task.kind == "avro":
        from pyspark.sql.avro.functions import from_avro

        return table.select(from_avro("value", avro_schema()).alias("flight")).select("flight.*")
    return table.select(F.from_json(F.col("value").cast("string"), DDL).alias("flight")).select("flight.*")


def job(spark: SparkSession, table: DataFrame) -> DataFrame:
    """Window, join, and sums of six of the twelve columns."""
    names = spark.createDataFrame([(code, f"carrier {code}") for code in CARRIERS], "carrier string, name string")
    return (
        table.join(F.broadcast(names), "carrier")
        .groupBy(F.window("at", "1 hour"), "name")
        .agg(
            F.count("*").alias("flights"),
            F.sum("delay").alias("delay"),
            F.sum("arr_delay").alias("arr_delay"),
            F.sum("distance").alias("distance"),
            F.sum("price").alias("price"),
        )
    )


def job_of_two(spark: SparkSession, table: DataFrame) -> DataFrame:
    """Window, join, and sums of two of the twelve columns."""
    shifts = spark.createDataFrame([(hour, f"shift {hour // 8}") for hour in range(24)], "hour int, shift string")
    return (
        table.select(F.hour("at").alias("hour"), "at", "delay")
        .join(F.broadcast(shifts), "hour")
        .groupBy(F.window("at", "1 hour"), "shift")
        .agg(F.count("*").alias("flights"), F.sum("delay").alias("delay"))
    )


def read_s(spark: SparkSession, task: Task) -> tuple[float, list[float]]:
    """Seconds of a batch query, and its sums."""
    started_s = time.perf_counter()
    table = flights(spark, task, spark.read)
    sums = (job_of_two if task.action == "read_two" else job)(spark, table)
    names = [name for name in sums.columns if name not in ("window", "name", "shift")]
    found = sums.agg(F.count("*"), *(F.sum(name) for name in names)).collect()[0]
    took_s = time.perf_counter() - started_s
    assert found[1] == task.rows, f"{found[1]} rows of {task.rows}"
    return took_s, [float(value) for value in found]


def stream_s(spark: SparkSession, task: Task) -> tuple[float, list[float]]:
    """Seconds of an availableNow query from the start to the end of the topic."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
        started_s = time.perf_counter()
        table = flights(spark, task, spark.readStream.option("startingOffsets", "earliest"))
        writer = job(spark, table).writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(_WAIT_S), "the stream did not end"
        took_s = time.perf_counter() - started_s
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert rows == task.rows, f"{rows} rows of {task.rows}"
    return took_s, [float(rows)]


def measure(task: Task) -> dict[str, Any]:
    spark = session(task.jars)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    if task.action == "fill":
        fill(spark, task)
        spark.stop()
        return {}
    run = stream_s if task.action == "stream" else read_s
    cold_s, sums = run(spark, task)
    warm = [run(spark, task) for _ in range(WARM_ROUNDS)]
    assert all(found == sums for _, found in warm), warm
    spark.stop()
    return {"cold_s": cold_s, "warm_s": min(took_s for took_s, _ in warm), "sums": sums, "reads": 1 + len(warm)}


if __name__ == "__main__":
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))
