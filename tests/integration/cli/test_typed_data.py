# SPDX-License-Identifier: Apache-2.0
"""Typed topics through `tidemark consume` and `produce` as processes: each format is written, and read back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    assert "1 partition the same" in succeeds(cluster, "replicas", "verify", "--topic", topic)

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


@pytest.mark.usefixtures("rows")
def test_rows_are_consumed_in_the_version_that_the_command_names(cluster: LocalCluster, topic: str) -> None:
    ddl = DDL.replace("rate DOUBLE", "rate DOUBLE, gate STRING NOT NULL DEFAULT '?'")
    succeeds(cluster, "schema", "evolve", topic, "--schema", ddl)
    for group in ((), ("--group", f"group-{topic}")):
        found = [json.loads(line) for line in read(cluster, topic, "--schema-version", "1", *group).splitlines()]
        assert found == [AS_JSON, {**EMPTY, "at": AS_JSON["at"]}]
        assert "gate" in read(cluster, topic, *(*group[:1], *(f"{one}-2" for one in group[1:])))
        ended = tidemark(cluster, "consume", topic, "--schema-version", "9", "--until-end", *group)
        refused(ended, "UNKNOWN_SCHEMA_VERSION")
    table = read(cluster, topic, "--schema-version", "1", "-o", "csv", "--group", f"group-{topic}-3")
    assert "gate" not in table
    assert table.count("\n") == 3


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("shape", ["json", "csv", "parquet"])
def test_the_output_of_consume_is_input_of_produce(
    cluster: LocalCluster, topic: str, tmp_path: Path, shape: str
) -> None:
    file = tmp_path / f"rows.{shape}"
    read(cluster, topic, "-f", str(file))
    before = read(cluster, topic, "-o", "json").splitlines()
    if shape == "json":
        sent = succeeds(cluster, "produce", topic, stdin=file.read_text())
    else:
        sent = succeeds(cluster, "produce", topic, "-f", str(file))
    assert sent == f"sent 2 records to {topic}\n"
    after = [json.loads(line) for line in read(cluster, topic, "-o", "json").splitlines()][2:]
    expected = [{**json.loads(line), "offset": number} for number, line in enumerate(before, 2)]
    if shape == "csv":  # has no headers
        expected = [{**one, "headers": []} for one in expected]
    assert after == expected


def test_rows_that_do_not_fit_stop_the_command_or_go_to_a_file(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "flights.csv"
    lines = [f"UA,{number}.25,2026-11-24T12:00:00Z" for number in range(3)]
    file.write_text("\n".join(["carrier,price,at", *lines, "UA,cheap,2026-11-24T12:00:00Z", "UA,,", *lines]))
    ended = tidemark(cluster, "produce", topic, "-f", str(file))
    refused(ended, "SCHEMA_MISMATCH")
    where, what = f"topic {topic}, schema version 1: line 5, column price", "'cheap' is not a valid decimal(10,2)"
    assert ended.error == f"error SCHEMA_MISMATCH: {where}: {what}; the 3 records before it are sent\n"
    ended = tidemark(cluster, "produce", topic, "-f", str(file), "--reject-file", str(file))
    refused(ended, "INVALID_REQUEST")
    assert file.read_text().startswith("carrier,price,at\nUA,")
    rejects = tmp_path / "rejects.jsonl"
    sent = succeeds(cluster, "produce", topic, "-f", str(file), "--reject-file", str(rejects))
    assert sent == f"sent 6 records to {topic}; 2 rows that did not fit: {rejects}\n"
    rejected = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(one["line"], one["column"]) for one in rejected] == [(5, "price"), (6, "at")]
    assert rejected[1]["row"] == {"carrier": "UA", "price": "", "at": ""}
    prices = [json.loads(line)["price"] for line in read(cluster, topic, "--columns", "price").splitlines()]
    assert prices == [f"{number}.25" for number in range(3)] * 3

    table = tmp_path / "flights.parquet"
    parquet.write_table(pa.table({"carrier": ["UA", None], "at": [NOON, NOON]}), table)
    succeeds(cluster, "produce", topic, "-f", str(table), "--reject-file", str(rejects))
    assert json.loads(rejects.read_text())["line"] == 2

    done = succeeds(cluster, "produce", topic, "-o", "json", "--reject-file", str(rejects), stdin="{}\n")
    assert (json.loads(done)["acknowledged"], json.loads(done)["rejected"]) == (0, 1)
    for flags, sentence in [
        (("--format", "json", "--key-column", "carrier"), "omit --key-column: columns are matched by name"),
        (("--format", "json", "--timestamp-column", "at"), "the time of a row is its at"),
        (("--format", "text"), "lines of text are not rows"),
    ]:
        ended = tidemark(cluster, "produce", topic, *flags, stdin="{}")
        refused(ended, "INVALID_REQUEST")
        assert sentence in ended.error


def test_options_of_typed_topics_are_refused_for_others(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    plain = f"{topic}-bytes"
    succeeds(cluster, "topic", "create", plain)
    for command in (
        ("consume", plain, "--columns", "a", "--until-end"),
        ("consume", plain, "--columns", "a", "--group", f"group-{plain}", "--until-end"),
        ("consume", plain, "--schema-version", "1", "--until-end"),
        ("consume", plain, "--schema-version", "1", "--group", f"group-{plain}", "--until-end"),
        ("produce", plain, "--reject-file", str(tmp_path / "rejects")),
    ):
        ended = tidemark(cluster, *command)
        refused(ended, "INVALID_REQUEST")
        assert "has no schema" in ended.error
    succeeds(cluster, "topic", "delete", plain, "--yes")
