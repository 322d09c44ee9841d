# SPDX-License-Identifier: Apache-2.0
"""An archive as an Iceberg table: the same files and column ids, each row once, after any interruption of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction
from tidemark.client import archive_topic
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.tables import iceberg
from tidemark.client.tables.archive_files import Archive
from tidemark.client.tables.compaction import compact_archive
from tidemark.client.tables.iceberg_catalog import opened_catalog
from tidemark.client.tables.iceberg_schema import iceberg_schema
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.client.tables.logs import FIRST, NAME, NOON, SECOND, TOPIC, Logs, flights
from tests.unit.client.typed.samples import sealed

Properties = dict[str, str] | None


def archived(root: Path, properties: Properties) -> int:
    return archive_topic(None, TOPIC, str(root), iceberg=NAME, catalog=properties)


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["_offset"])


def test_an_iceberg_table_has_the_rows_and_column_ids_of_the_topic_in_every_version(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    logs.append(0, flights(0, 3))
    assert archived(tmp_path, properties) == 3
    before = rows(catalog.load_table(NAME))
    assert [(row["carrier"], row["delay"]) for row in before] == [("c0", 0), ("c1", 1), ("c2", 2)]
    logs.evolve(SECOND)
    logs.append(0, flights(3, 2, "airline"))
    assert archived(tmp_path, properties) == 2
    assert archived(tmp_path, properties) == 0
    table = catalog.load_table(NAME)
    assert table.schema() == iceberg_schema(SECOND)
    assert {column.id for column in SECOND.columns} < set(table.schema().field_ids)
    found = rows(table)
    assert [(row["airline"], row["gate"], row["legs"][0]["miles"]) for row in found] == [
        ("c0", None, 0),
        ("c1", None, 1),
        ("c2", None, 2),
        ("c3", "?", 3),
        ("c4", "?", 4),
    ]
    assert found[0]["_timestamp"] == found[0]["at"] == NOON
    assert iceberg.offsets_of(table) == {0: 5}
    assert len(table.metadata.snapshots) == 2
    assert table.scan(row_filter="delay >= 3").to_arrow().num_rows == 2
    paths = {file.path.as_uri() for file in Archive(tmp_path).files()[0]}
    assert set(table.inspect.files().column("file_path").to_pylist()) == paths


def test_a_run_that_ended_before_its_commit_is_made_good_by_the_next_one(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.append(0, flights(0, 2))

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the catalog went away")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "add_files", away)
        with pytest.raises(ConnectionError):
            archived(tmp_path, properties)
    assert len(Archive(tmp_path).files()[0]) == 1
    logs.append(0, flights(2, 1))
    assert archived(tmp_path, properties) == 1
    table = catalog.load_table(NAME)
    assert [row["_offset"] for row in rows(table)] == [0, 1, 2]
    with table.transaction() as transaction:  # another engine's change, without Tidemark's properties
        transaction.delete("delay = 1")
    logs.append(0, flights(3, 1))
    assert archived(tmp_path, properties) == 1
    assert [row["_offset"] for row in rows(catalog.load_table(NAME))] == [0, 2, 3]


@pytest.mark.parametrize("time_us", [-(10**18), 10**18])
def test_an_archive_takes_records_of_times_that_python_lacks(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties, time_us: int
) -> None:
    """Other clients send such times; one of them must not end each later run of the archive."""
    schema = first_version(draft_from_ddl("carrier STRING, delay INT"))
    logs.versions = {1: schema}
    typed = TypedFormat(TOPIC, logs.topic_id, schema)
    for number, stamp_us in enumerate((7, time_us, 8)):
        rows = typed.rows([], [f"c{number}", number], [stamp_us], None)
        logs.batches[0].append(sealed(typed, rows, base_offset=number))
        assert archived(tmp_path, properties) == 1
    table = catalog.load_table(NAME)
    assert table.scan(row_filter="delay > 0", selected_fields=("carrier",)).to_arrow().num_rows == 2
    found = table.scan(selected_fields=("_offset", "_timestamp")).to_arrow().sort_by("_offset")
    assert found.column("_timestamp").cast(pa.int64()).to_pylist() == [7, time_us, 8]
    bounded = ["_timestamp" in one for one in bounds_of(table)]
    assert bounded == [True, False, True]
    assert not any("metrics" in name for name in table.properties)


def bounds_of(table: Table) -> list[set[str]]:
    """Columns with a lower bound of each file, in the order of their offsets."""
    files = sorted(table.inspect.files().to_pylist(), key=lambda one: str(one["file_path"]))
    return [{table.schema().find_column_name(number) or "" for number, _ in one["lower_bounds"]} for one in files]


def test_one_of_two_runs_adds_files_and_the_other_finds_them_there(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.append(0, flights(0, 2))
    assert archived(tmp_path, properties) == 2
    logs.append(0, flights(2, 2))
    assert archive_topic(None, TOPIC, str(tmp_path)) == 2
    add_files = Transaction.add_files

    def late(self: Transaction, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(Transaction, "add_files", add_files)
        iceberg.publish(Archive(tmp_path), NAME, properties)
        add_files(self, *given, **options)

    monkeypatch.setattr(Transaction, "add_files", late)
    iceberg.publish(Archive(tmp_path), NAME, properties)
    table = catalog.load_table(NAME)
    assert [row["_offset"] for row in rows(table)] == [0, 1, 2, 3]
    assert len(table.metadata.snapshots) == 2


def test_a_table_that_others_keep_changing_ends_the_run_with_a_sentence(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.append(0, flights(0, 2))
    add_files = Transaction.add_files

    def beaten(self: Transaction, *given: Any, **options: Any) -> None:
        catalog.load_table(NAME).append(pa.table({}))
        add_files(self, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "add_files", beaten)
        with raises_code(ErrorCode.INVALID_REQUEST, r"lake\.flights was not changed in 5 attempts: .*has changed"):
            archived(tmp_path, properties)
    assert archived(tmp_path, properties) == 0
    assert [row["_offset"] for row in rows(catalog.load_table(NAME))] == [0, 1]


def test_a_table_of_another_topic_and_a_change_that_iceberg_lacks_are_refused(
    logs: Logs, tmp_path: Path, catalog: Catalog, properties: Properties
) -> None:
    logs.append(0, flights(0, 1))
    assert archived(tmp_path, properties) == 1
    wider = "carrier STRING NOT NULL, delay DOUBLE, at TIMESTAMP NOT NULL, PRIMARY KEY (carrier), EVENT_TIME (at)"
    logs.evolve(next_version(FIRST, draft_from_ddl(wider), Compatibility.BACKWARD))
    logs.append(0, flights(1, 1).drop_columns(["legs"]))
    with raises_code(ErrorCode.INCOMPATIBLE_SCHEMA, "version 2 of the schema makes column delay double of int"):
        archived(tmp_path, properties)
    logs.topic_id = "two"
    warehouse = (tmp_path / "iceberg").as_uri()
    here = properties or {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": warehouse}
    with pytest.raises(TidemarkError, match=r"the Iceberg table lake\.flights is not of this topic flights"):
        archived(tmp_path / "other", here)


@pytest.mark.parametrize("name", ["flights", ".flights", "lake.", "lake..flights", " .flights"])
def test_a_table_without_a_namespace_is_refused_before_rows_are_archived(logs: Logs, tmp_path: Path, name: str) -> None:
    logs.append(0, flights(0, 1))
    with raises_code(ErrorCode.INVALID_REQUEST, "expected namespace.table"):
        archive_topic(None, TOPIC, str(tmp_path), iceberg=name)
    assert not Archive(tmp_path).files()


@pytest.mark.parametrize("name", ["my lake", "a%20b", "Flüge", "a+b&c;[1]@x:y"])
def test_an_archive_with_any_characters_in_its_path_is_an_iceberg_table(logs: Logs, tmp_path: Path, name: str) -> None:
    """Iceberg's file systems do not decode a URI."""
    root = tmp_path / name
    for first in (0, 1):
        logs.append(0, flights(first, 1))
        assert archived(root, None) == 1
    assert compact_archive(str(root), min_files=2, grace_hours=0).sources == 2
    with opened_catalog(root, None) as catalog:
        assert [row["delay"] for row in rows(catalog.load_table(NAME))] == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == [name], "the warehouse is in the archive, too"


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_a_path_that_iceberg_does_not_read_is_refused_before_rows_are_archived(
    logs: Logs, tmp_path: Path, name: str
) -> None:
    logs.append(0, flights(0, 1))
    with raises_code(ErrorCode.INVALID_REQUEST, "has a # or a .*, which Iceberg does not read in a path"):
        archived(tmp_path / name, None)
    assert not (tmp_path / name).exists()
