# SPDX-License-Identifier: Apache-2.0
"""The files of an archive as an Iceberg table: no second copy, the same column ids, each row once.

The properties of each snapshot state the end offset of each partition in the table. The catalog accepts a snapshot only
as the successor of the snapshot that was read. A run that finds a newer snapshot plans again, so the table has no file
twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidemark.client.tables.archive_files import MERGING, Archive, ArchiveFile, Footer, key_of
from tidemark.client.tables.iceberg_bounds import modes, unbounded_columns, without_bounds
from tidemark.client.tables.iceberg_catalog import opened_catalog
from tidemark.client.tables.iceberg_schema import check_changes, iceberg_schema
from tidemark.core.schemas.model import TopicSchema as Version
from tidemark.model import invalid_request

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

OFFSETS: Final = "tidemark.offsets"
"""Property of a snapshot: JSON, the end offset (exclusive) of each partition."""
TOPIC_ID: Final = "tidemark.topic-id"
"""Property of a table and of its snapshots."""
_PROPERTIES: Final = {"format-version": "2", "commit.retry.num-retries": "0"}
"""Properties of a new table. A retry of pyiceberg would add the files on top of a snapshot that may have them."""
_ATTEMPTS: Final = 5


_T = TypeVar("_T")


class _ChangedError(Exception):
    """The archive has files that were merged after the snapshot that was read."""


def check_place(archive: Archive, table: str) -> None:
    """Check that a table's name has a namespace, and that Iceberg reads the archive's path; raises INVALID_REQUEST."""
    parts = table.split(".")
    if len(parts) < 2 or not all(map(str.strip, parts)):
        raise invalid_request(f"the Iceberg table is {table!r}: expected namespace.table, such as lake.flights")
    if set("#?") & set(str(archive.root)):
        raise invalid_request(f"the archive {archive.root} has a # or a ?, which Iceberg does not read in a path")


def publish(archive: Archive, table: str, catalog: Mapping[str, str] | None = None) -> None:
    """Add the files that the table lacks, and let merged files replace theirs; the caller has the archive's lease.

    Args:
        archive: its files are not moved.
        table: "namespace.table"; created if it is missing.
        catalog: properties of a pyiceberg catalog, see `opened_catalog`; None: SQLite, in the archive's directory.

    Raises:
        ImportError: pyiceberg is not installed.
        TidemarkError: INVALID_REQUEST: the table is of another topic, other runs keep changing it, its snapshots were
            deleted, or a compaction runs while the table is new. INCOMPATIBLE_SCHEMA: Iceberg does not support a change
            of a column. Errors of `opened_catalog` are raised, too.
    """
    with opened_catalog(archive.root, catalog) as opened:
        files = _files(archive)
        if not files:
            return
        made = _opened(opened, table, files[0][1])
        if archive.tables().get(str(made.metadata.table_uuid)) is None:
            with archive.lease(MERGING):  # a compaction that runs does not know of the table
                archive.note_table(str(made.metadata.table_uuid), table)
        PublishedTable(archive, opened, table).add()


@contextmanager
def published_tables(archive: Archive, catalog: Mapping[str, str] | None) -> Iterator[list[PublishedTable]]:
    """The Iceberg tables that have files of an archive; all are in one catalog.

    Raises:
        ImportError, TidemarkError: as `publish`; INVALID_REQUEST: the catalog lacks a table.
    """
    noted = archive.tables()
    if not noted:
        yield []
        return
    with opened_catalog(archive.root, catalog) as opened:
        yield [_found(archive, opened, name, table_id) for table_id, name in noted.items()]


def _found(archive: Archive, catalog: Catalog, name: str, table_id: str) -> PublishedTable:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        found = str(catalog.load_table(name).metadata.table_uuid)
    except (NoSuchTableError, NoSuchNamespaceError):
        found = ""
    if found != table_id:
        raise invalid_request(
            f"the archive {archive.root} is not compacted. The Iceberg table {name} with the id {table_id} has its "
            f"files, and the catalog has no such table. Name its catalog, or delete the line of the table from "
            f"{archive.tables_path} if the table was deleted"
        )
    return PublishedTable(archive, catalog, name)


class PublishedTable:
    """An Iceberg table that has files of an archive. Each method plans from the newest snapshot, and commits once.

    Raises:
        TidemarkError: INVALID_REQUEST: other runs keep changing the table.
    """

    def __init__(self, archive: Archive, catalog: Catalog, name: str) -> None:
        self._archive = archive
        self._catalog = catalog
        self._name = name

    def add(self) -> None:
        """Add the files that the table lacks, a snapshot for each version and set of columns without bounds; and
        `replace`.
        """
        self._attempt(self._add)

    def replace(self) -> None:
        """Replace the sources of all merged files in one snapshot."""
        self._attempt(self._replace)

    def held(self) -> frozenset[str]:
        """Keys of the files that the table has unchanged; empty while another engine's delete files apply."""
        return frozenset(_live(self._load()))

    def release(self, keys: Collection[str], until_ms: int) -> frozenset[str]:
        """Expire the snapshots that have some of these files and were replaced before `until_ms`.

        Branches, tags and the newest offsets of the archive stay.

        Returns:
            Keys of the files that the remaining snapshots have.
        """
        return self._attempt(lambda table: _release(table, keys, until_ms))

    def _load(self) -> Table:
        return self._catalog.load_table(self._name)

    def _attempt(self, step: Callable[[Table], _T]) -> _T:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for _ in range(_ATTEMPTS):
            try:
                return step(self._load())
            except (CommitFailedException, ValidationException, _ChangedError) as error:
                last = error
        raise invalid_request(f"the Iceberg table {self._name} was not changed in {_ATTEMPTS} attempts: {last}")

    def _add(self, table: Table) -> None:
        self._replace(table)
        ends = offsets_of(table.refresh())
        missing = []
        for file, footer in _files(self._archive):
            end = ends.get(footer.partition, 0)
            if footer.start >= end:
                missing.append((file, footer))
            elif footer.end > end:
                raise _ChangedError(
                    f"its rows of partition {footer.partition} end at offset {end}, within the merged file "
                    f"{file.path}, as after a roll-back to an older snapshot"
                )
        for (_, unbounded), files in groupby(missing, _kind):
            group = list(files)
            ends = {**ends, **{footer.partition: footer.end for _, footer in group}}
            table = _evolved(table, group[0][1].schema)
            with table.transaction() as transaction, without_bounds(transaction, unbounded):
                paths = [file.location for file, _ in group]
                told = _told(ends, group[0][1].topic_id)
                transaction.add_files(paths, snapshot_properties=told, check_duplicate_files=False)

    def _replace(self, table: Table) -> None:
        replaced = list(_replaced(self._archive, table))
        if replaced:
            _commit_merged(table, replaced, _told(offsets_of(table), table.properties.get(TOPIC_ID, "")))


