# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a Polars predicate bound the rows that a scan fetches; other parts of the predicate set no bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from tidemark.client.tables.predicates import ANY, Planned, planned_of
from tidemark.client.tables.table_scan import PartitionBounds
from tidemark.record.typed.batch import TimeRange

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
AT, PARTITION, OFFSET, DELAY = (pl.col(name) for name in ("at", "_partition", "_offset", "delay"))


def planned(predicate: pl.Expr) -> Planned:
    return planned_of(predicate, {"at", "_timestamp"})


@pytest.mark.parametrize(
    ("predicate", "bounds"),
    [
        (PARTITION == 1, PartitionBounds(frozenset({1}))),
        (pl.lit(1) == PARTITION, PartitionBounds(frozenset({1}))),
        (PARTITION.is_in([4, 2]), PartitionBounds(frozenset({2, 4}))),
        (PARTITION.is_in([4, 2]) & (PARTITION > 2), PartitionBounds(frozenset({4}))),
        (PARTITION < 2, PartitionBounds(frozenset({0, 1}))),
        ((PARTITION == 1) & (PARTITION == 2), PartitionBounds(frozenset())),
        (OFFSET > 5, PartitionBounds(start=6)),
        (5 < OFFSET, PartitionBounds(start=6)),  # noqa: SIM300 - the constant on the left
        (OFFSET.is_between(5, 8, closed="left") & (DELAY > 3), PartitionBounds(start=5, end=8)),
        ((OFFSET >= 5) & (OFFSET <= 8) & (OFFSET < 7), PartitionBounds(start=5, end=7)),
    ],
)
def test_partitions_and_offsets_bound_the_rows(predicate: pl.Expr, bounds: PartitionBounds) -> None:
    assert planned(predicate) == Planned(bounds, TimeRange())


@pytest.mark.parametrize(
    ("predicate", "times"),
    [
        (AT >= NOON, TimeRange(NOON_US - 1)),
        (pl.col("_timestamp") < NOON, TimeRange(None, NOON_US + 1)),
        (AT.is_between(NOON, NOON + timedelta(seconds=1)), TimeRange(NOON_US - 1, NOON_US + 1_000_002)),
        (pl.lit("2026-11-24 12:00").str.to_datetime(time_zone="UTC") < AT, TimeRange(NOON_US)),
        (pl.lit(NOON).dt.cast_time_unit("ns") < AT, TimeRange(NOON_US)),
    ],
)
def test_times_bound_the_batches(predicate: pl.Expr, times: TimeRange) -> None:
    assert planned(predicate) == Planned(PartitionBounds(), times)


@pytest.mark.parametrize(
    "predicate",
    [
        (OFFSET > 5) | (PARTITION == 1),
        ~(OFFSET > 5),
        OFFSET + 1 > 5,
        OFFSET > DELAY,
        OFFSET != 5,
        OFFSET > 5.5,
        pl.lit(None) < OFFSET,
        DELAY > 5,
        pl.col("other") > NOON,
        NOON.replace(tzinfo=None) < AT,
        OFFSET.map_batches(lambda values: values > 5, pl.Boolean),
        pl.col("open"),
    ],
)
def test_a_predicate_that_is_not_understood_gives_no_bound(predicate: pl.Expr) -> None:
    assert planned(predicate) == ANY
