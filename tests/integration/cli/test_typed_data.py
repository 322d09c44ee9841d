# SPDX-License-Identifier: Apache-2.0
"""Typed topics through `tidemark consume` and `produce` as processes: every format out, in, and back again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from tidemark.client import Producer
from tidemark.local.cluster import LocalCluster

from tests.integration.cli.test_cli import refused, succeeds, tidemark

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
DDL = (
    "carrier STRING NOT NULL, day DATE, price DECIMAL(10,2), legs ARRAY<STRUCT<origin: STRING, miles: INT>>, "
    "tags MAP<STRING, INT>, raw BINARY, rate DOUBLE, at TIMESTAMP NOT NULL, PRIMARY KEY (carrier), EVENT_TIME (at)"
)
ROW: dict[str, Any] = {
    "carrier": "UA",
    "day": date(2013, 1, 1),
    "price": Decimal("12.50"),
    "legs": [{"origin": "EWR", "miles": 1400}, None],
    "tags": {"a": 1},
    "raw": b"\x00\xff",
    "rate": float("inf"),
    "at": NOON,
}
AS_JSON: dict[str, Any] = {
    **ROW,
    "day": "2013-01-01",
    "price": "12.50",
    "raw": "AP8=",
    "rate": "Infinity",
    "at": "2026-11-24T12:00:00Z",
}
EMPTY: dict[str, Any] = {**dict.fromkeys(ROW), "carrier": "AA", "at": NOON}


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    name = f"typed-{uuid.uuid4().hex[:12]}"
    succeeds(cluster, "topic", "create", name, "--schema", DDL)
    yield name
    succeeds(cluster, "topic", "delete", name, "--yes")


@pytest.fixture
def rows(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send(topic, ROW, headers=[("trace", b"7")])
        producer.send(topic, EMPTY)
        producer.flush()


def read(cluster: LocalCluster, topic: str, *flags: str) -> str:
    return succeeds(cluster, "consume", topic, "--until-end", *flags)


@pytest.mark.usefixtures("rows")
def test_rows_are_consumed_as_lines_json_csv_and_parquet(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    assert [json.loads(line) for line in read(cluster, topic).splitlines()] == [
        AS_JSON,
        {**EMPTY, "at": AS_JSON["at"]},
    ]
    assert read(cluster, topic, "-k", "=").startswith('UA={"carrier"')
    first, second = (json.loads(line) for line in read(cluster, topic, "-o", "json").splitlines())
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_us": int(NOON.timestamp() * 1e6),
        "timestamp": AS_JSON["at"],
        "key": "UA",
        "value": AS_JSON,
        "headers": [{"name": "trace", "value": "7"}],
    }
    assert (second["offset"], second["headers"]) == (1, [])

    header, row, _ = read(cluster, topic, "-o", "csv").splitlines()
    assert header.replace('"', "") == "_partition,_offset,_timestamp,carrier,day,price,legs,tags,raw,rate,at"
    assert row.startswith('0,0,2026-11-24 12:00:00.000000Z,"UA",2013-01-01,12.50,"[{""origin')

    file = tmp_path / "rows.parquet"
    read(cluster, topic, "-f", str(file))
    table = parquet.read_table(file)
    assert table.schema.names == ["_partition", "_offset", "_timestamp", "_key", *ROW, "_headers"]
    assert [str(table.schema.field(name).type) for name in ("day", "price")] == ["date32[day]", "decimal128(10, 2)"]
    found = table.to_pylist()[0]
    assert {name: found[name] for name in ROW} == {**ROW, "tags": [("a", 1)]}
    assert (found["_key"], found["_headers"]) == (b"UA", [("trace", b"7")])


@pytest.mark.usefixtures("rows")
def test_some_columns_are_consumed_also_by_a_group(cluster: LocalCluster, topic: str) -> None:
    columns = ("--columns", "legs.miles, carrier")
    lines = ['{"carrier": "UA", "legs": [{"miles": 1400}, null]}', '{"carrier": "AA", "legs": null}']
    assert read(cluster, topic, *columns).splitlines() == lines
    values = [json.loads(line)["value"] for line in read(cluster, topic, *columns, "-o", "json").splitlines()]
    assert values == [json.loads(line) for line in lines]
    assert read(cluster, topic, "--columns", "_offset,carrier", "-o", "csv") == '"carrier","_offset"\n"UA",0\n"AA",1\n'
    group = f"group-{topic}"
    assert read(cluster, topic, "--group", group, *columns).splitlines() == lines
    assert read(cluster, topic, "--group", group) == "", "the offsets are committed"
    assert read(cluster, topic, "--group", f"{group}-2", "-o", "csv") == read(cluster, topic, "-o", "csv")
    ended = tidemark(cluster, "consume", topic, "--columns", "legs.mile", "--until-end")
    refused(ended, "INVALID_REQUEST")
