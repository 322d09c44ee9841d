# SPDX-License-Identifier: Apache-2.0
"""Compaction of archives of typed topics: the same rows in fewer files, with every fault and concurrent runs."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tidemark.client import archive_topic, compact_archive, read_table
from tidemark.client.tables import archiver, compaction, table_scan
from tidemark.client.tables.archive_files import MERGING, Archive
from tidemark.client.tables.compaction import Compacted, MergeTask
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.model import ErrorCode

from tests.refusals import raises_code
from tests.unit.client.tables.logs import TOPIC, Logs

FIRST = first_version(draft_from_ddl("n INT, old STRING, legs ARRAY<STRUCT<miles: INT>>"))
SECOND = next_version(
    FIRST, draft_from_ddl("n BIGINT, city STRING, legs ARRAY<STRUCT<miles: INT>>"), Compatibility.NONE
)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs(FIRST)
    for module in (archiver, table_scan):
        monkeypatch.setattr(module, "RangeReader", found)
    return found


def archive(logs: Logs, root: Path, *counts: int, bulk: int = 0) -> None:
    """Files with these numbers of rows; a row takes about `bulk` bytes."""
    for count in counts:
        numbers = list(range(logs.end(0), logs.end(0) + count))
        legs = [[{"miles": number}] for number in numbers]
        texts = [Random(number).randbytes(bulk).hex() for number in numbers]
        other = "old" if len(logs.versions) == 1 else "city"
        logs.append(0, pa.table({"n": numbers, other: texts, "legs": legs}).cast(_arrow(other)))
        archive_topic(None, TOPIC, str(root))


def _arrow(other: str) -> pa.Schema:
    legs = pa.list_(pa.struct([("miles", pa.int32())]))
    return pa.schema([("n", pa.int32()), (other, pa.string()), ("legs", legs)])


def valid(root: Path) -> list[tuple[int, int]]:
    return [(file.start, file.footer().end) for file in Archive(root).files().get(0, [])]


def rows(root: Path) -> list[int]:
    """Numbers of the archived rows."""
    end = valid(root)[-1][1]
    return [row["n"] for row in read_table(None, TOPIC, history=root, end=end).read_all().to_pylist()]


def planned(root: Path) -> list[MergeTask]:
    """The tasks of a run that is killed before they end."""
    archive = Archive(root)
    return compaction.plan(archive, archive.new_folder(MERGING), file_bytes=1 << 20, min_files=2)


def test_small_files_become_one_that_replaces_them_and_the_archive_continues(logs: Logs, tmp_path: Path) -> None:
    archive(logs, tmp_path, 2, 3, 1)
    assert compact_archive(str(tmp_path)) == Compacted(0, 0, 0), "four files at least"
    archive(logs, tmp_path, 2)
    sources = [file.path for file in Archive(tmp_path).files()[0]]
    assert compact_archive(str(tmp_path)) == Compacted(4, 1, 0)
    assert valid(tmp_path) == [(0, 8)]
    assert all(path.exists() for path in sources), "for readers that started earlier"
    archive(logs, tmp_path, 1, 1)
    assert valid(tmp_path) == [(0, 8), (8, 9), (9, 10)]
    assert rows(tmp_path) == list(range(10))
    (merged, *_) = Archive(tmp_path).files()[0]
    with pq.ParquetFile(merged.path) as opened:
        assert (opened.num_row_groups, opened.metadata.num_rows) == (1, 8)
    os.utime(merged.path, (0, 0))
    assert compact_archive(str(tmp_path), min_files=3) == Compacted(3, 1, 0), "merged only now, so nothing is due"
    for file, _ in Archive(tmp_path).replaced():
        assert file.path.exists()
    assert compact_archive(str(tmp_path), grace_hours=0) == Compacted(0, 0, 7)
    assert [path.name for path in (tmp_path / "data" / "0").iterdir()] == [f"{0:020d}-{10:020d}.parquet"]
    assert valid(tmp_path) == [(0, 10)]
    assert rows(tmp_path) == list(range(10))


def test_versions_and_gaps_stay_apart_so_that_nothing_is_lost(logs: Logs, tmp_path: Path) -> None:
    archive(logs, tmp_path, 1, 1)
    logs.evolve(SECOND)
    archive(logs, tmp_path, 1, 1)
    logs.append(0, pa.table({"n": [4]}))
    logs.append(0, pa.table({"n": [5]}))
    logs.starts[0] = 5
    for _ in range(2):
        archive_topic(None, TOPIC, str(tmp_path), skip_lost=True)
        logs.append(0, pa.table({"n": [6]}))
    assert compact_archive(str(tmp_path), min_files=2, grace_hours=0) == Compacted(6, 3, 6)
    assert valid(tmp_path) == [(0, 2), (2, 4), (5, 7)]
    versions = [file.footer().schema.version for file in Archive(tmp_path).files()[0]]
    assert versions == [1, 2, 2], "the dropped column is in the files of its version"


def test_large_files_are_not_written_again(logs: Logs, tmp_path: Path) -> None:
    archive(logs, tmp_path, 1, 1, bulk=1000)
    archive(logs, tmp_path, 1, bulk=700_000)
    archive(logs, tmp_path, *[1] * 4, bulk=300_000)
    assert compact_archive(str(tmp_path), file_mib=1, min_files=2, grace_hours=0) == Compacted(5, 2, 5)
    assert valid(tmp_path) == [(0, 2), (2, 3), (3, 6), (6, 7)]
    assert rows(tmp_path) == list(range(7))


def test_more_files_are_merged_than_a_process_may_open(logs: Logs, tmp_path: Path) -> None:
    archive(logs, tmp_path, *[1] * 40)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, before[1]))
    try:
        assert compact_archive(str(tmp_path)) == Compacted(40, 1, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert rows(tmp_path) == list(range(40))


def test_an_interrupted_merge_changes_nothing_and_a_repeated_one_counts_once(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(logs, tmp_path, 1, 1, 1)
    before = valid(tmp_path)
    (task,) = planned(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(Archive, "add_merged", lambda *_: (_ for _ in ()).throw(ConnectionError("killed")))
        with pytest.raises(ConnectionError):
            compaction.merge(task)
    assert valid(tmp_path) == before
    assert len(list((tmp_path / MERGING).rglob("*.parquet"))) == 1
    assert [compaction.merge(task), compaction.merge(task)] == [3, 3], "Spark may run a task twice"
    assert valid(tmp_path) == [(0, 3)]
    archive(logs, tmp_path, 1)
    assert compact_archive(str(tmp_path), min_files=2, grace_hours=0).merged == 1
    assert not (tmp_path / MERGING).exists() or list((tmp_path / MERGING).iterdir()) == []
    assert rows(tmp_path) == [0, 1, 2, 3]


def test_a_merge_that_outlives_its_run_hides_no_row_of_the_next_run(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends with a killed driver, and Spark may still run a task: its file would replace the next run's."""
    archive(logs, tmp_path, 1, 1, 1)
    (task,) = planned(tmp_path)
    archive(logs, tmp_path, 1)
    add_merged = Archive.add_merged

    def late(*given: Any) -> None:
        monkeypatch.setattr(Archive, "add_merged", add_merged)
        with monkeypatch.context() as patched:
            patched.setattr(compaction, "_groups", lambda files, *_: [list(files)[1:]])
            assert compact_archive(str(tmp_path), min_files=2, grace_hours=0) == Compacted(3, 1, 3)
        add_merged(*given)

    monkeypatch.setattr(Archive, "add_merged", late)
    with raises_code(ErrorCode.INVALID_REQUEST, "this compaction of the archive .* has ended"):
        compaction.merge(task)
    assert valid(tmp_path) == [(0, 1), (1, 4)]
    assert rows(tmp_path) == [0, 1, 2, 3]


