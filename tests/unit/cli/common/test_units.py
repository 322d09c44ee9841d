# SPDX-License-Identifier: Apache-2.0
"""Parsing and formatting of sizes, rates and durations."""

from __future__ import annotations

import pytest
import typer
from tidemark.cli.common.units import parse_rate
from tidemark.client.units import shown_bytes, shown_duration


@pytest.mark.parametrize(
    ("text", "rate"),
    [("50MB", 50_000_000), ("50MB/s", 50_000_000), ("1.5GiB", 3 << 29), ("1000", 1000), ("1 kB", 1000), ("7b", 7)],
)
def test_rates_are_parsed_with_units(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "0.1", "-5MB", "50XB", "MB", "1e9", "9999999999TB", "9" * 5_000, "٣MB"]
)
def test_a_malformed_rate_is_bad_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_rate(text)


def test_sizes_and_times_are_shown_with_their_units() -> None:
    assert [shown_bytes(count) for count in (0, 999, 1500, 2_000_000, 3e9, 4e12, None)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.0 MB",
        "3.0 GB",
        "4.0 TB",
        "unknown",
    ]
    assert [shown_duration(seconds) for seconds in (0.4, 59, 61, 3661, None)] == [
        "0 s",
        "59 s",
        "1 min 01 s",
        "1 h 01 min",
        "unknown",
    ]
