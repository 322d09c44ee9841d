# SPDX-License-Identifier: Apache-2.0
"""The jobs of spark/pipelines on typed topics and their archives, on a real session and a real cluster."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tidemark.client import AdminClient, Producer, archive_topic, read_table
from tidemark.client.consuming.range_reader import Bounds
from tidemark.client.tables import archiver
from tidemark.client.tables.archive_files import Archive, ArchiveFile, Footer
from tidemark.client.tables.archiver import written
from tidemark.client.tables.iceberg_catalog import opened_catalog
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.text import to_text
from tidemark.local.cluster import LocalCluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark_spark.archive_layout import read_archive
from tidemark_spark.jobs import archive, audit, audit_archive, replay

from tests.unit.client.tables.logs import FIRST, TOPIC, Logs, flights

SALES = "shop STRING NOT NULL, euros INT DEFAULT 0, lines ARRAY<STRUCT<sku: STRING, n: INT>>, PRIMARY KEY (shop)"
WIDER = (
    "store STRING NOT NULL RENAMED FROM shop, euros BIGINT DEFAULT 0, lines ARRAY<STRUCT<sku: STRING, n: INT>>, "
    "city STRING NOT NULL DEFAULT '?', share DOUBLE, PRIMARY KEY (store)"
)
MAPS = {"_headers": pa.map_(pa.string(), pa.binary()), "tags": pa.map_(pa.binary(), pa.int32())}
pytestmark = pytest.mark.timeout(300)


def make(cluster: LocalCluster, topic: str, schema: str, partitions: int = 2, **configs: str) -> None:
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=3, schema=schema, configs=configs)


def send(cluster: LocalCluster, topic: str, rows: Sequence[dict[str, Any]]) -> None:
    """Send rows, as soon as the producer knows a version of the schema that they fit."""
    columns = {name: pa.array([row.get(name) for row in rows], MAPS.get(name)) for name in rows[0]}
    until_s = time.monotonic() + 20
    with Producer(cluster.bootstrap) as producer:
        while True:
            try:
                producer.send_table(topic, pa.table(columns)).result(30)
                return
            except TidemarkError as error:
                if error.code is not ErrorCode.SCHEMA_MISMATCH or time.monotonic() > until_s:
                    raise
                time.sleep(0.1)


def sales(first: int, count: int) -> list[dict[str, Any]]:
    """Rows of the first version."""
    return [{"shop": f"s{n}", "euros": n, "lines": [{"sku": "a", "n": n}]} for n in range(first, first + count)]


def run(spark: SparkSession, job: Any, cluster: LocalCluster, *words: str) -> int:
    found: int = job.run(spark, job.parser().parse_args(["--bootstrap", cluster.bootstrap, *words]))
    return found


def test_the_files_of_a_typed_archive_are_merged_by_tasks(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(cluster, "small-files", SALES)
    root = str(tmp_path)
    for first in (0, 8, 16):
        send(cluster, "small-files", sales(first, 8))
        archive_topic(cluster.bootstrap, "small-files", root, iceberg="lake.sales")
    assert run(spark, archive, cluster, "--to", root, "--compact") == 0, "three files are too few"
    assert run(spark, archive, cluster, "--to", root, "--compact", "--min-files", "3", "--grace-hours", "0") == 0
    assert capsys.readouterr().out.splitlines() == [
        "merged 0 files into 0, and deleted 0 that were replaced before",
        "merged 6 files into 2, and deleted 6 that were replaced before",
    ]
    assert [len(files) for files in Archive(root).files().values()] == [1, 1]
    with opened_catalog(tmp_path, None) as catalog:
        table = catalog.load_table("lake.sales")
        assert len(table.inspect.files()) == 2
        assert sorted(table.scan().to_arrow().column("euros").to_pylist()) == list(range(24))
    assert sorted(row["shop"] for row in read_archive(spark, root).collect()) == sorted(f"s{n}" for n in range(24))
    send(cluster, "small-files", sales(24, 1))
    assert archive_topic(cluster.bootstrap, "small-files", root) == 1
    assert read_table(cluster.bootstrap, "small-files", history=root).read_all().num_rows == 25


def test_an_archive_refuses_topics_of_the_other_kind_and_a_compaction_a_directory_without_files(
    spark: SparkSession, cluster: LocalCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    make(cluster, "with-schema", SALES)
    send(cluster, "with-schema", sales(0, 2))
    columns, records = tmp_path / "columns", tmp_path / "records"
    archive_topic(cluster.bootstrap, "with-schema", str(columns))
    with pytest.raises(ValueError, match="is the archive of a topic with a schema: name another directory"):
        run(spark, archive, cluster, "--topic", topic("without-schema"), "--to", str(columns))
    (records / "landing" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(ValueError, match="is the archive of topics without a schema: name another directory"):
        run(spark, archive, cluster, "--topic", "with-schema", "--to", str(records))
    with pytest.raises(ValueError, match="typo is not an archive"):
        run(spark, archive, cluster, "--to", str(tmp_path / "typo"), "--compact")


ALL = ["store", "euros", "lines", "city", "share", "_partition", "_offset", "_timestamp", "_headers", "_deleted"]


@pytest.fixture(scope="module")
def stored(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """The archive of a topic with two versions, headers and a deleted row, and its rows; the topic was deleted."""
    root = str(tmp_path_factory.mktemp("typed") / "archive")
    make(cluster, "lake-gone", SALES, **{"cleanup.policy": "compact"})
    send(cluster, "lake-gone", sales(0, 8))
    archive_topic(cluster.bootstrap, "lake-gone", root)
    with AdminClient(cluster.admin_address) as admin:
        admin.alter_topic_schema("lake-gone", WIDER)
    plain = {"_headers": None, "_deleted": False}
    rows = [{"store": f"s{n}", "euros": 2**40 + n, "city": "Ulm", "share": 0.5, **plain} for n in range(8, 16)]
    deleted = {**rows[0], "store": "s1", "_deleted": True}
    send(cluster, "lake-gone", [{**rows[0], "_headers": [("n", b"8"), ("m", None)]}, *rows[1:], deleted])
    archive_topic(cluster.bootstrap, "lake-gone", root)
    found = read_table(cluster.bootstrap, "lake-gone", columns=ALL, history=root).read_all().to_pylist()
    with AdminClient(cluster.admin_address) as admin:
        admin.delete_topic("lake-gone")
    return root, found


def test_a_replay_of_a_typed_archive_keeps_columns_headers_times_deletions_and_order(
    spark: SparkSession, cluster: LocalCluster, stored: tuple[str, list[dict[str, Any]]]
) -> None:
    root, expected = stored
    make(cluster, "lake-again", WIDER.replace(" RENAMED FROM shop", ""), **{"cleanup.policy": "compact"})
    assert run(spark, replay, cluster, "--from", root, "--to-topic", "lake-again") == 0
    again = read_table(cluster.bootstrap, "lake-again", columns=ALL, isolation_level="read_committed").read_all()
    assert again.to_pylist() == expected
    assert sum(row["_deleted"] for row in expected) == 1


def test_a_replay_names_the_offsets_of_a_missing_file(
    spark: SparkSession,
    cluster: LocalCluster,
    stored: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(stored[0], root)
    index, files = next((index, files) for index, files in Archive(root).files().items() if len(files) > 1)
    shutil.copyfile(files[-1].path, files[-1].path.with_name(f"{10**6:020d}.parquet"))
    end = files[-1].footer().end
    make(cluster, "lake-damaged", WIDER.replace(" RENAMED FROM shop", ""), **{"cleanup.policy": "compact"})
    assert run(spark, replay, cluster, "--from", str(root), "--to-topic", "lake-damaged") == 0
    warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert [line.partition(" are not in ")[0] for line in warned] == [
        f"warning: offsets {end} to {10**6 - 1} of partition {index}"
    ]


def test_a_replay_by_key_and_condition_fits_other_partitions_and_one_that_fails_leaves_no_row(
    spark: SparkSession, cluster: LocalCluster, stored: tuple[str, list[dict[str, Any]]]
) -> None:
    root, expected = stored
    strict = WIDER.replace(" RENAMED FROM shop", "").replace("share DOUBLE", "share DOUBLE NOT NULL")
    make(cluster, "lake-strict", strict, partitions=1)
    words = "--from", root, "--to-topic", "lake-strict", "--partition-by", "key"
    with pytest.raises(
        Exception, match=r"SCHEMA_MISMATCH: topic lake-strict, schema version 1: row \d+, column share: null"
    ):
        run(spark, replay, cluster, *words, "--where", "not _deleted")
    options = {"columns": ["store"], "isolation_level": "read_committed"}
    assert read_table(cluster.bootstrap, "lake-strict", **options).read_all().num_rows == 0
    assert run(spark, replay, cluster, *words, "--where", "share is not null and not _deleted") == 0
    found = read_table(cluster.bootstrap, "lake-strict", **options).read_all().column("store").to_pylist()
    assert sorted(found) == sorted(row["store"] for row in expected if row["share"] is not None and not row["_deleted"])


def test_a_replay_that_cannot_be_is_refused_before_the_first_row(
    spark: SparkSession, cluster: LocalCluster, stored: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    root, _ = stored
    make(cluster, "lake-narrow", SALES, partitions=1)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("lake-bytes", partitions=2, replication_factor=3)
    (tmp_path / "empty").mkdir()
    for words, sentence in [
        (
            ("--from", root, "--to-topic", "lake-bytes"),
            "is the archive of a topic with a schema, and lake-bytes has none",
        ),
        (
            ("--from", str(tmp_path), "--to-topic", "lake-narrow"),
            "topic lake-narrow has a schema, and .* is not the archive of",
        ),
        (
            ("--from", root, "--to-topic", "lake-narrow", "--topic", "lake-other"),
            "is the archive of topic lake-gone, not of lake-other",
        ),
        (("--from", root, "--to-topic", "lake-narrow"), "rows come from partitions up to 1, and lake-narrow has 1"),
        (
            ("--from", root, "--to-topic", "lake-narrow", "--partition-by", "key"),
            "topic lake-narrow, .* has no column 'store'",
        ),
    ]:
        with pytest.raises(Exception, match=sentence):
            run(spark, replay, cluster, *words)


@pytest.fixture(scope="module")
def audited(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The archive of the topic `lake-audited`: files of two versions, with values that are not equal to themselves."""
    root = str(tmp_path_factory.mktemp("typed") / "archive")
    make(cluster, "lake-audited", "n INT, dropped STRING, tags MAP<BINARY, INT>, share DOUBLE", partitions=1)
    for first in (0, 4):
        rows = [{"n": n, "dropped": f"{n}", "tags": [(b"a", n)], "share": math.nan} for n in range(first, first + 4)]
        send(cluster, "lake-audited", rows)
        archive_topic(cluster.bootstrap, "lake-audited", root)
    with AdminClient(cluster.admin_address) as admin:
        admin.alter_topic_schema("lake-audited", "n BIGINT, tags MAP<BINARY, INT>, share DOUBLE, city STRING")
    send(cluster, "lake-audited", [{"n": n, "share": math.nan, "city": "Ulm"} for n in range(8, 12)])
    archive_topic(cluster.bootstrap, "lake-audited", root)
    send(cluster, "lake-audited", [{"n": 12}])  # not archived yet
    return root


