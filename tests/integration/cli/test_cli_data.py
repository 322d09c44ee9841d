# SPDX-License-Identifier: Apache-2.0
"""`tidemark produce` and `consume` as processes: formats, ends, and refusals that name the last good record."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tidemark.client import Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name

from tests.integration.cli.test_cli import refused, succeeds, tidemark
from tests.integration.harness import warm_command
from tests.integration.harness.waiting import wait_for


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"data-{uuid.uuid4().hex[:12]}"
    succeeds(cluster, "topic", "create", name, "--partitions", "3")
    return name


def rows_of(cluster: LocalCluster, topic: str) -> list[dict[str, str]]:
    lines = succeeds(cluster, "consume", topic, "--until-end", "-o", "json").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda row: (row["partition"], row["offset"]))


def test_a_csv_file_goes_in_and_comes_out_as_json_csv_and_parquet(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "flights.csv"
    lines = [f"{'AA' if number % 2 else 'UA'},{number},2013-01-01T05:{number % 60:02}:00Z" for number in range(2000)]
    file.write_text("\n".join(["carrier,flight,time_hour", *lines]))
    columns = ("--key-column", "carrier", "--timestamp-column", "time_hour", "--codec", "zstd")
    sent = json.loads(succeeds(cluster, "produce", topic, "-f", str(file), "--format", "csv", *columns, "-o", "json"))
    assert (sent["acknowledged"], sent["failed"]) == (2000, 0)
    rows = rows_of(cluster, topic)
    assert sorted(json.loads(row["value"])["flight"] for row in rows) == list(range(2000))
    for carrier in ("AA", "UA"):
        flights = [json.loads(row["value"])["flight"] for row in rows if row["key"] == carrier]
        assert flights == sorted(flights), "in order, by key"
    assert rows[0]["timestamp"].startswith("2013-01-01T05:")
    table = tmp_path / "out.parquet"
    assert succeeds(cluster, "consume", topic, "--until-end", "-o", "parquet", "-f", str(table), "--strings") == ""
    read = parquet.read_table(table)
    assert read.num_rows == 2000
    assert set(read.column("key").to_pylist()) == {"AA", "UA"}
    assert len(succeeds(cluster, "consume", topic, "--until-end", "-o", "csv").splitlines()) == 2001


def test_json_output_of_consume_can_be_produced_into_another_topic(cluster: LocalCluster, topic: str) -> None:
    succeeds(cluster, "produce", topic, "-k", "=", stdin="a=1\nb=2\n")
    copy = f"{topic}-copy"
    succeeds(cluster, "topic", "create", copy, "--partitions", "3")
    lines = succeeds(cluster, "consume", topic, "--until-end", "-o", "json")
    columns = ("--key-column", "key", "--value-column", "value", "--timestamp-column", "timestamp_us")
    sent = succeeds(cluster, "produce", copy, "--format", "json", *columns, stdin=lines)
    assert sent == f"sent 2 records to {copy}\n"
    names = ("partition", "key", "value", "timestamp_us")
    before, after = ([[row[name] for name in names] for row in rows_of(cluster, one)] for one in (topic, copy))
    assert before == after


def test_a_dump_of_a_log_restores_committed_records_only(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"1", key=b"committed", headers=[("h", b"\xff")], partition=0)
        with contextlib.suppress(RuntimeError), producer.transaction():
            producer.send(topic, b"2", key=b"aborted", partition=0)
            producer.flush()
            raise RuntimeError("abort")
    succeeds(cluster, "produce", topic, "-k", "=", stdin="plain=3\n")
    (described,) = json.loads(succeeds(cluster, "topic", "describe", topic, "-o", "json"))
    copy = f"{topic}-copy"
    succeeds(cluster, "topic", "create", copy, "--partitions", "3")
    columns = ("--key-column", "key", "--value-column", "value", "--timestamp-column", "timestamp_us")
    for one in described["partitions"]:
        replica = cluster.directory / broker_name(one["leader"]) / f"{topic}-{one['partition']}"
        if replica.exists():
            lines = succeeds(cluster, "log", "dump", str(replica), "--records", "--committed", "--json")
            succeeds(cluster, "produce", copy, "--format", "json", *columns, stdin=lines)
    before, after = (
        sorted([row["key"], row["value"], row["headers"], row["timestamp_us"]] for row in rows_of(cluster, one))
        for one in (topic, copy)
    )
    assert [row[:2] for row in before] == [["aborted", "2"], ["committed", "1"], ["plain", "3"]]
    assert after == before[1:]
    committed = ("--until-end", "--isolation-level", "read_committed")
    for how in ((), ("--group", topic)):
        assert sorted(succeeds(cluster, "consume", topic, *committed, *how).split()) == ["1", "3"]


def test_a_parquet_file_is_sent_up_to_a_count_and_read_up_to_one(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"k": ["a"] * 50_000, "v": [f"{number}" for number in range(50_000)]}), file)
    flags = ("--format", "parquet", "--key-column", "k", "--value-column", "v", "--count", "30000")
    assert succeeds(cluster, "produce", topic, "-f", str(file), *flags) == f"sent 30000 records to {topic}\n"
    read = succeeds(cluster, "consume", topic, "--from", "earliest", "--count", "20000")
    assert read.splitlines() == [f"{number}" for number in range(20_000)]
    assert succeeds(cluster, "consume", topic, "--until-end", "--from", "latest") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_producer_reports_the_records_that_it_has_read(
    cluster: LocalCluster, topic: str, number: signal.Signals
) -> None:
    command = [*warm_command.command(), "produce", topic, "--bootstrap", cluster.bootstrap]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running, Consumer(cluster.bootstrap) as consumer:  # type: ignore[call-overload]
        try:
            assert running.stdin is not None
            running.stdin.write("a\nb\n")
            running.stdin.flush()
            consumer.assign(topic)
            wait_for(lambda: sum(consumer.end_offsets().values()) == 2, "both lines are records")
            running.send_signal(number)
            running.wait(timeout=30)  # its standard input is still open: only the signal ends the command
            output = running.communicate()
        finally:
            running.kill()
    assert (running.returncode, *output) == (130, f"sent 2 records to {topic}\n", "")


def test_an_unsendable_record_is_reported_with_its_line_and_the_acknowledged_count(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    good = "".join(f'{{"k": {number}}}\n' for number in range(5))
    ended = tidemark(cluster, "produce", topic, "--format", "json", stdin=f"{good}{{oops\n{good}")
    refused(ended, "INVALID_REQUEST")
    assert "line 6: not JSON" in ended.error
    assert ended.error.endswith("; the 5 records before it are sent\n")
    assert len(rows_of(cluster, topic)) == 5
    ended = tidemark(cluster, "produce", topic, "--format", "csv", "--key-column", "x", stdin="a,b\n1,2\n")
    refused(ended, "INVALID_REQUEST")
    assert "there is no column 'x', only a, b" in ended.error
    assert tidemark(cluster, "produce", topic, "-f", str(tmp_path / "not-there")).status == 2
    assert tidemark(cluster, "produce", topic, "--key-column", "x").status == 2
    assert tidemark(cluster, "produce", topic, "--format", "csv", "-k", "=").status == 2
    refused(tidemark(cluster, "consume", topic, "--until-end", "-f", str(tmp_path / "no" / "file")), "STORAGE_ERROR")
