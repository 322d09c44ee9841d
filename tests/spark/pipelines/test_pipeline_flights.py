# SPDX-License-Identifier: Apache-2.0
"""The flights demo as a pipeline: brokers and drivers are killed while it loads and rolls up.

Its output equals pandas.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from tidemark.local.cluster import LocalCluster
from tidemark_spark.jobs import audit, flights
from tidemark_spark.jobs.flights_feed import days_of

DAYS = 60
"""A sixth of the year and of its 336,776 flights: `spark-submit spark/pipelines/flights.py` takes them all."""


@pytest.mark.timeout(420)
def test_delays_by_carrier_and_hour_equal_pandas_to_the_last_bit_although_leaders_are_killed(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    words = ["--bootstrap", cluster.bootstrap, "--topic", "year", "--to-topic", "year-delays", "--days", str(DAYS)]
    arguments = flights.parser().parse_args([*words, "--checkpoint", str(tmp_path)])
    arguments.kills = 2
    days, table = flights.flights_of(arguments.days)
    outcome = flights.live(spark, arguments, days, table, cluster)
    assert outcome.differences == []
    assert (outcome.flights, outcome.rolled_up, outcome.late) == (len(table), len(table), 0)
    assert (len(days), len(outcome.killed)) == (DAYS, 2)
    assert outcome.windows == len(table.groupby(["carrier", "time_hour"]))
    assert audit.audit(spark, cluster.bootstrap, "year-delays") == [], "each offset is a record or a marker"


def test_days_are_in_calendar_order_and_cancelled_flights_have_no_delay() -> None:
    table = pd.DataFrame(
        {
            "year": ["2013", "2013", "2013"],
            "month": ["10", "2", "2"],
            "day": ["1", "10", "9"],
            "carrier": ["UA", "AA", "B6"],
            "flight": ["1", "2", "3"],
            "origin": ["EWR", "JFK", "LGA"],
            "dest": ["IAH", "MIA", "BOS"],
            "dep_delay": ["4", "-3", "NA"],
            "time_hour": ["2013-10-01T09:00:00Z", "2013-02-10T09:00:00Z", "2013-02-09T09:00:00Z"],
        }
    )
    days = days_of(table)
    assert [day.date for day in days] == ["2013-02-09", "2013-02-10", "2013-10-01"]
    assert days[0].records[0] == {
        "carrier": "B6",
        "flight": 3,
        "origin": "LGA",
        "dest": "BOS",
        "dep_delay": None,
        "time_hour": datetime(2013, 2, 9, 9, tzinfo=UTC),
    }


def test_different_numbers_and_missing_or_extra_windows_are_reported() -> None:
    def table(*rows: tuple[str, int, float]) -> pd.DataFrame:
        whole = [(pd.Timestamp(start), "UA", count, count, mean * count, mean, mean) for start, count, mean in rows]
        return flights.in_order(pd.DataFrame(whole, columns=flights.COLUMNS))

    expected = table(("2013-01-01 05:00", 2, 1.5), ("2013-01-01 06:00", 1, float("nan")), ("2013-01-01 07:00", 1, 1.0))
    found = table(("2013-01-01 05:00", 2, 2.5), ("2013-01-01 06:00", 1, float("nan")), ("2013-01-01 08:00", 1, 1.0))
    assert flights.differences(expected, expected) == []
    told = flights.differences(found, expected)
    assert told[:2] == [
        "1 carriers and hours are not in the rollup",
        "1 carriers and hours of the rollup are not in the CSV",
    ]
    sentence = "the first UA at 2013-01-01 05:00:00: 1.5 by pandas, 2.5 by the rollup"
    assert f"mean_delay_min differs for 1 carriers and hours, {sentence}" in told
