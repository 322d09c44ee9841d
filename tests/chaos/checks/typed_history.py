# SPDX-License-Identifier: Apache-2.0
"""The rows of a typed topic and the changes of its schema, as their clients report them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from tests.chaos.checks.history import Offset, Partition

AT_THE_END = "at the end"
"""Name of the reader that reads everything once more when the faults are over."""
STRUCT: Final = "struct"
LIST: Final = "list"


class Fate(StrEnum):
    """The last outcome of a change that its client knows."""

    MADE = "made"
    REFUSED = "refused"
    """The controller refused the change as incompatible."""
    OUTRUN = "outrun"
    """Another change made the next version first."""
    UNKNOWN = "unknown"
    """No answer came."""


class ColumnSpec(NamedTuple):
    """A column of a version, or a field of such a column.

    Attributes:
        type: of a column with fields `struct`, or `list` of such structs.
        origin: tag of the change that added the column; a rename, a wider type and another default keep it.
    """

    name: str
    type: str
    nullable: bool
    default: Any
    origin: str
    fields: tuple[ColumnSpec, ...] = ()

    @property
    def shape(self) -> str:
        """The type with the names and types of all fields."""
        if not self.fields:
            return self.type
        inner = ", ".join(f"{field.name}: {field.shape}" for field in self.fields)
        return f"list<struct<{inner}>>" if self.type == LIST else f"struct<{inner}>"


def every_column(columns: Iterable[ColumnSpec]) -> Iterator[ColumnSpec]:
    """The columns and their fields, at every depth."""
    for column in columns:
        yield column
        yield from every_column(column.fields)


def by_origin(column: ColumnSpec, value: Any) -> Any:
    """The value with the origins of its fields instead of their names."""
    if value is None or not column.fields:
        return value
    if column.type == LIST:
        return [by_origin(column._replace(type=STRUCT), one) for one in value]
    return {field.origin: by_origin(field, value[field.name]) for field in column.fields if field.name in value}


@dataclass(slots=True)
class Change:
    """A change that a client requested; the topic's first version counts as a change, too.

    Attributes:
        tag: unique in the round; the stored version has it as doc text.
        follows: the version that the change was made from.
        columns: all columns of the wanted version.
        allowed: whether the topic's policy allows it.
        version: number of the version, if the client got one.
    """

    tag: str
    follows: int
    columns: tuple[ColumnSpec, ...]
    allowed: bool = True
    fate: Fate = Fate.UNKNOWN
    version: int = 0


class StoredVersion(NamedTuple):
    """A version that exists at the end; `columns` have name and shape."""

    version: int
    tag: str
    columns: tuple[tuple[str, str], ...]


class ReadRow(NamedTuple):
    """A row that a reader got, with all columns of a version."""

    reader: str
    partition: Partition
    offset: Offset
    value: str
    columns: Mapping[str, Any]


@dataclass(slots=True)
class TypedHistory:
    """Versions and rows of one typed topic; the other facts about its records are in a `History`.

    Attributes:
        changes: in the order in which they were requested.
        versions: the versions that exist at the end, in order.
        rows: the columns that each row was sent with, by the row's value in the `History`: origin of the column, value;
            fields of the value have origins as well.
        read: the rows that each reader got, in order.
        last_columns: name and type of the columns that `AT_THE_END` was given.
    """

    changes: list[Change] = field(default_factory=list)
    versions: list[StoredVersion] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    read: list[ReadRow] = field(default_factory=list)
    last_columns: tuple[tuple[str, str], ...] = ()
