# SPDX-License-Identifier: Apache-2.0
"""The demo fails for every violated guarantee."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tidemark.local import demo
from tidemark.local.demo import DemoFailedError, Found, Replay, _carriers, _compare, read_flights, text, typed


@pytest.fixture(scope="module")
def year() -> pd.DataFrame:
    return read_flights()


@pytest.fixture(scope="module")
def flights(year: pd.DataFrame) -> pd.DataFrame:
    return year.head(500)


@pytest.fixture
def found(flights: pd.DataFrame) -> Found:
    """All flights in another order, as Spark returns them."""
    rows = flights.sort_values("tailnum", ignore_index=True)
    rows.insert(0, "partition", (rows.index % 6).astype("int32"))
    rows.insert(1, "offset", rows.index // 6)
    rows.insert(2, "key", rows["carrier"])
    return Found(rows=rows, carriers=_carriers(flights))


def replay_of(found: Found) -> Replay:
    return Replay(recovered_s=1.0, places=set(zip(found.rows["partition"], found.rows["offset"], strict=True)))


def test_the_csv_has_every_flight_of_the_year(year: pd.DataFrame) -> None:
    assert len(year) == 336_776


def test_flights_are_typed_and_come_back_as_the_text_of_the_csv(year: pd.DataFrame) -> None:
    """Flights with each value of each column, and all without an arrival."""
    chosen = year["arr_delay"] == "NA"
    for column in year.columns[1:]:
        chosen |= ~year[column].duplicated()
    flights = year[chosen].reset_index(drop=True)
    table = typed(flights)
    assert str(table.schema.field("dep_delay").type) == "int16"
    assert table.column("arr_delay").null_count == 9430
    pd.testing.assert_frame_equal(text(table), flights)


def test_flights_in_any_order_are_equal(flights: pd.DataFrame, found: Found) -> None:
    _compare(found, flights, replay_of(found))


def test_a_lost_flight_fails(flights: pd.DataFrame, found: Found) -> None:
    less = Found(found.rows.drop(index=7), found.carriers)
    with pytest.raises(DemoFailedError, match="1 flights lost, 0 duplicates, 499 of 500 read"):
        _compare(less, flights, replay_of(less))


def test_a_duplicate_flight_fails(flights: pd.DataFrame, found: Found) -> None:
    more = Found(pd.concat([found.rows, found.rows.head(1)]), found.carriers)
    with pytest.raises(DemoFailedError, match="0 flights lost, 1 duplicates, 501 of 500 read"):
        _compare(more, flights, replay_of(more))


def test_one_changed_letter_fails(flights: pd.DataFrame, found: Found) -> None:
    found.rows.loc[3, "dest"] = "XXX"
    with pytest.raises(DemoFailedError, match="1 flights differ"):
        _compare(found, flights, replay_of(found))


def test_an_offset_that_was_not_acknowledged_fails(flights: pd.DataFrame, found: Found) -> None:
    replay = replay_of(found)
    replay.places.pop()
    with pytest.raises(DemoFailedError, match="acknowledged"):
        _compare(found, flights, replay)


def test_another_mean_delay_fails(flights: pd.DataFrame, found: Found) -> None:
    found.carriers.loc[0, "mean_delay"] += 0.001
    with pytest.raises(DemoFailedError, match="mean delays"):
        _compare(found, flights, replay_of(found))


def test_no_acknowledgement_after_the_kill_fails(flights: pd.DataFrame, found: Found) -> None:
    replay = replay_of(found)
    replay.recovered_s = None
    with pytest.raises(DemoFailedError, match="after the kill"):
        _compare(found, flights, replay)


def test_grpc_has_no_fork_handlers_when_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark forks to start Java. With gRPC's handlers, the child sometimes aborted (JAVA_GATEWAY_EXITED)."""
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    found: list[str | None] = []

    def start_spark(_: Path) -> Any:
        found.append(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(demo, "_start_spark", start_spark)
    monkeypatch.setattr(demo, "_run", lambda *_: None)
    assert demo.main() == 0
    assert found == ["0"]
