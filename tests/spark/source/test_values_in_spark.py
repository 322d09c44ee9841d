# SPDX-License-Identifier: Apache-2.0
"""Values by a schema, schemas that do not fit, and filters that are pushed down, in a real Spark session."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from tests.spark.harness.reading import needs_pushed_filters

pytestmark = pytest.mark.timeout(300)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
FIRST_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def delays(cluster: LocalCluster) -> str:
    """Topic `delays`: in each of three partitions ten flights, a second apart, the last of them malformed."""
    values = [json.dumps({"carrier": "UA", "delay": number}).encode() for number in range(9)] + [b"late"]
    rows = pa.table({"value": values, "at": pa.array([FIRST_US + 1_000_000 * number for number in range(10)])})
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("delays", partitions=3, replication_factor=3)
    with Producer(cluster.bootstrap) as producer:
        for partition in range(3):
            producer.send_table("delays", rows, timestamp="at", partition=partition)
        producer.flush(30)
    return "delays"


def read(
    spark: SparkSession, cluster: LocalCluster, topic: str, schema: str | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap).option("subscribe", topic)
    return (reader if schema is None else reader.schema(schema)).options(**options).load()


def test_json_values_are_columns_and_malformed_ones_are_dead_letters(
    spark: SparkSession, cluster: LocalCluster, delays: str
) -> None:
    options = {"valueFormat": "json", "valueSchema": "carrier STRING, delay INT", "columns": "partition, value"}
    table = read(spark, cluster, delays, **options, malformedValues="deadLetter")
    assert table.schema.simpleString() == (
        "struct<partition:int,value:struct<carrier:string,delay:int>,deadLetter:binary>"
    )
    row = table.selectExpr("sum(value.delay)", "count(value)", "count(deadLetter)", "max(cast(deadLetter as string))")
    assert tuple(row.collect()[0]) == (3 * sum(range(9)), 27, 3, "late")
    with pytest.raises(PySparkException, match=r"the value at offset 9, b'late', is not json .*malformedValues"):
        read(spark, cluster, delays, **options).collect()


def test_a_schema_that_does_not_fit_names_the_column(spark: SparkSession, cluster: LocalCluster, delays: str) -> None:
    with pytest.raises(PySparkException, match=r"the schema states int for the column 'offset', which is bigint"):
        read(spark, cluster, delays, "value BINARY, offset INT").collect()
    schema, options = "value STRUCT<delay: INT>, offset BIGINT", {"valueFormat": "json", "malformedValues": "null"}
    fits = read(spark, cluster, delays, schema, **options)
    assert fits.where("offset = 4").collect()[0]["value"]["delay"] == 4


@needs_pushed_filters
def test_conditions_are_pushed_down_where_asked_for_and_spark_allows_it(
    spark: SparkSession, cluster: LocalCluster, delays: str
) -> None:
    condition = "partition in (1, 2) and offset >= 4 and timestamp >= timestamp_micros(1700000006000000)"
    spark.conf.set(PUSHDOWN, "true")
    try:
        options = {"maxRecordsPerPartition": "1", "pushDownFilters": "true"}
        table = read(spark, cluster, delays, **options).where(condition)
        assert table.rdd.getNumPartitions() == 2 * 4
        assert sorted((row["partition"], row["offset"]) for row in table.collect()) == [
            (partition, offset) for partition in (1, 2) for offset in (6, 7, 8, 9)
        ]
        whole = read(spark, cluster, delays)
        assert (whole.where("offset < 4").count(), whole.count()) == (12, 30), "as it is unless asked for"
    finally:
        spark.conf.unset(PUSHDOWN)
    table = read(spark, cluster, delays, maxRecordsPerPartition="1").where(condition)
    assert (table.rdd.getNumPartitions(), table.count()) == (30, 8)
