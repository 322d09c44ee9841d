# SPDX-License-Identifier: Apache-2.0
"""Results of a benchmark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.cli.bench.histogram import PERCENTILES, Histogram, Measured, share, together
from tidemark.cli.bench.workers import payload_bytes
from tidemark.cli.common.units import parse_size
from typer import BadParameter


@given(st.lists(st.floats(1, 1e8), min_size=1, max_size=300))
def test_percentiles_are_within_one_percent(latencies: list[float]) -> None:
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    ordered = sorted(latencies)
    for percent in PERCENTILES:
        true = ordered[max(-(-len(ordered) * percent // 100), 1).__int__() - 1]
        assert true * 0.989 <= histogram.percentile_us(percent) <= true * 1.011
    assert histogram.percentile_us(100) == pytest.approx(ordered[-1])


def test_results_of_workers_are_merged() -> None:
    first, second = Measured(10, 1000, 12, 2.0), Measured(30, 3000, 30, 2.5, failed=1, first_error="late")
    first.latencies.add(1000.0, 9)
    second.latencies.add(3000.0)
    both = together([first, second])
    assert (both.records, both.size_bytes, both.whole, both.failed, both.first_error) == (40, 4000, 42, 1, "late")
    assert (both.records_per_s, both.bytes_per_s) == (16.0, 1600.0)
    summary = both.latencies.summary_ms()
    assert list(summary) == ["mean", "p50", "p95", "p99", "p99.9", "max"]
    assert (summary["mean"], summary["max"]) == (1.2, 3.0)
    assert summary["p50"] == pytest.approx(1.0, rel=0.011)


def test_an_empty_result_is_zero() -> None:
    assert set(Histogram().summary_ms().values()) == {0.0}
    assert Measured().records_per_s == 0.0


def test_a_clock_that_went_back_makes_no_negative_latency() -> None:
    histogram = Histogram()
    histogram.add(-5.0)
    assert (histogram.count, histogram.max_us) == (1, 1.0)


@given(total=st.integers(0, 1000), workers=st.integers(1, 50))
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, workers, number) for number in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_payload_bytes_count_keys_and_values_but_not_nulls() -> None:
    rows = pa.record_batch({"key": pa.array([b"ab", None]), "value": pa.array([b"xyz", None])})
    assert payload_bytes(rows) == 5
    assert payload_bytes(rows.slice(1)) == 0


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("1kB", 1000), ("64KiB", 65536), ("1.5MB", 1_500_000)])
def test_sizes_are_parsed_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "many", "5 parsecs", "1MB/s", "-3"])
def test_a_malformed_size_is_bad_usage(text: str) -> None:
    with pytest.raises(BadParameter):
        parse_size(text)