def offsets_of(table: Table) -> dict[int, int]:
    """End offset (exclusive) of the rows of each partition in the table; raises INVALID_REQUEST, see `publish`."""
    for snapshot in _lineage(table):
        found = _offsets(snapshot)
        if found is not None:
            return found
    return {}


def _offsets(snapshot: Snapshot) -> dict[int, int] | None:
    summary: Any = snapshot.summary
    text = None if summary is None else summary.additional_properties.get(OFFSETS)
    return None if text is None else {int(partition): int(end) for partition, end in json.loads(text).items()}


def _lineage(table: Table) -> Iterator[Snapshot]:
    """The current snapshot and all earlier snapshots, newest first."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        if parent is None:
            return
        snapshot = table.snapshot_by_id(parent)
    if table.current_snapshot() is not None:
        raise invalid_request(
            f"the snapshots of the Iceberg table {'.'.join(table.name())} with {OFFSETS!r} have expired"
        )


def _told(ends: Mapping[int, int], topic_id: str) -> dict[str, str]:
    """The properties of a snapshot that has the rows up to these end offsets (exclusive)."""
    return {OFFSETS: json.dumps(ends, sort_keys=True), TOPIC_ID: topic_id}


def _files(archive: Archive) -> list[tuple[ArchiveFile, Footer]]:
    """Files with rows, and their footers, by schema version, partition and offset."""
    found = ((file, file.footer_with_rows()) for files in archive.files().values() for file in files)
    files = [(file, footer) for file, footer in found if footer is not None]
    return sorted(files, key=lambda one: (one[1].schema.version, one[1].partition, one[1].start))


def _kind(one: tuple[ArchiveFile, Footer]) -> tuple[int, frozenset[str]]:
    """The version and the columns without bounds, which the files of one snapshot share."""
    file, footer = one
    return footer.schema.version, unbounded_columns(file.path)


def _live(table: Table) -> dict[str, DataFile]:
    """Files of the archive in the current snapshot, by their keys; {} if another engine deleted rows of some."""
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    found = {}
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        if manifest.content is ManifestContent.DELETES:
            return {}
        for entry in manifest.fetch_manifest_entry(table.io):
            key = key_of(entry.data_file.file_path)
            if key is not None:
                found[key] = entry.data_file
    return found


def _replaced(archive: Archive, table: Table) -> Iterator[tuple[DataFile, list[DataFile]]]:
    """Each merged file that the table lacks, and the files of the table that have its rows, if these are unchanged."""
    sources: defaultdict[ArchiveFile, list[ArchiveFile]] = defaultdict(list)
    for file, merged in archive.replaced():
        sources[merged].append(file)
    live = _live(table) if sources else {}
    for merged, files in sources.items():
        held = [live[file.key] for file in files if file.key in live]
        if held and merged.key not in live:
            found = _data_file(table, merged)
            if found is not None and found.record_count == sum(file.record_count for file in held):
                yield found, held


def _data_file(table: Table, file: ArchiveFile) -> DataFile | None:
    """A file with its statistics by the columns of its version; None: the table does not know the version."""
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    schema_id = _schema_id(table, iceberg_schema(file.footer().schema))
    if schema_id is None:
        return None
    properties = {**table.metadata.properties, **modes(unbounded_columns(file.path))}
    metadata = table.metadata.model_copy(update={"current_schema_id": schema_id, "properties": properties})
    return parquet_file_to_data_file(table.io, metadata, file.location)


def _commit_merged(
    table: Table, replaced: Sequence[tuple[DataFile, list[DataFile]]], properties: dict[str, str]
) -> None:
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Replace(_OverwriteFiles):
        """An overwrite that states that no row changed, so that incremental readers pass it."""

        def _summary(self, *given: Any, **named: Any) -> Summary:
            return Summary(Operation.REPLACE, **super()._summary(*given, **named).additional_properties)

    with (
        table.transaction() as transaction,
        Replace(Operation.OVERWRITE, transaction, table.io, snapshot_properties=properties) as snapshot,
    ):
        for merged, held in replaced:
            snapshot.append_data_file(merged)
            for file in held:
                snapshot.delete_data_file(file)


def _release(table: Table, keys: Collection[str], until_ms: int) -> frozenset[str]:
    manifests: dict[str, frozenset[str]] = {}
    found = {one.snapshot_id: _keys(table, one, manifests) for one in table.metadata.snapshots}
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    for snapshot in _lineage(table):
        kept.add(snapshot.snapshot_id)
        if _offsets(snapshot) is not None:
            break
    ended_ms = {one.snapshot_id: one.timestamp_ms for one in table.metadata.snapshots}
    for one in sorted(table.metadata.snapshots, key=lambda snapshot: -snapshot.timestamp_ms):
        if one.parent_snapshot_id in ended_ms:
            ended_ms[one.parent_snapshot_id] = one.timestamp_ms
    due = [one for one, end_ms in ended_ms.items() if one not in kept and end_ms <= until_ms and found[one] & set(keys)]
    if due:
        table.maintenance.expire_snapshots().by_ids(due).commit()
    return frozenset().union(*(files for one, files in found.items() if one not in due))


def _keys(table: Table, snapshot: Snapshot, manifests: dict[str, frozenset[str]]) -> frozenset[str]:
    """Keys of the files of the archive in a snapshot."""
    for manifest in snapshot.manifests(table.io):
        if manifest.manifest_path not in manifests:
            entries = manifest.fetch_manifest_entry(table.io)
            keys = (key_of(entry.data_file.file_path) for entry in entries)
            manifests[manifest.manifest_path] = frozenset(key for key in keys if key is not None)
    return frozenset().union(*(manifests[one.manifest_path] for one in snapshot.manifests(table.io)))


def _opened(found: Catalog, name: str, footer: Footer) -> Table:
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.schema import Schema

    try:
        table = found.load_table(name)
    except NoSuchTableError:
        found.create_namespace_if_not_exists(name.rpartition(".")[0])
        properties = {**_PROPERTIES, TOPIC_ID: footer.topic_id}
        # with a schema given here, the columns would get new ids
        table = found.create_table(name, Schema(), properties=properties)
    if table.properties.get(TOPIC_ID) != footer.topic_id:
        raise invalid_request(
            f"the Iceberg table {name} is not of this topic {footer.topic}, whose id is {footer.topic_id}"
        )
    return table


def _evolved(table: Table, version: Version) -> Table:
    """The table with the columns of a version as its current schema. The catalog chooses the schema's id."""
    from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate

    wanted = iceberg_schema(version, max(table.schemas()) + 1)
    now = table.schema()
    if now.as_struct() == wanted.as_struct():
        return table
    check_changes(now, wanted, version)
    known = _schema_id(table, wanted)
    updates = [AddSchemaUpdate(schema=wanted)] if known is None else []
    table.catalog.commit_table(
        table,
        (AssertCurrentSchemaId.model_validate({"current-schema-id": now.schema_id}),),
        (*updates, SetCurrentSchemaUpdate.model_validate({"schema-id": -1 if known is None else known})),
    )
    return table.refresh()


def _schema_id(table: Table, wanted: Schema) -> int | None:
    """Id of a schema with these columns."""
    return next((one for one, schema in table.schemas().items() if schema.as_struct() == wanted.as_struct()), None)
