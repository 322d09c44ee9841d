# SPDX-License-Identifier: Apache-2.0
"""The check of `make flights` against forged outputs."""

from __future__ import annotations

import pandas as pd

from tests.chaos.flights.__main__ import repeated


def output(*rows: tuple[int, str, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["start", "carrier", "flights"])


def test_windows_that_grow_are_no_repetition() -> None:
    assert repeated(output((1, "UA", 2), (1, "AA", 1), (1, "UA", 3), (2, "UA", 3))) == []


def test_a_micro_batch_that_is_written_twice_is_reported() -> None:
    written_twice = output((1, "UA", 2), (2, "AA", 1), (1, "UA", 2), (2, "AA", 1), (1, "UA", 5))
    assert repeated(written_twice) == ["2 rows repeat an earlier one, the first UA at 1"]
