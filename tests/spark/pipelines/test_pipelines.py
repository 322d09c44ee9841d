# SPDX-License-Identifier: Apache-2.0
"""The jobs of spark/pipelines on a real session and a real cluster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, Row, SparkSession
from tidemark.client import AdminClient, ConsumerRecord, Producer, read_table
from tidemark.client.tables.archiver import archive_topic
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark_spark import compat
from tidemark_spark.archive_layout import Files, landed_files, read_archive, read_manifests
from tidemark_spark.jobs import archive, audit, replay, rollup
from tidemark_spark.typed.archive import read_history

from tests.spark.harness.reading import committed_records

ROOT = Path(__file__).resolve().parents[3]
COUNT = 600
FIRST_US = 1_700_003_600_000_000
STEP_US = 10_000_000
"""600 records are 100 minutes, from 23:13 to 0:53."""
PATHS = os.pathsep.join([str(ROOT / "services"), str(ROOT / "spark")])
NAMES = ("archive", "replay", "rollup", "audit", "flights")
pytestmark = pytest.mark.timeout(300)


def make(cluster: LocalCluster, topic: str, partitions: int = 3) -> None:
    """Topics that keep records of years ago, as the tests write them."""
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=3, configs={"retention.ms": "-1"})


def records(cluster: LocalCluster, topic: str) -> list[ConsumerRecord]:
    """All records of a topic, by partition and offset."""
    return committed_records(cluster.bootstrap, topic)


@pytest.fixture(scope="module")
def sales(cluster: LocalCluster) -> str:
    """A topic of records with keys, times and headers, some of them null."""
    make(cluster, "sales")
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(
                "sales",
                None if number % 100 == 7 else json.dumps({"shop": f"s{number % 5}", "euros": number}).encode(),
                key=None if number % 50 == 3 else f"s{number % 5}".encode(),
                timestamp_us=FIRST_US + number * STEP_US,
                headers=[("n", str(number).encode()), ("none", None)] if number % 2 else None,
            )
    return "sales"


def table_of(spark: SparkSession, cluster: LocalCluster, topic: str) -> DataFrame:
    reader = spark.read.format("tidemark").option("tidemark.bootstrap", cluster.bootstrap)
    return reader.options(subscribe=topic, includeHeaders="true").load()


def rows_of(table: DataFrame) -> list[Row]:
    columns = "topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers"
    return table.select(*columns).orderBy("topic", "partition", "offset").collect()


def land(spark: SparkSession, table: DataFrame, root: str, files: int) -> None:
    """Copy the table into the archive, in micro-batches of one of `files` files each."""
    source = f"{root}-source"
    table.repartition(files).write.mode("append").parquet(source)
    stream = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(source)
    assert archive.land(stream, root).awaitTermination(120)


def arguments_of(job: Any, *words: str) -> Any:
    return job.parser().parse_args(list(words))


@pytest.fixture(scope="module")
def archived(spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The topic in Parquet, by a job that was stopped during a batch and run again."""
    root = str(tmp_path_factory.mktemp("archives") / "sales")
    words = "--bootstrap", cluster.bootstrap, "--topic", sales, "--to", root
    query = archive.start(spark, arguments_of(archive, *words, "--max-offsets", "150", "--every", "0 seconds"))
    until_s = time.monotonic() + 240
    while query.lastProgress is None:
        assert time.monotonic() < until_s, "no micro-batch comes"
        query.awaitTermination(0.1)
    query.stop()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert archive.run(spark, arguments_of(archive, *words)) == 0
    found = re.fullmatch(rf"archived (\d+) records of sales, (\d+) bytes, in {root}\n", output.getvalue())
    assert found is not None
    if compat.HAS_READ_LIMITS:  # else the first micro-batch of a run has all rows
        assert 0 < int(found[1]) <= COUNT - 150
        assert int(found[2]) > 20 * int(found[1])
    return root