def rewrite(file: ArchiveFile, rows: pa.Table, more: int = 0) -> None:
    """Replace the rows of a file, which ends `more` offsets later."""
    footer = file.footer()
    with written(file.path, footer.schema) as opened:
        opened.write(rows)
        opened.end(footer._replace(end=footer.end + more))


def test_an_audit_of_a_sound_typed_archive_finds_nothing_and_damage_is_found_by_offsets(
    spark: SparkSession, cluster: LocalCluster, audited: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(spark, audit, cluster, "--topic", "lake-audited", "--archive", audited) == 0
    assert "no gap, duplicate or mismatch" in capsys.readouterr().out
    root = str(tmp_path / "damaged")
    shutil.copytree(audited, root)
    first, second, third = Archive(root).files()[0]
    rows = pq.read_table(first.path)
    forged = rows.set_column(1, rows.schema.field(1), pa.array(["0", "forged", "2", "3"]))
    rewrite(first, pa.concat_tables([forged.slice(0, 2), forged.slice(3)]))
    second.path.unlink()
    later = pq.read_table(third.path)
    place = later.schema.get_field_index("_offset")
    beyond = later.slice(2).set_column(place, later.schema.field(place), pa.array([12, 13]))
    rewrite(third, pa.concat_tables([later, beyond]), more=2)
    assert run(spark, audit, cluster, "--topic", "lake-audited", "--archive", root) == 1
    assert capsys.readouterr().out.splitlines() == [
        "mismatch   lake-audited-0: offset 1 is different in the topic and in the archive",
        "gap        lake-audited-0: offset 2 is in the topic and not in the archive",
        "gap        lake-audited-0: offsets 4 to 7 are each in the topic and not in the archive",
        "mismatch   lake-audited-0: offset 12 is different in the topic and in the archive",
        "mismatch   lake-audited-0: offset 13 is in the archive and not in the topic",
        "5 findings",
    ]


def test_an_audit_with_the_archive_of_another_topic_is_refused(
    spark: SparkSession, cluster: LocalCluster, audited: str
) -> None:
    make(cluster, "lake-other", "n INT", partitions=1)
    with AdminClient(cluster.admin_address) as admin:
        admin.create_topic("lake-other-bytes", partitions=1, replication_factor=3)
    for topic, sentence in [
        ("lake-other", "is the archive of topic lake-audited, not of lake-other"),
        ("lake-other-bytes", "topic lake-other-bytes has no schema, and .* is the archive of a topic with a schema"),
    ]:
        with pytest.raises(Exception, match=sentence):
            run(spark, audit, cluster, "--topic", topic, "--archive", audited)


def test_gaps_and_doubles_between_files_are_found_by_their_footers() -> None:
    def footers(*ends: tuple[int, int]) -> list[Footer]:
        return [
            Footer("t", "id", "first", 0, start, end, first_version(draft_from_ddl("n INT"))) for start, end in ends
        ]

    def found(log_start: int, *ends: tuple[int, int], is_compacted: bool = False) -> list[tuple[str, int, int]]:
        between = audit_archive._between(footers(*ends), Bounds(log_start, 100), is_compacted=is_compacted)
        return [(one.problem, one.first, one.last) for one in between]

    assert found(0, (0, 10), (10, 20)) == []
    assert found(15, (0, 10), (12, 20)) == [("lost", 10, 11)]
    assert found(0, (0, 10), (12, 20)) == [], "the task finds these in the log"
    assert found(30, (0, 10), (8, 20)) == [("twice", 8, 9), ("lost", 20, 29)]
    assert found(30, (0, 10), is_compacted=True) == []


def test_a_row_that_deletes_others_is_missed_in_an_archive_without_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(FIRST)
    for module in (archiver, audit_archive):
        monkeypatch.setattr(module, "RangeReader", logs)
    for rows in (flights(0, 1), flights(0, 1).append_column("_deleted", pa.array([True])), flights(2, 1)):
        logs.append(0, rows)
        archive_topic(None, TOPIC, str(tmp_path))
    Archive(tmp_path).files()[0][1].path.unlink()
    task = audit_archive.FileTask(
        None, str(tmp_path), TOPIC, 0, 0, 1, 2, Bounds(0, 3), 1, {1: to_text(FIRST)}, is_compacted=True
    )
    assert list(audit_archive.stretches(task)) == [audit_archive.Stretch("not archived", TOPIC, 0, 1, 1, 1)]
