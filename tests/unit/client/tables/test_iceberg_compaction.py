# SPDX-License-Identifier: Apache-2.0
"""Compaction of an archive with an Iceberg table: each row stays once in both, with every fault and concurrent runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from tidemark.client import archive_topic, compact_archive, read_table
from tidemark.client.tables import iceberg
from tidemark.client.tables.archive_files import MERGING, Archive
from tidemark.client.tables.compaction import Compacted
from tidemark.client.tables.iceberg_catalog import opened_catalog
from tidemark.client.tables.iceberg_schema import iceberg_schema
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.client.tables.logs import NAME, SECOND, TOPIC, Logs, flights

Properties = dict[str, str] | None


class Killed(BaseException):
    """The process ends here."""


def archive(logs: Logs, root: Path, files: int = 1, properties: Properties = None) -> None:
    """Archive files of two rows each, in the newest version of the schema."""
    for _ in range(files):
        name = "carrier" if len(logs.versions) == 1 else "airline"
        logs.append(0, flights(logs.end(0), 2, name))
        archive_topic(None, TOPIC, str(root), iceberg=NAME, catalog=properties)


def two_versions(logs: Logs, root: Path, properties: Properties = None) -> None:
    """Eight rows in two files of each version."""
    archive(logs, root, 2, properties)
    logs.evolve(SECOND)
    archive(logs, root, 2, properties)


def compacted(root: Path, properties: Properties = None, grace_hours: float = 24.0) -> Compacted:
    return compact_archive(str(root), min_files=2, grace_hours=grace_hours, catalog=properties)


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])


def offsets(table: Table) -> list[int]:
    return [row["_offset"] for row in rows(table)]


def in_archive(root: Path, end: int) -> list[int]:
    read = read_table(None, TOPIC, columns=["_offset"], history=root, end=end)
    return sorted(row["_offset"] for row in read.read_all().to_pylist())


def paths(table: Table) -> list[str]:
    return sorted(table.inspect.files().column("file_path").to_pylist())


def test_merged_files_replace_those_of_the_table_in_one_snapshot_that_changes_no_row(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    two_versions(logs, tmp_path, properties)
    before = catalog.load_table(NAME)
    expected, read_on = rows(before), before.scan().to_arrow_batch_reader()
    assert compacted(tmp_path, properties) == Compacted(4, 2, 0)
    table = catalog.load_table(NAME)
    assert rows(table) == expected
    assert [row["airline"] for row in expected] == [f"c{number}" for number in range(8)]
    assert paths(table) == [file.path.as_uri() for file in Archive(tmp_path).files()[0]]
    assert table.schema().as_struct() == iceberg_schema(SECOND).as_struct()
    (*_, last) = table.metadata.snapshots
    assert len(table.metadata.snapshots) == len(before.metadata.snapshots) + 1
    assert last.summary is not None
    assert last.summary.operation is Operation.REPLACE
    assert iceberg.offsets_of(table) == {0: 8}
    totals = ("added-data-files", "deleted-data-files", "total-data-files", "total-records", "deleted-records")
    assert [last.summary[name] for name in totals] == ["2", "4", "2", "8", "8"]
    assert sorted(row["_offset"] for row in read_on.read_all().to_pylist()) == list(range(8)), "from its own snapshot"
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT _offset, delay FROM read_parquet({paths(table)}) ORDER BY 1").fetchall()
        assert found == [(row["_offset"], row["delay"]) for row in expected]
    assert table.scan(row_filter="airline = 'c1'").to_arrow().num_rows == 1, "statistics have the ids of the version"
    archive(logs, tmp_path, 2, properties)
    assert compacted(tmp_path, properties, grace_hours=0) == Compacted(3, 1, 7)
    table = catalog.load_table(NAME)
    assert offsets(table) == in_archive(tmp_path, 12) == list(range(12))
    assert paths(table) == sorted(path.as_uri() for path in (tmp_path / "data" / "0").iterdir())
    assert len(table.metadata.snapshots) == 1, "the others had deleted files"
    archive(logs, tmp_path, 1, properties)
    assert offsets(catalog.load_table(NAME)) == list(range(14))


def test_a_compaction_and_an_archiving_run_beside_it_both_take_effect(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(logs, tmp_path, 3, properties)
    commit_merged = iceberg._commit_merged

    def late(*given: Any) -> None:
        monkeypatch.setattr(iceberg, "_commit_merged", commit_merged)
        archive(logs, tmp_path, 1, properties)  # this run, too, replaces the small files by the merged one
        commit_merged(*given)

    monkeypatch.setattr(iceberg, "_commit_merged", late)
    assert compacted(tmp_path, properties) == Compacted(3, 1, 0)
    table = catalog.load_table(NAME)
    assert offsets(table) == list(range(8))
    assert len(paths(table)) == 2
    operations = [one.summary.operation for one in table.metadata.snapshots if one.summary is not None]
    assert operations == [*[Operation.APPEND] * 3, Operation.REPLACE, Operation.APPEND]


def test_a_file_that_another_engine_changed_stays_and_so_do_those_of_branches_and_tags(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    archive(logs, tmp_path, 5, properties)
    table = catalog.load_table(NAME)
    with table.transaction() as transaction:
        transaction.delete("delay = 4")
    tagged = table.current_snapshot()
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged.snapshot_id, "audited").commit()
    assert compacted(tmp_path, properties, grace_hours=0) == Compacted(4, 2, 0), "not the file with the deleted row"
    table = catalog.load_table(NAME)
    assert offsets(table) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert sorted(table.scan(snapshot_id=tagged.snapshot_id).to_arrow().column("_offset").to_pylist()) == offsets(table)
    assert in_archive(tmp_path, 10) == list(range(10))
    table.manage_snapshots().remove_tag("audited").commit()
    assert compacted(tmp_path, properties, grace_hours=0) == Compacted(0, 0, 4)
    assert offsets(catalog.load_table(NAME)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def merged_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Merge the files of an archive, and be killed before the table has the merged file; returns its path."""
    with monkeypatch.context() as patched:
        patched.setattr(iceberg, "_commit_merged", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            compacted(root)
    (merged,) = Archive(root).files()[0]
    return merged.path


def test_files_that_another_engine_changed_after_they_were_merged_keep_its_changes(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(logs, tmp_path, 3)
    merged_only(tmp_path, monkeypatch)
    with opened_catalog(tmp_path, None) as catalog:
        catalog.load_table(NAME).delete("delay = 0")
        assert compacted(tmp_path, grace_hours=0) == Compacted(0, 0, 0)
        assert offsets(catalog.load_table(NAME)) == [1, 2, 3, 4, 5]
        table = catalog.load_table(NAME)
        table.overwrite(table.scan().to_arrow())
        assert compacted(tmp_path, grace_hours=0) == Compacted(0, 0, 0), (
            "the newest offsets are in a snapshot with them"
        )
        archive(logs, tmp_path, 2)
        assert compacted(tmp_path, grace_hours=0) == Compacted(2, 1, 5)
        assert offsets(catalog.load_table(NAME)) == list(range(1, 10))


def test_a_snapshot_stays_for_the_whole_grace_after_another_one_replaced_it(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(logs, tmp_path, 3)
    os.utime(merged_only(tmp_path, monkeypatch), (0, 0))
    with opened_catalog(tmp_path, None) as catalog:
        before = catalog.load_table(NAME)
        assert compacted(tmp_path) == Compacted(0, 0, 0)
        assert len(paths(catalog.load_table(NAME))) == 1
        assert offsets(before) == list(range(6))


def test_no_file_is_merged_while_delete_files_apply(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(logs, tmp_path, 3)
    manifests = Snapshot.manifests
    with monkeypatch.context() as patched:
        deletes = SimpleNamespace(content=ManifestContent.DELETES)
        patched.setattr(Snapshot, "manifests", lambda *given: [*manifests(*given), deletes])
        assert compacted(tmp_path) == Compacted(0, 0, 0)
    assert compacted(tmp_path) == Compacted(3, 1, 0)


def test_only_files_that_the_table_has_are_merged_so_that_it_ends_between_two_files(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    archive(logs, tmp_path, 2, properties)
    for _ in range(2):
        logs.append(0, flights(logs.end(0), 2))
        archive_topic(None, TOPIC, str(tmp_path))
    assert compacted(tmp_path, properties) == Compacted(2, 1, 0)
    archive(logs, tmp_path, 1, properties)
    assert offsets(catalog.load_table(NAME)) == list(range(10))
    first = catalog.load_table(NAME).metadata.snapshots[0]
    catalog.load_table(NAME).manage_snapshots().set_current_snapshot(first.snapshot_id).commit()
    with pytest.raises(TidemarkError, match=r"end at offset 2, within the merged file .*, as after a roll-back"):
        archive(logs, tmp_path, 1, properties)


def test_a_compaction_without_the_catalog_of_its_table_and_a_table_made_beside_one_are_refused(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    logs.append(0, flights(0, 2))
    archive_topic(None, TOPIC, str(tmp_path))
    with Archive(tmp_path).lease(MERGING), pytest.raises(TidemarkError, match="another run compacts the archive"):
        archive(logs, tmp_path, 1, properties)
    archive(logs, tmp_path, 1, properties)
    (table_id,) = Archive(tmp_path).tables()
    elsewhere = {"type": "sql", "uri": "sqlite:///:memory:", "warehouse": tmp_path.as_uri()}
    with raises_code(ErrorCode.INVALID_REQUEST, f"{NAME} with the id {table_id} has its files, and the catalog"):
        compacted(tmp_path, elsewhere)
    assert len(Archive(tmp_path).files()[0]) == 3
    assert compacted(tmp_path, properties).sources == 3
    assert offsets(catalog.load_table(NAME)) == list(range(6))
    catalog.drop_table(NAME)
    archive(logs, tmp_path, 1, properties)
    with pytest.raises(TidemarkError, match=f"{table_id} has its files.* delete the line of the table from .*/tables"):
        compacted(tmp_path, properties)
