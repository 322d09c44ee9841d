# SPDX-License-Identifier: Apache-2.0
"""The files of an archive as an Iceberg table: no second copy, the same column ids, each file once.

Each snapshot says in its properties up to which offsets the table has the rows of each partition. The catalog takes a
snapshot only on top of the one that was read, so a file that two runs add at once is in the table once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from tidemark.client.tables.archive_files import SYSTEM_COLUMNS, Archive, Footer
from tidemark.core.schemas.model import Column, ColumnType, Decimal, ListOf, MapOf, Primitive, StructOf, plain_type
from tidemark.core.schemas.model import TopicSchema as Version
from tidemark.model import ErrorCode, TidemarkError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

OFFSETS: Final = "tidemark.offsets"
"""Property of a snapshot: JSON, the end offset (exclusive) of each partition."""
TOPIC_ID: Final = "tidemark.topic-id"
"""Property of a table and of its snapshots."""
_PROPERTIES: Final = {"format-version": "2", "commit.retry.num-retries": "0"}
"""A retry would add the files on top of a snapshot that may have them."""


def publish(archive: Archive, table: str, catalog: Mapping[str, str] | None = None) -> int:
    """Add the files that the table lacks; the caller holds the lease of the archive.

    Args:
        archive: its files stay where they are.
        table: "namespace.table"; created if it is missing.
        catalog: properties of a pyiceberg catalog, such as {"type": "rest", "uri": "https://..."}; None: SQLite and a
            warehouse in the archive's directory.

    Returns:
        The number of files that were added.

    Raises:
        ImportError: pyiceberg is not installed.
        TidemarkError: INVALID_REQUEST: the table is of another topic, another run changed it meanwhile, or its
            snapshots are gone; INCOMPATIBLE_SCHEMA: Iceberg has no such change of a column.
    """
    with closing(_catalog(archive, catalog)) as opened:
        archive.note_table(table)
        return sum(
            _publish_version(opened, table, list(files))
            for _, files in groupby(_files(archive), lambda one: one[1].schema.version)
        )


def _publish_version(catalog: Catalog, name: str, files: Sequence[tuple[str, Footer]]) -> int:
    """Add files of one version; returns the number of those that the table lacked."""
    from pyiceberg.exceptions import CommitFailedException

    table = _opened(catalog, name, files[0][1])
    ends = offsets_of(table)
    missing = [(path, footer) for path, footer in files if footer.start >= ends.get(footer.partition, 0)]
    if missing:
        try:
            _append(_evolved(table, missing[0][1].schema), missing, ends)
        except CommitFailedException as error:
            raise _invalid(f"another run changed the Iceberg table {name} meanwhile: {error}") from None
    return len(missing)


def offsets_of(table: Table) -> dict[int, int]:
    """End offset (exclusive) of the rows of each partition in the table; raises INVALID_REQUEST, see `publish`."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary: Any = snapshot.summary
        text = None if summary is None else summary.additional_properties.get(OFFSETS)
        if text is not None:
            return {int(partition): int(end) for partition, end in json.loads(text).items()}
        parent = snapshot.parent_snapshot_id
        if parent is None:
            break
        snapshot = table.snapshot_by_id(parent)
        if snapshot is None:
            raise _invalid(f"the snapshots of the Iceberg table {'.'.join(table.name())} with {OFFSETS!r} have expired")
    return {}


def _files(archive: Archive) -> list[tuple[str, Footer]]:
    """Files and their footers by version, and then in the order of offsets, which is the order of versions, too."""
    files = [(file.path.as_uri(), file.footer()) for files in archive.files().values() for file in files]
    return sorted(files, key=lambda one: (one[1].schema.version, one[1].partition, one[1].start))


def _append(table: Table, files: Sequence[tuple[str, Footer]], ends: Mapping[int, int]) -> None:
    after = dict(ends)
    for _, footer in files:
        after[footer.partition] = footer.end
    told = {OFFSETS: json.dumps(after, sort_keys=True), TOPIC_ID: files[0][1].topic_id}
    with table.transaction() as transaction:
        paths = [path for path, _ in files]
        transaction.add_files(paths, snapshot_properties=told, check_duplicate_files=False)


