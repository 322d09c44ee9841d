# SPDX-License-Identifier: Apache-2.0
"""Conditions of a query in a real Spark session: a read with pushed filters returns the rows of a read without."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from tests.spark.harness.reading import needs_pushed_filters

pytestmark = pytest.mark.timeout(300)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = (
    "n INT NOT NULL, f FLOAT, d DOUBLE, p DECIMAL(10,2), q DECIMAL(38,0), day DATE, at TIMESTAMP NOT NULL, "
    "ntz TIMESTAMP_NTZ, b BINARY, s STRING, t BOOLEAN, leg STRUCT<d: DOUBLE, s: STRING>"
)
FLOATS = [math.nan, -math.inf, math.inf, 0.0, -0.0, 0.5, -1.5]
TEXTS = ["", "x", "x ", "X", "ä", "a\u0308", "\uffff", "😀"]
LARGE = 12345678901234567890123456789012345678
CONDITIONS = [
    *(f"{column} {operator} double('nan')" for column in ("d", "leg.d") for operator in ("<", "<=", "<=>", ">=")),
    "f < float('nan') and d in (0.0D, 1.5D, null)",
    "f = 0.5 or not f <= 0.5",
    "d > -0.0D or d not in (0.5D, 0.0D)",
    "d not in (0.5D, null)",
    "not (leg.d <=> 0.5D) and not (leg.s <=> 'x')",
    "p = 1.5",
    "p in (-1, 1.50) or p > 2",
    f"q = {LARGE}",
    f"q in ({LARGE}, 7)",
    f"q >= {LARGE}",
    "day >= '1950-01-01'",
    "day < timestamp'1970-01-02 12:00:00'",
    "at >= '1960-01-01'",
    "at > '1969-12-31T23:59:59.9995Z'",
    "at = timestamp_micros(-1)",
    "at between '1950-01-01' and '2020-01-01'",
    "ntz > timestamp_ntz'1950-01-01'",
    "b > X'61' and b <= X'ff'",
    "s = 'x' or s >= 'ä'",
    "s > 'x' and s like '%'",
    "s like 'x%' and not s like '%X%'",
    "s not in ('x', 'X')",
    "s is null and leg is null",
    "leg.s is null",
    "t",
    "not t",
    "t <=> null",
]


def row(number: int) -> dict[str, Any]:
    """A row with values that Spark and Arrow may compare in other ways; each ninth has nulls."""
    if number % 9 == 8:
        return {"n": number, "at": datetime.datetime(1940 + number, 1, 1, tzinfo=datetime.UTC)}
    floating = FLOATS[number % len(FLOATS)]
    at = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=number - 20)
    return {
        "n": number,
        "f": floating,
        "d": floating,
        "p": decimal.Decimal(number - 3) / 2,
        "q": decimal.Decimal(LARGE + number % 3 - 1),
        "day": datetime.date(1940 + number, 2, 1),
        "at": at if number % 2 else datetime.datetime(1940 + number, 1, 1, tzinfo=datetime.UTC),
        "ntz": datetime.datetime(1940 + number, 1, 1),  # noqa: DTZ001 - the column has no time zone
        "b": bytes([number * 5 % 256]),
        "s": TEXTS[number % len(TEXTS)],
        "t": number % 3 == 0,
        "leg": {"d": None if number % 5 == 0 else floating, "s": None if number % 4 == 0 else TEXTS[number % 3]},
    }


@pytest.fixture(scope="module")
def compared(cluster: LocalCluster) -> str:
    with AdminClient(cluster.admin_address) as admin:
        schema = f"{SCHEMA}, EVENT_TIME (at)"
        admin.create_topic("compared-filters", partitions=2, replication_factor=3, schema=schema)
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(60):
            producer.send("compared-filters", row(number)).result(30)
    return "compared-filters"


@needs_pushed_filters
def test_pushed_filters_give_the_rows_that_spark_finds(
    spark: SparkSession, cluster: LocalCluster, compared: str
) -> None:
    def read(condition: str, **options: str) -> list[int]:
        reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap).options(**options)
        return sorted(one["n"] for one in reader.load(compared).where(condition).select("n").collect())

    wanted = {condition: read(condition) for condition in CONDITIONS}
    spark.conf.set(PUSHDOWN, "true")
    try:
        found = {condition: read(condition, pushDownFilters="true") for condition in CONDITIONS}
    finally:
        spark.conf.unset(PUSHDOWN)
    assert found == wanted
