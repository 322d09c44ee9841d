# SPDX-License-Identifier: Apache-2.0
"""The schema of a typed topic: columns with ids, key, event time. This module does not need pyarrow.

Each column, also a nested one, has an id that is unique in all versions of the topic, as in Apache Iceberg. Readers
match the columns of two versions by id, so a rename moves no data.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

COLUMNS_MAX: Final = 1_000
"""Number of columns of one schema, including nested columns and their parents."""
DEPTH_MAX: Final = 16
"""Largest depth of a column; a top-level column has depth 1."""
NAME_CHARACTERS_MAX: Final = 255
VERSION_MAX: Final = 2_047
"""Largest version: the envelope of a batch has eleven bits for it."""
COLUMN_ID_MAX: Final = 2**31 - 1
PRECISION_MAX: Final = 38

NO_ID: Final = 0
"""Id of a column in a draft."""
ELEMENT: Final = "element"
"""Name of the elements of each list."""
MAP_KEY: Final = "key"
MAP_VALUE: Final = "value"

Path = tuple[str, ...]
"""Names from a column of the topic down to a nested one, such as ("legs", "element", "origin")."""


class Primitive(StrEnum):
    """Types without parameters; the value is the name in documents and texts."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    """An instant: microseconds since 1970, UTC."""
    TIMESTAMP_NTZ = "timestamp_ntz"
    """Date and time of day in microseconds, without a time zone."""


INT_BITS: Final = {Primitive.INT8: 8, Primitive.INT16: 16, Primitive.INT32: 32, Primitive.INT64: 64}


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number with `precision` digits, `scale` of them after the point (Arrow's decimal128)."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Values that repeat. A batch stores plain values; readers get dictionary-encoded values."""

    value: Primitive | Decimal


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list; its element is a column named `ELEMENT`."""

    element: Column


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map; its key and value are columns named `MAP_KEY` and `MAP_VALUE`."""

    key: Column
    value: Column


@dataclass(frozen=True, slots=True)
class StructOf:
    """A struct: a row within a row."""

    columns: tuple[Column, ...]


ColumnType = Primitive | Decimal | Dictionary | ListOf | MapOf | StructOf

DefaultValue = bool | int | float | str | bytes | decimal.Decimal | datetime.date | datetime.datetime | tuple[()]
"""A Python value of the column's type; the empty tuple for an empty list or map."""


@dataclass(frozen=True, slots=True)
class Default:
    """Stands for a column that a row or a batch of an earlier version lacks. A default of null is not stored."""

    value: DefaultValue


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level or nested column.

    Attributes:
        id: column id, 1 or more; NO_ID in a draft.
        name: unique among its siblings, in upper and lower case alike.
        type: see ColumnType.
        nullable: whether the column may have null values.
        default: see Default.
        doc: comment for readers of the schema.
        renamed_from: in a draft: the column's name in the version before. A schema's columns have "".
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    default: Default | None = None
    doc: str = ""
    renamed_from: str = ""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema.

    Attributes:
        version: number from 1 to VERSION_MAX.
        columns: columns in order, at least one.
        key: ids of the key columns, in order; the same in every version. Empty: records have no key.
        event_time: id of the column with the event time; the same in every version.
        last_column_id: largest id of a column in this or an earlier version.
    """

    version: int
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    event_time: int | None
    last_column_id: int

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The key columns, in the order of the key."""
        by_id = {column.id: column for column in self.columns}
        return tuple(by_id[found] for found in self.key)

    @property
    def event_time_column(self) -> Column | None:
        """The column with the event time of a row; None if the schema names no such column."""
        return next((column for column in self.columns if column.id == self.event_time), None)

    def by_id(self) -> dict[int, Column]:
        """Every column, including nested columns, by its id."""
        return {column.id: column for _, column in walk(self.columns)}


@dataclass(frozen=True, slots=True)
class SchemaDraft:
    """A schema without version and ids, in one of the forms that users write.

    Attributes:
        columns: their ids are NO_ID.
        key: names of the key columns, in order.
        event_time: name of the column with the event time.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    event_time: str | None = None

    def keyed(self, key: Sequence[str] = (), event_time: str | None = None) -> SchemaDraft:
        """The draft with this key and event time, whose columns become NOT NULL; empty arguments have no effect.

        For sources without key and event time, such as a Parquet file.
        """
        chosen = {*key, *([] if event_time is None else [event_time])}
        columns = tuple(replace(column, nullable=False) if column.name in chosen else column for column in self.columns)
        return SchemaDraft(columns, tuple(key) or self.key, self.event_time if event_time is None else event_time)


def children(column_type: ColumnType) -> tuple[Column, ...]:
    """The columns directly below a column of this type."""
    match column_type:
        case ListOf(element):
            return (element,)
        case MapOf(key, value):
            return key, value
        case StructOf(columns):
            return columns
        case _:
            return ()


def with_children(column_type: ColumnType, columns: Sequence[Column]) -> ColumnType:
    """The type with other columns directly below; their number is that of `children` (any number for a struct)."""
    match column_type:
        case ListOf():
            (element,) = columns
            return ListOf(element)
        case MapOf():
            key, value = columns
            return MapOf(key, value)
        case StructOf():
            return StructOf(tuple(columns))
        case _:
            return column_type


def walk(columns: Iterable[Column]) -> Iterator[tuple[Path, Column]]:
    """Every column with its path, in depth-first order: a column comes before its nested columns. Recurses nowhere."""
    left: list[tuple[Path, Column]] = []
    left.extend(((column.name,), column) for column in reversed(tuple(columns)))
    while left:
        path, column = left.pop()
        yield path, column
        left.extend(((*path, child.name), child) for child in reversed(children(column.type)))


def plain_type(column_type: ColumnType) -> ColumnType:
    """The type as a batch stores it: for a dictionary the type of its values."""
    return column_type.value if isinstance(column_type, Dictionary) else column_type


def draft_of(schema: TopicSchema) -> SchemaDraft:
    """The draft that states this version."""
    by_id = {column.id: column.name for column in schema.columns}
    return SchemaDraft(
        tuple(_without_ids(column) for column in schema.columns),
        tuple(by_id[found] for found in schema.key),
        None if schema.event_time is None else by_id[schema.event_time],
    )


def _without_ids(column: Column) -> Column:
    below = [_without_ids(child) for child in children(column.type)]
    return replace(column, id=NO_ID, type=with_children(column.type, below))


def kept_columns(columns: Sequence[Column], ids: Collection[int]) -> tuple[Column, ...]:
    """The columns that a read of the columns `ids` needs: the columns, their parents and children, and complete maps.

    Each column has its kept children. Ids that the version does not have are ignored.
    """
    wanted = frozenset(ids)
    return tuple(kept for kept in (_kept(column, wanted) for column in columns) if kept is not None)


def _kept(column: Column, wanted: frozenset[int]) -> Column | None:
    below = children(column.type)
    if column.id in wanted:
        return column
    if isinstance(column.type, MapOf):
        return column if any(child.id in wanted for _, child in walk(below)) else None
    kept = kept_columns(below, wanted)
    return replace(column, type=with_children(column.type, kept)) if kept else None