def test_an_archive_has_every_record_once_although_its_job_was_stopped_in_mid_batch(
    spark: SparkSession, cluster: LocalCluster, sales: str, archived: str
) -> None:
    assert rows_of(read_archive(spark, archived)) == rows_of(table_of(spark, cluster, sales))
    table = read_archive(spark, archived)
    wrong = table.where("date <> to_date(timestamp) or hour <> hour(timestamp)")
    assert (wrong.count(), table.select("date", "hour").distinct().count()) == (0, 2)


def test_compacted_archive_files_hold_the_same_rows_and_accept_later_ones(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path
) -> None:
    root = str(tmp_path / "archive")
    table = table_of(spark, cluster, sales)
    expected = rows_of(table)
    land(spark, table.where("offset < 120"), root, files=2)
    files = Files(spark, root)
    landed = landed_files(spark, files)
    hours = {path.rpartition("/")[0] for path in landed}
    assert len(landed) > len(hours) == 2

    rewritten = archive.compact(spark, root, min_files=2, file_bytes=1 << 27, grace_ms=3_600_000)
    assert rewritten
    assert all(len(manifest.files) == 1 for manifest in read_manifests(files).values())
    assert rows_of(read_archive(spark, root)) == [row for row in expected if row["offset"] < 120]
    assert all(files.exists(path) for path in landed)

    land(spark, table.where("offset >= 120"), root, files=1)
    assert rows_of(read_archive(spark, root)) == expected
    stray = tmp_path / "archive" / "compacted" / rewritten[0] / "part-of-a-compaction-cut-short.parquet"
    stray.write_bytes(b"not even Parquet")
    assert rows_of(read_archive(spark, root)) == expected
    archive.compact(spark, root, min_files=1, file_bytes=1 << 27, grace_ms=0)
    assert rows_of(read_archive(spark, root)) == expected
    assert not stray.exists()
    assert list((tmp_path / "archive" / "landing").rglob("part-*.parquet")) == []


