# SPDX-License-Identifier: Apache-2.0
"""Two concurrent compactions of one archive: the archive keeps every row once."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tidemark.client.tables import archiver
from tidemark.client.tables.archiver import archive_topic
from tidemark_spark.archive_layout import SCHEMA, Files, is_archive, read_archive, read_manifests
from tidemark_spark.jobs import archive
from tidemark_spark.jobs.common import refusal_of
from tidemark_spark.typed.archive import read_typed_archive

from tests.unit.client.tables.logs import FIRST, TOPIC, Logs, flights

HOURS = 2
ROWS = 40
_TIMES = [datetime(2026, 11, 20, n % HOURS, tzinfo=UTC) + timedelta(minutes=n) for n in range(ROWS)]


def _land(spark: SparkSession, root: str, offsets: range) -> None:
    """Land rows with these offsets, in two files for each hour."""
    rows = [("sales", 0, n, b"k", b"v", _TIMES[n], 0, [], None, None) for n in offsets]
    source = f"{root}-{offsets.start}"
    table = spark.createDataFrame(rows, SCHEMA).drop("date", "hour")
    table.repartition(2).write.parquet(source)
    stream = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(f"{root}-[0-9]*")
    assert archive.land(stream, root).awaitTermination(120)


def _compact(spark: SparkSession, root: str, grace_ms: int = 3_600_000) -> list[str]:
    return archive.compact(spark, root, min_files=1, file_bytes=1 << 27, grace_ms=grace_ms)


def _offsets(spark: SparkSession, root: str) -> list[int]:
    return sorted(row[0] for row in read_archive(spark, root).select("offset").collect())


@pytest.fixture
def root(spark: SparkSession, tmp_path: Path) -> str:
    root = str(tmp_path / "archive")
    _land(spark, root, range(ROWS // 2))
    return root


def test_a_compaction_keeps_the_scratch_files_of_another_one_that_runs(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Files.names

    def names_of_scratch(files: Files, relative: str) -> list[str]:
        if relative.startswith("scratch/"):
            monkeypatch.undo()
            assert _compact(spark, root)
        return names(files, relative)

    monkeypatch.setattr(Files, "names", names_of_scratch)
    _compact(spark, root)
    assert _offsets(spark, root) == list(range(ROWS // 2))


@pytest.mark.parametrize("grace_ms", [3_600_000, 0])
def test_a_compaction_leaves_an_hour_that_another_one_has_rewritten_meanwhile(
    spark: SparkSession, root: str, grace_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = Files.move

    def move_of_scratch(files: Files, source: str, target: str) -> None:
        move(files, source, target)
        if source.startswith("scratch/"):
            monkeypatch.undo()
            _land(spark, root, range(ROWS // 2, ROWS))
            assert len(_compact(spark, root, grace_ms)) == HOURS

    monkeypatch.setattr(Files, "move", move_of_scratch)
    _compact(spark, root, grace_ms)
    assert _offsets(spark, root) == list(range(ROWS))


def test_a_compaction_keeps_the_files_of_hours_that_another_one_has_rewritten_meanwhile(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest = archive.write_manifest

    def write_first(*given: Any) -> None:
        monkeypatch.undo()
        write_manifest(*given)
        assert _compact(spark, root, 0)

    monkeypatch.setattr(archive, "write_manifest", write_first)
    _compact(spark, root, 0)
    assert _offsets(spark, root) == list(range(ROWS // 2))


def test_a_compaction_refuses_to_replace_files_by_fewer_rows(
    spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Files.names
    monkeypatch.setattr(
        Files, "names", lambda files, at: names(files, at)[1:] if at.startswith("scratch/") else names(files, at)
    )
    with pytest.raises(ValueError, match="has 10 rows, and its merged files 0"):
        _compact(spark, root)
    monkeypatch.undo()
    assert read_manifests(Files(spark, root)) == {}
    assert _offsets(spark, root) == list(range(ROWS // 2))


@pytest.mark.parametrize("compacted", [False, True])
def test_a_copy_of_an_archive_without_its_list_of_files_is_refused(
    spark: SparkSession, root: str, compacted: bool
) -> None:
    if compacted:
        _compact(spark, root)
    shutil.rmtree(Path(root) / "landing" / "_spark_metadata")
    for read in (is_archive, read_archive):
        with pytest.raises(ValueError, match="landing/_spark_metadata is missing: copy all files, also those"):
            read(spark, root)


def test_a_target_that_is_no_directory_is_reported_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """A traceback has the exit status 1, which an audit has for a difference."""
    (tmp_path / "file").touch()
    (tmp_path / "source").mkdir()
    rows = spark.createDataFrame([], SCHEMA).drop("date", "hour")
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))
    with pytest.raises(Py4JJavaError) as failed:
        archive.land(stream, str(tmp_path / "file"))
    assert re.fullmatch(r"Parent path is not a directory: .*/file", refusal_of(failed.value) or "")
    assert refusal_of(FileExistsError(17, "File exists", "/data/file")) == "/data/file: File exists"
    assert refusal_of(RuntimeError("a defect")) is None


@pytest.mark.parametrize("name", ["a*", "a[1]", "a{1,2}", "a?", "a\\1"])
def test_an_archive_of_any_name_is_read_without_the_rows_of_another_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Regression: Spark took the path as a pattern, and read the rows of both archives, or found none."""
    logs = Logs(FIRST)
    monkeypatch.setattr(archiver, "RangeReader", logs)
    logs.append(0, flights(0, 3))
    for one in (name, "a1"):
        archive_topic(None, TOPIC, tmp_path / one)
    rows = read_typed_archive(spark, str(tmp_path / name)).collect()
    assert [row["carrier"] for row in rows] == ["c0", "c1", "c2"]
    with pytest.raises(ValueError, match="which Spark takes as a pattern"):
        archive.land(spark.readStream.format("rate").load(), str(tmp_path / name))