def _opened(found: Catalog, name: str, footer: Footer) -> Table:
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.schema import Schema

    try:
        table = found.load_table(name)
    except NoSuchTableError:
        found.create_namespace_if_not_exists(name.rpartition(".")[0])
        properties = {**_PROPERTIES, TOPIC_ID: footer.topic_id}
        table = found.create_table(name, Schema(), properties=properties)  # its columns would get ids of their own
    if table.properties.get(TOPIC_ID) != footer.topic_id:
        raise _invalid(f"the Iceberg table {name} is not of this topic {footer.topic}, whose id is {footer.topic_id}")
    return table


def _catalog(archive: Archive, properties: Mapping[str, str] | None) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ImportError('Iceberg tables need pyiceberg: pip install "tidemark[lake]"') from None
    if properties is None:
        archive.root.mkdir(parents=True, exist_ok=True)
        warehouse = (archive.root / "iceberg").as_uri()
        properties = {"type": "sql", "uri": f"sqlite:///{archive.root}/catalog.db", "warehouse": warehouse}
    return load_catalog("tidemark", **properties)


def _evolved(table: Table, version: Version) -> Table:
    """The table with the columns of a version as its current schema; the id of the schema is the version."""
    from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate

    wanted = iceberg_schema(version)
    now = table.schema()
    if now.schema_id == version.version:
        return table
    _check_changes(now, wanted, version)
    known = version.version in table.schemas()
    updates = [] if known else [AddSchemaUpdate(schema=wanted)]
    table.catalog.commit_table(
        table,
        (AssertCurrentSchemaId.model_validate({"current-schema-id": now.schema_id}),),
        (*updates, SetCurrentSchemaUpdate.model_validate({"schema-id": version.version})),
    )
    return table.refresh()


def _check_changes(now: Schema, wanted: Schema, version: Version) -> None:
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import PrimitiveType

    for field_id in set(now.field_ids) & set(wanted.field_ids):
        before, after = now.find_type(field_id), wanted.find_type(field_id)
        if before == after or not (isinstance(before, PrimitiveType) and isinstance(after, PrimitiveType)):
            continue
        try:
            promote(before, after)
        except ResolveError:
            path = wanted.find_column_name(field_id)
            raise TidemarkError(
                ErrorCode.INCOMPATIBLE_SCHEMA,
                f"version {version.version} of the schema makes column {path} {after} of {before}, which "
                f"Iceberg does not do",
                {"column": str(path), "version": str(version.version)},
            ) from None


def iceberg_schema(version: Version) -> Schema:
    """The columns of a version and SYSTEM_COLUMNS, with their ids; all may be null."""
    from pyiceberg.schema import Schema

    return Schema(*_fields((*version.columns, *SYSTEM_COLUMNS)), schema_id=version.version)


def _fields(columns: Sequence[Column]) -> Iterator[Any]:
    from pyiceberg.types import NestedField

    for column in columns:
        yield NestedField(column.id, column.name, _type(column.type), required=False, doc=column.doc or None)


def _type(column_type: ColumnType) -> Any:
    from pyiceberg import types

    match plain_type(column_type):
        case Primitive() as primitive:
            return getattr(types, _TYPES[primitive])()
        case Decimal(precision, scale):
            return types.DecimalType(precision, scale)
        case ListOf(element):
            return types.ListType(element.id, _type(element.type), element_required=False)
        case MapOf(key, value):
            return types.MapType(key.id, _type(key.type), value.id, _type(value.type), value_required=False)
        case StructOf(columns):
            return types.StructType(*_fields(columns))
        case other:
            raise AssertionError(other)


_TYPES: Final = {
    Primitive.BOOL: "BooleanType",
    Primitive.INT8: "IntegerType",
    Primitive.INT16: "IntegerType",
    Primitive.INT32: "IntegerType",
    Primitive.INT64: "LongType",
    Primitive.FLOAT32: "FloatType",
    Primitive.FLOAT64: "DoubleType",
    Primitive.STRING: "StringType",
    Primitive.BINARY: "BinaryType",
    Primitive.DATE: "DateType",
    Primitive.TIMESTAMP: "TimestamptzType",
    Primitive.TIMESTAMP_NTZ: "TimestampType",
}


def _invalid(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_REQUEST, sentence)