def test_a_compaction_deletes_no_files_of_another_one_that_runs(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, grace_ms = str(tmp_path / "archive"), 3_600_000
    table = table_of(spark, cluster, sales)
    land(spark, table, root, files=2)
    expected = rows_of(table)

    def compact() -> list[str]:
        return archive.compact(spark, root, min_files=1, file_bytes=1 << 27, grace_ms=grace_ms)

    def write_manifest(*given: Any) -> None:
        monkeypatch.undo()
        assert compact()
        archive.write_manifest(*given)

    monkeypatch.setattr(archive, "write_manifest", write_manifest)
    assert compact()
    assert rows_of(read_archive(spark, root)) == expected


def test_a_compaction_finds_the_hour_of_a_landed_file_in_any_year() -> None:
    for date in ("2026-11-20", "-1199-02-15", "+55840-11-08"):
        found = archive.manifest_of(f"landing/date={date}/hour=7/part-0.parquet")
        assert found is not None
        assert found.directory == f"date={date}/hour=7"


def test_a_typed_topic_is_archived_by_tasks_and_old_and_new_files_are_one_table(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path)
    words = "--bootstrap", cluster.bootstrap, "--topic", "lake", "--to", root
    with AdminClient(cluster.admin_address) as admin, Producer(cluster.bootstrap) as producer:
        first = "shop STRING NOT NULL, euros INT, lines ARRAY<STRUCT<sku: STRING, n: INT>>, PRIMARY KEY (shop)"
        admin.create_topic("lake", partitions=2, replication_factor=3, schema=first)
        rows = [{"shop": f"s{n}", "euros": n, "lines": [{"sku": "a", "n": n}]} for n in range(10)]
        producer.send_table("lake", pa.Table.from_pylist(rows)).result(30)
        assert archive.run(spark, arguments_of(archive, *words)) == 0
        second = "store STRING NOT NULL RENAMED FROM shop, euros BIGINT, lines ARRAY<STRUCT<sku: STRING, n: BIGINT>>"
        admin.alter_topic_schema("lake", f"{second}, city STRING, PRIMARY KEY (store)")
        later = [{"store": f"s{n}", "euros": 2**40 + n, "lines": None, "city": "Ulm"} for n in range(10, 20)]
        with Producer(cluster.bootstrap) as fresh:
            fresh.send_table("lake", pa.Table.from_pylist(later)).result(30)
        assert archive.run(spark, arguments_of(archive, *words)) == 0
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/other.db", "warehouse": (tmp_path / "warehouse").as_uri()}
        flags = [word for pair in catalog.items() for word in ("--catalog", "=".join(pair))]
        assert archive.run(spark, arguments_of(archive, *words, "--iceberg", "lake.sales", *flags)) == 0
        with contextlib.closing(load_catalog("tidemark", **catalog)) as opened:
            assert len(opened.load_table("lake.sales").scan().to_arrow()) == 20
        counts = re.findall(r"archived (\d+) rows of lake", capsys.readouterr().out)
        assert counts == ["10", "10", "0"]
        producer.send_table("lake", pa.table({"store": ["s20"], "city": ["Bonn"]})).result(30)
    table = read_archive(spark, root)
    assert [field.simpleString() for field in table.schema.fields[:4]] == [
        "store:string",
        "euros:bigint",
        "lines:array<struct<sku:string,n:bigint>>",
        "city:string",
    ]
    found = [(row["store"], row["euros"], row["city"]) for row in table.collect()]
    assert sorted(found) == sorted(
        [(f"s{n}", n, None) for n in range(10)] + [(f"s{n}", 2**40 + n, "Ulm") for n in range(10, 20)]
    )
    assert {row["n"] for row in table.selectExpr("inline(lines)").collect()} == set(range(10))
    united = read_table(cluster.bootstrap, "lake", columns=["store"], history=root).read_all()
    assert sorted(united.column("store").to_pylist()) == sorted(f"s{n}" for n in range(21))
    history = read_history(spark, cluster.bootstrap, "lake", root, columns=["store", "lines", "_offset", "_headers"])
    both = history.orderBy("store").collect()
    assert [row["store"] for row in both] == sorted(f"s{n}" for n in range(21))
    assert both[1]["lines"] == [Row(sku="a", n=1)]
    assert history.where("lines is null").count() == 11
    assert read_history(spark, cluster.bootstrap, "lake", root).where("euros is null").collect()[0]["city"] == "Bonn"
    options = {"tidemark.bootstrap": cluster.bootstrap, "history": root, "columns": "store, _partition, _offset"}
    places = [tuple(row) for row in spark.read.format("tidemark").options(**options).load("lake").collect()]
    starting = json.dumps({"lake": {"0": 3, "1": 4}})
    behind = spark.read.format("tidemark").options(**options, startingOffsets=starting).load("lake").collect()
    assert sorted(map(tuple, behind)) == sorted(one for one in places if one[2] >= 3 + one[1])
    assert archive_topic(cluster.bootstrap, "lake", root) == 1
    with AdminClient(cluster.admin_address) as admin:
        for partition in range(2):
            admin.delete_records("lake", partition, -1)
    deleted = spark.read.format("tidemark").options(**options).load("lake")
    assert sorted(map(tuple, deleted.collect())) == sorted(places), "all rows come from the archive now"
    with pytest.raises(ValueError, match="topic lake has a schema: archive it separately"):
        archive.run(
            spark, arguments_of(archive, "--bootstrap", cluster.bootstrap, "--topic", f"{sales},lake", "--to", root)
        )


def test_a_replay_keeps_keys_times_headers_and_order_in_each_partition(
    spark: SparkSession, cluster: LocalCluster, sales: str, archived: str
) -> None:
    make(cluster, "sales-again")
    words = "--bootstrap", cluster.bootstrap, "--from", archived, "--to-topic", "sales-again"
    assert replay.run(spark, arguments_of(replay, *words)) == 0
    again = [record._replace(topic=sales) for record in records(cluster, "sales-again")]
    assert again == records(cluster, sales)


def test_a_replay_by_key_fits_a_topic_of_other_partitions_and_keeps_the_order_of_each_key(
    spark: SparkSession, cluster: LocalCluster, sales: str, archived: str
) -> None:
    make(cluster, "sales-narrow", partitions=2)
    words = "--bootstrap", cluster.bootstrap, "--from", archived, "--to-topic", "sales-narrow"
    with pytest.raises(Exception, match="rows come from partitions up to 2, and sales-narrow has 2"):
        replay.run(spark, arguments_of(replay, *words))
    assert replay.run(spark, arguments_of(replay, *words, "--partition-by", "key", "--where", "key is not null")) == 0
    for key in (b"s0", b"s1", b"s2", b"s3", b"s4"):
        found, expected = (
            [record.value for record in records(cluster, topic) if record.key == key]
            for topic in ("sales-narrow", sales)
        )
        assert found == expected


def test_an_audit_of_a_sound_topic_and_archive_finds_nothing(
    spark: SparkSession, cluster: LocalCluster, sales: str, archived: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--bootstrap", cluster.bootstrap, "--topic", sales, "--archive", archived
    assert audit.run(spark, arguments_of(audit, *words)) == 0
    assert "no gap, duplicate or mismatch" in capsys.readouterr().out


def test_an_audit_reports_gaps_duplicates_and_mismatches_with_their_offsets(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path
) -> None:
    root = str(tmp_path / "archive")
    partitions = [record.partition for record in records(cluster, sales)]
    full = max(set(partitions), key=partitions.count)
    table = table_of(spark, cluster, sales).where(f"partition = {full}")
    damaged = (
        table.where("offset not between 20 and 29").unionByName(table.where("offset between 40 and 41"))
    ).selectExpr(
        "key",
        "if(offset = 50, cast('forged' as binary), value) as value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "if(offset = 60, array(named_struct('key', 'forged', 'value', cast(null as binary))), headers) as headers",
    )
    land(spark, damaged, root, files=1)
    found = audit.audit(spark, cluster.bootstrap, sales, root)
    assert [(one.kind, one.partition, one.first, one.last, one.records) for one in found] == [
        ("gap", full, 20, 29, 10),
        ("duplicate", full, 40, 41, 2),
        ("mismatch", full, 50, 50, 1),
        ("mismatch", full, 60, 60, 1),
    ]
    assert found[0].sentence == "offsets 20 to 29 are each in the topic and not in the archive"


def test_an_audit_names_the_unreadable_replica(spark: SparkSession, cluster: LocalCluster, sales: str) -> None:
    cluster.kill(broker_name(1))
    try:
        found = audit.replica_findings(spark, audit.tasks_of(cluster.bootstrap, sales, compacted=False))
    finally:
        cluster.restart(broker_name(1))
    assert {(one.kind, one.partition) for one in found} == {("unread", 0), ("unread", 1), ("unread", 2)}
    assert all("the replica on broker 1 was not read" in one.sentence for one in found)


def test_an_audit_ignores_records_that_retention_deleted(spark: SparkSession) -> None:
    content = "topic string, partition int, offset bigint, content bigint"
    topic = spark.createDataFrame([("t", 0, offset, offset) for offset in range(50, 60)], content)
    rows = [("t", 0, offset, offset) for offset in range(10, 55) if offset not in (20, 21, 48, 49)]
    held = audit._held(spark.createDataFrame(rows, content))
    ends = audit._ends(spark, "t", {0: audit.Bounds(50, 60), 1: audit.Bounds(0, 5)})
    found = audit.findings_of(audit.archive_stretches(topic, held, ends, compacted=False))
    assert [(one.kind, one.first, one.last) for one in found] == [("gap", 20, 21), ("gap", 48, 49)]
    assert audit.findings_of(audit.archive_stretches(topic, held, ends, compacted=True)) == []


@pytest.fixture
def forgetful(spark: SparkSession) -> Iterator[None]:
    """Queries keep the progress of their last micro-batch only, as long queries keep only the last hundred."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1")
    yield
    spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")


@pytest.mark.usefixtures("forgetful")
def test_a_rollup_has_one_record_for_each_window_and_group_once_the_watermark_has_passed(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cluster, "rolled-up")
    words = ["--bootstrap", cluster.bootstrap, "--topic", sales, "--to-topic", "rolled-up", "--by", "shop"]
    words += ["--schema", "shop string, euros long", "--aggregate", "sum(euros) as euros", "--window", "30 minutes"]
    words += ["--checkpoint", str(tmp_path), "--watermark", "5 minutes", "--max-offsets", "400"]
    assert rollup.run(spark, arguments_of(rollup, *words)) == 0
    assert capsys.readouterr().out == f"rolled up {COUNT} records of sales into rolled-up\n"
    expected: dict[tuple[int, str], int] = {}
    for number in range(COUNT):
        if number % 100 != 7:
            window = (FIRST_US + number * STEP_US) // 1_800_000_000
            expected[window, f"s{number % 5}"] = expected.get((window, f"s{number % 5}"), 0) + number
    closed = (FIRST_US + (COUNT - 1) * STEP_US - 300_000_000) // 1_800_000_000
    found = [(record.key, json.loads(record.value or b"")) for record in records(cluster, "rolled-up")]
    sums = sorted(value["euros"] for _, value in found if value["shop"] is not None)
    assert sums == sorted(euros for (window, _), euros in expected.items() if window < closed)
    example = next(iter(found))[0]
    assert re.fullmatch(rb'\{"start":"2023-11-1\dT\d\d:[03]0:00.000Z","shop":("s\d"|null)\}', example or b"")


def test_a_rollup_with_updates_has_every_window_and_its_last_record_has_all(
    spark: SparkSession, cluster: LocalCluster, sales: str, tmp_path: Path
) -> None:
    make(cluster, "rolled-up-live")
    words = ["--bootstrap", cluster.bootstrap, "--topic", sales, "--to-topic", "rolled-up-live", "--updates"]
    words += ["--schema", "shop string, euros long", "--aggregate", "count(shop) as sold", "--window", "30 minutes"]
    words += ["--checkpoint", str(tmp_path), "--max-offsets", "400"]
    assert rollup.run(spark, arguments_of(rollup, *words)) == 0
    told = [(record.key, json.loads(record.value or b"")["sold"]) for record in records(cluster, "rolled-up-live")]
    expected = Counter((FIRST_US + n * STEP_US) // 1_800_000_000 for n in range(COUNT) if n % 100 != 7)
    assert sorted(dict(told).values()) == sorted(expected.values())
    if compat.HAS_READ_LIMITS:
        assert len(told) > len(expected), "a window that two micro-batches changed is written twice"


@pytest.mark.parametrize("name", NAMES)
def test_a_jobs_help_teaches_with_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(ROOT / "spark" / "pipelines" / f"{name}.py")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"spark-submit {name}.py" in told
    assert "--bootstrap HOST:PORT" in told


def test_a_job_runs_under_spark_submit_and_reports_an_error_in_one_sentence(cluster: LocalCluster) -> None:
    submit = Path(sys.executable).with_name("spark-submit")
    job = ROOT / "spark" / "pipelines" / "audit.py"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", str(job), "--bootstrap", cluster.bootstrap, "--topic", "no-such-topic"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = done.stdout + done.stderr  # spark-submit joins a job's stdout and stderr
    assert done.returncode == 2, told
    assert "audit: UNKNOWN_TOPIC" in told
    assert "Traceback" not in told
