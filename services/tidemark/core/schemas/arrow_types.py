# SPDX-License-Identifier: Apache-2.0
"""Schemas as Arrow types, in and out. Brokers and clients only: this imports pyarrow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, cast

import pyarrow as pa
from pyarrow import types

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Decimal,
    Dictionary,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
    TopicSchema,
    kept_columns,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown
from tidemark.core.schemas.type_names import INSTEAD

Type = pa.DataType
PRIMITIVES: Final[dict[Primitive, Type]] = {
    Primitive.BOOL: pa.bool_(),
    Primitive.INT8: pa.int8(),
    Primitive.INT16: pa.int16(),
    Primitive.INT32: pa.int32(),
    Primitive.INT64: pa.int64(),
    Primitive.FLOAT32: pa.float32(),
    Primitive.FLOAT64: pa.float64(),
    Primitive.STRING: pa.string(),
    Primitive.BINARY: pa.binary(),
    Primitive.DATE: pa.date32(),
    Primitive.TIMESTAMP: pa.timestamp("us", "UTC"),
    Primitive.TIMESTAMP_NTZ: pa.timestamp("us"),
}
_ENTRIES_ID_OF_MAP: Final = 2
"""Number of nodes with a map's own id: the map, and the struct of its entries."""


def arrow_schema(schema: TopicSchema) -> pa.Schema:
    """The columns as a batch stores them: dictionaries plain."""
    return pa.schema([arrow_field(column) for column in schema.columns])


def node_ids(schema: TopicSchema) -> tuple[int, ...]:
    """The column id of each field node of an IPC RecordBatch in `arrow_schema`, in the nodes' order (depth first).

    A map has two nodes with its id: its own node, and the node of its entries.
    """
    found: list[int] = []
    for column in schema.columns:
        _add_nodes(column, found)
    return tuple(found)


def pruned(schema: TopicSchema, ids: Collection[int]) -> pa.Schema:
    """The part of `arrow_schema` that has the columns `ids`, the columns above and below them, and complete maps.

    Args:
        schema: version of the batch.
        ids: ids of columns, nested ones too; ids that the version lacks are ignored.
    """
    return pa.schema([arrow_field(column) for column in kept_columns(schema.columns, ids)])


def arrow_field(column: Column, dictionaries: bool = False) -> pa.Field[Any]:
    """The Arrow field of a column.

    Args:
        column: the column with all nested columns.
        dictionaries: dictionary-encoded columns, as for readers; otherwise plain columns, as in a stored batch.
    """
    return pa.field(column.name, arrow_type(column.type, dictionaries), column.nullable)


def arrow_type(column_type: ColumnType, dictionaries: bool = False) -> Type:
    """The Arrow type; see `arrow_field` for `dictionaries`."""
    match column_type:
        case Primitive():
            return PRIMITIVES[column_type]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Dictionary(value):
            plain: Any = arrow_type(value)
            return pa.dictionary(pa.int32(), plain) if dictionaries else plain
        case ListOf(element):
            return list_type(arrow_type(element.type, dictionaries), element.nullable)
        case MapOf(key, value):
            return map_type(arrow_type(key.type), arrow_type(value.type, dictionaries), value.nullable)
        case StructOf(columns):
            return pa.struct([arrow_field(column, dictionaries) for column in columns])


def list_type(element: Type, nullable: bool) -> Type:
    """A list type; the field of its elements has pyarrow's name."""
    return pa.list_(pa.field("item", element, nullable))


def map_type(key: Type, value: Type, nullable: bool) -> Type:
    """A map type; `nullable`: its values may be null."""
    entries: Any = (pa.field(MAP_KEY, key, nullable=False), pa.field(MAP_VALUE, value, nullable))
    return cast("Type", pa.map_(*entries))


def draft_from_arrow(schema: pa.Schema) -> SchemaDraft:
    """A draft with the columns of an Arrow schema, of a Parquet or Arrow file, too.

    Times in other units become microseconds, large and view types the plain ones, dictionaries `Dictionary`.

    Raises:
        TidemarkError: INVALID_SCHEMA: a type that Spark lacks, or one of `check_draft`'s reasons.
    """
    budget = ColumnBudget()
    return check_draft(SchemaDraft(tuple(_column(field, (), budget) for field in schema)))


def _add_nodes(column: Column, found: list[int]) -> None:
    match column.type:
        case ListOf(element):
            found.append(column.id)
            _add_nodes(element, found)
        case MapOf(key, value):
            found.extend([column.id] * _ENTRIES_ID_OF_MAP)
            _add_nodes(key, found)
            _add_nodes(value, found)
        case StructOf(columns):
            found.append(column.id)
            for child in columns:
                _add_nodes(child, found)
        case _:
            found.append(column.id)


def _column(field: pa.Field[Any], above: Path, budget: ColumnBudget, name: str | None = None) -> Column:
    path = (*above, field.name if name is None else name)
    budget.take(path)
    return Column(NO_ID, path[-1], _type(field.type, path, budget), field.nullable)


def _type(found: Type, path: Path, budget: ColumnBudget) -> ColumnType:
    if types.is_dictionary(found):
        value = _type(cast("Any", found).value_type, path, budget)
        if isinstance(value, Primitive | Decimal):
            return value if value is Primitive.BOOL else Dictionary(value)
        raise invalid("the values of a dictionary must be of a type without columns, such as string", path)
    if types.is_map(found):
        mapping = cast("Any", found)
        key = _column(mapping.key_field.with_nullable(False), path, budget, MAP_KEY)
        return MapOf(key, _column(mapping.item_field, path, budget, MAP_VALUE))
    if types.is_struct(found):
        columns = [found.field(index) for index in range(found.num_fields)]
        return StructOf(tuple(_column(column, path, budget) for column in columns))
    if is_list(found):
        return ListOf(_column(cast("Any", found).value_field, path, budget, ELEMENT))
    return _plain_type(found, path)


def is_list(found: Type) -> bool:
    """Whether a type is one of Arrow's lists."""
    checks = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(types, check)(found) for check in checks)


def _plain_type(found: Type, path: Path) -> Primitive | Decimal:
    if types.is_decimal(found) and not types.is_decimal256(found):
        number = cast("pa.Decimal128Type[Any, Any]", found)
        return Decimal(number.precision, number.scale)
    if types.is_timestamp(found):
        zone = found.tz
        return Primitive.TIMESTAMP_NTZ if zone is None else Primitive.TIMESTAMP
    if types.is_string(found) or types.is_large_string(found) or types.is_string_view(found):
        return Primitive.STRING
    if types.is_date(found):
        return Primitive.DATE
    if any(check(found) for check in _BINARIES):
        return Primitive.BINARY
    for primitive, arrow in PRIMITIVES.items():
        if found == arrow:
            return primitive
    raise invalid(f"Spark has no type for {shown(str(found))}; {_instead(found)}", path)


_BINARIES: Final = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)


def _instead(found: Type) -> str:
    if isinstance(found, pa.BaseExtensionType):
        return f"use its storage type, {shown(str(found.storage_type))}"
    if types.is_run_end_encoded(found):
        return "use the type of its values, or a dictionary"
    for name in ("union", "decimal256", "time"):
        if getattr(types, f"is_{name}")(found):
            return INSTEAD[name]
    return INSTEAD.get(str(found), INSTEAD["duration"])