def test_a_late_writer_or_merger_changes_nothing(logs: Logs, tmp_path: Path) -> None:
    archive(logs, tmp_path, 1, 1)
    (task,) = planned(tmp_path)
    archive(logs, tmp_path, 1)
    copies = {path: path.read_bytes() for path in (tmp_path / "data" / "0").iterdir()}
    assert compact_archive(str(tmp_path), min_files=2, grace_hours=0).merged == 1
    for path, content in copies.items():
        path.write_bytes(content)
    with raises_code(ErrorCode.INVALID_REQUEST, "this compaction of the archive .* has ended"):
        compaction.merge(task)
    assert valid(tmp_path) == [(0, 3)]
    assert rows(tmp_path) == [0, 1, 2]
    assert compact_archive(str(tmp_path), grace_hours=0).deleted == 3


def test_an_archive_that_cannot_be_compacted_is_refused(logs: Logs, tmp_path: Path) -> None:
    def refused(sentence: str) -> None:
        with raises_code(ErrorCode.INVALID_REQUEST, sentence):
            compact_archive(str(tmp_path), min_files=2)

    refused("is not an archive of a topic with a schema")
    archive(logs, tmp_path, 1, 1)
    with Archive(tmp_path).lease(MERGING):
        refused(r"another run compacts the archive .*: process \d+ on ")
        archive(logs, tmp_path, 1)
    with Archive(tmp_path).lease():
        assert compact_archive(str(tmp_path), min_files=2).sources == 3
    archive(logs, tmp_path, 1)
    Archive(tmp_path).note_table("4711", "lake.flights")
    refused("is not compacted. The Iceberg table lake.flights with the id 4711 has its files, and the catalog has no")
    (tmp_path / "tables").unlink()
    (*_, last) = Archive(tmp_path).files()[0]
    last.path.write_bytes(last.path.read_bytes()[:-5])
    refused(r"\.parquet is damaged")
