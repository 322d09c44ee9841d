# SPDX-License-Identifier: Apache-2.0
"""format("tidemark") in a real Spark session over a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster
from tidemark_spark.archive_layout import SCHEMA

from tests.spark.harness.secure import secrets_of, with_token

COUNT = 1000


@pytest.fixture(scope="module")
def places(cluster: LocalCluster) -> dict[tuple[int, int], int]:
    """Topic `rows`: record n has key n % 7, value n, a time and headers; gives n by (partition, offset)."""
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("rows", partitions=3, replication_factor=3)
        admin.create_topic("empty", partitions=2, replication_factor=1, configs={"min.insync.replicas": "1"})
    with Producer(cluster.bootstrap) as producer:
        handles = [
            producer.send(
                "rows",
                None if number == 5 else str(number).encode(),
                key=str(number % 7).encode(),
                timestamp_us=1_700_000_000_000_000 + number,
                headers=[("n", str(number).encode()), ("none", None)] if number % 2 else None,
            )
            for number in range(COUNT)
        ]
        found = [handle.result(30) for handle in handles]
    return {(where.partition, where.offset): number for number, where in enumerate(found)}


def read(spark: SparkSession, cluster: LocalCluster, **options: Any) -> DataFrame:
    options = {"subscribe": "rows", **with_token(cluster), **options}
    return spark.read.format("tidemark").options(**options).load()


def test_every_record_is_a_row_with_the_columns_of_sparks_kafka_source(
    spark: SparkSession, cluster: LocalCluster, places: dict[tuple[int, int], int]
) -> None:
    table = read(spark, cluster, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in table.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = table.selectExpr("*", "unix_micros(timestamp) as us").collect()
    assert len(rows) == COUNT
    for row in rows:
        number = places[row["partition"], row["offset"]]
        assert bytes(row["key"]) == str(number % 7).encode()
        assert row["value"] is None if number == 5 else bytes(row["value"]) == str(number).encode()
        assert (row["topic"], row["us"], row["timestampType"]) == ("rows", 1_700_000_000_000_000 + number, 0)
        headers = [(header["key"], header["value"] and bytes(header["value"])) for header in row["headers"] or ()]
        assert headers == ([("n", str(number).encode()), ("none", None)] if number % 2 else [])


def test_a_session_whose_timestamps_have_no_time_zone_reads_the_same_columns(
    spark: SparkSession, cluster: LocalCluster, places: dict[tuple[int, int], int]
) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        table = read(spark, cluster)
        assert table.schema["timestamp"].dataType.simpleString() == "timestamp"
        assert table.where("timestamp_micros(1700000000000000) <= timestamp").count() == COUNT
        empty = spark.createDataFrame([], SCHEMA)
        assert empty.schema["timestamp"].dataType.simpleString() == "timestamp"
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_offsets_bound_a_read_that_many_tasks_share(
    spark: SparkSession, cluster: LocalCluster, places: dict[tuple[int, int], int]
) -> None:
    partition = max({place[0] for place in places}, key=[place[0] for place in places].count)
    table = read(
        spark,
        cluster,
        startingOffsets=json.dumps({"rows": {str(partition): 10}}),
        endingOffsets=json.dumps({"rows": {str(partition): 20}}),
        minPartitions="9",
    )
    assert table.rdd.getNumPartitions() >= 9
    found = {(row["partition"], row["offset"]) for row in table.select("partition", "offset").collect()}
    assert found == {place for place in places if place[0] != partition or 10 <= place[1] < 20}


def test_assigned_partitions_are_read_and_no_others(
    spark: SparkSession, cluster: LocalCluster, places: dict[tuple[int, int], int]
) -> None:
    reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    table = reader.option("assign", '{"rows": [1]}').load()
    assert table.count() == sum(place[0] == 1 for place in places)


@pytest.mark.usefixtures("places")
def test_an_empty_topic_is_an_empty_table(spark: SparkSession, cluster: LocalCluster) -> None:
    assert read(spark, cluster, subscribe="empty").collect() == []


@pytest.mark.usefixtures("places")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nowhere"}, "UNKNOWN_TOPIC"),
        ({"startingOffsets": "yesterday"}, "startingOffsets is 'yesterday'"),
        ({"endingOffsets": '{"rows": {"0": 1000000}}'}, "names offset 1000000"),
        ({"tidemark.bootstrap": "127.0.0.1:1", "deadlineMs": "500"}, "127.0.0.1:1"),
    ],
)
def test_an_impossible_read_reports_the_cause(
    spark: SparkSession, cluster: LocalCluster, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, cluster, **options).collect()


def test_a_topic_that_was_recreated_since_the_plan_is_an_error_not_other_rows(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("again", partitions=1, replication_factor=3)
        producer.send("again", b"old").result(30)
        table = read(spark, cluster, subscribe="again")
        planned = table.rdd
        assert planned.getNumPartitions() == 1
        admin.delete_topic("again")
        admin.create_topic("again", partitions=1, replication_factor=3)
        with Producer(cluster.bootstrap) as second:
            second.send("again", b"new").result(30)
        with pytest.raises(Exception, match="UNKNOWN_TOPIC_ID"):
            planned.collect()


@pytest.mark.usefixtures("places")
def test_no_plan_page_or_setting_of_spark_shows_a_secret(
    spark: SparkSession, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read(spark, cluster).where("partition = 1")
    table.collect()
    table.explain("extended")
    shown = [capsys.readouterr().out, *(f"{name}={value}" for name, value in spark.sparkContext.getConf().getAll())]
    assert "tidemark" in shown[0]
    pages = spark._jsparkSession.sharedState().statusStore().executionsList()  # type: ignore[attr-defined]
    shown += [pages.apply(index).physicalPlanDescription() for index in range(pages.size())]
    environment = spark._jsc.sc().statusStore().environmentInfo()  # type: ignore[attr-defined]
    shown.append(environment.sparkProperties().mkString("\n"))
    assert any("Scan" in page for page in shown[-2:])
    for secret in secrets_of(cluster):
        assert [text for text in shown if secret in text] == []


def test_a_token_in_place_of_its_path_is_refused_and_not_repeated(spark: SparkSession, cluster: LocalCluster) -> None:
    token, _ = secrets_of(cluster)
    with pytest.raises(PySparkException, match="has a token, and the query plan would show it") as refused:
        read(spark, cluster, **{"tidemark.token.file": token}).collect()
    assert token not in str(refused.value)


def test_planning_imports_nothing_that_computes_on_columns() -> None:
    code = (
        "import sys; import pyspark.sql.worker.plan_data_source_read; before = set(sys.modules); "
        "import tidemark_spark.reader, tidemark_spark.typed.table; print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    costly = {"pyarrow.compute", "pyarrow.json", "tidemark.client.typed.batch_rows", "tidemark_spark.values"}
    assert not costly & set(done.stdout.split())
