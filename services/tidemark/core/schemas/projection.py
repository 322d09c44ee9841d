# SPDX-License-Identifier: Apache-2.0
"""Rows of one version as rows of another: renamed, widened, missing columns filled, some columns only.

A projection is made once for each pair of versions, and applied to each batch. Columns that are the same in both pass
without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from tidemark.core.schemas.arrow_types import arrow_field, arrow_type, pruned
from tidemark.core.schemas.column_paths import selected
from tidemark.core.schemas.compatibility import problems
from tidemark.core.schemas.missing_columns import filler
from tidemark.core.schemas.model import (
    INT_BITS,
    Column,
    ColumnType,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    StructOf,
    TopicSchema,
    children,
    kept_columns,
    plain_type,
    walk,
)
from tidemark.core.schemas.refusals import path_text
from tidemark.model import ErrorCode, TidemarkError

if TYPE_CHECKING:
    Array = pa.Array[Any]
else:
    Array = pa.Array

Convert = Callable[[Array], Array]


class Projection:
    """Turns batches of version `source` into rows of version `target`.

    Args:
        source: version of the batches.
        target: version of the reader.
        columns: paths in `target`, such as "carrier" or "leg.origin"; None: all.
        dictionaries: dictionary-encode the columns of type Dictionary; otherwise these columns stay plain.

    Attributes:
        column_ids: the columns of `source` to fetch, in ascending order; at least one, for the number of rows.
        arrow_schema: of the rows that come out, in the order of `target`.

    Raises:
        TidemarkError: INVALID_REQUEST: a path names no column of `target`. INCOMPATIBLE_SCHEMA: this reader cannot read
            these batches; the message names both versions and the column.
    """

    def __init__(
        self,
        source: TopicSchema,
        target: TopicSchema,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> None:
        wanted = selected(target, columns)
        for path, sentence in problems(source, target, wanted):
            raise _unreadable(source.version, target.version, path_text(path), sentence)
        self.arrow_schema = pa.schema([arrow_field(column, dictionaries) for column in wanted])
        ids = _wanted_ids(source.columns, wanted) or {_cheapest(source.columns)}
        self.column_ids = tuple(sorted(ids))
        self._source_schema = pruned(source, ids)
        kept = kept_columns(source.columns, ids)
        self._makers = [_maker(kept, column, dictionaries) for column in wanted]
        self._is_same = bool(wanted) and tuple(kept) == tuple(wanted) and self._source_schema.equals(self.arrow_schema)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch in `arrow_schema`.

        Args:
            rows: rows in the form of `pruned(source, column_ids)`; the caller must pass rows in this form only.
        """
        assert rows.schema.equals(self._source_schema), f"{rows.schema} is not {self._source_schema}"
        if self._is_same:
            return rows
        if not self._makers:  # otherwise no array would have the number of rows
            no_columns = pa.Array.from_buffers(pa.struct([]), rows.num_rows, [None])
            return pa.RecordBatch.from_struct_array(cast("pa.StructArray", no_columns))
        return pa.RecordBatch.from_arrays([make(rows) for make in self._makers], schema=self.arrow_schema)


def _unreadable(source: int, target: int, column: str, sentence: str) -> TidemarkError:
    return TidemarkError(
        ErrorCode.INCOMPATIBLE_SCHEMA,
        f"a reader with version {target} of the schema cannot read a batch of version {source}: {sentence}; omit the "
        f"column, or read with version {source}",
        {"column": column, "version": str(source), "next_version": str(target)},
    )


def _wanted_ids(source: Sequence[Column], target: Sequence[Column]) -> set[int]:
    """Ids of the columns of `source` that hold values of `target`."""
    by_id = {column.id: column for column in source}
    found: set[int] = set()
    for column in target:
        if column.id in by_id:
            found |= _wanted_below(by_id[column.id], column)
    return found


def _wanted_below(source: Column, target: Column) -> set[int]:
    match source.type, target.type:
        case StructOf(columns), StructOf(others):
            return _wanted_ids(columns, others) or {_cheapest(columns)}  # one column is needed to know the null rows
        case ListOf(element), ListOf(other):
            return _wanted_below(element, other)
        case _:
            return {source.id}


def _cheapest(columns: Sequence[Column]) -> int:
    """Id of a column with few bytes."""
    leaves = [column for _, column in walk(columns) if not children(column.type)]
    return min(leaves, key=lambda column: _RANKS.get(plain_type(column.type), len(_RANKS))).id


_RANKS: Final[dict[ColumnType, int]] = {
    kind: rank for rank, kind in enumerate([Primitive.BOOL, *INT_BITS, Primitive.DATE, Primitive.FLOAT32])
}


def _maker(kept: Sequence[Column], target: Column, dictionaries: bool) -> Callable[[pa.RecordBatch], Array]:
    """A function from the rows that were fetched, in columns `kept`, to one column of the reader."""
    place = next((place for place, column in enumerate(kept) if column.id == target.id), None)
    if place is None:
        fill = filler(target, dictionaries)
        return lambda rows: fill(rows.num_rows)
    convert = _converter(kept[place], target, dictionaries)
    return lambda rows: convert(rows.column(place))


def _converter(source: Column, target: Column, dictionaries: bool) -> Convert:
    """A function from arrays of a source column to arrays of the same target column."""
    encoded = dictionaries and any(isinstance(column.type, Dictionary) for _, column in walk([target]))
    if source.type == target.type and not encoded:
        return lambda array: array
    made = arrow_type(target.type, dictionaries)
    match source.type, target.type:
        case ListOf(element), ListOf(other):
            return _list_converter(_converter(element, other, dictionaries), made)
        case MapOf(), MapOf():
            return _map_converter(source.type, target.type, dictionaries, made)
        case StructOf(columns), StructOf(others):
            return _struct_converter(columns, others, dictionaries, made)
        case _:
            plain = arrow_type(plain_type(target.type))
            widened: Convert = lambda array: array if array.type == plain else array.cast(plain)  # noqa: E731
            return (lambda array: cast("Any", widened(array)).dictionary_encode()) if encoded else widened


def _list_converter(element: Convert, made: pa.DataType) -> Convert:
    def convert(array: Array) -> Array:
        return _with_values(array, element(cast("pa.ListArray[Any]", array).values), made)

    return convert


def _map_converter(source: MapOf, target: MapOf, dictionaries: bool, made: pa.DataType) -> Convert:
    entries = [cast("Any", made).key_field, cast("Any", made).item_field]
    pairs = zip(children(source), children(target), strict=True)
    parts = [_converter(found, wanted, dictionaries) for found, wanted in pairs]

    def convert(array: Array) -> Array:
        values = cast("Any", array).values
        columns = [part(values.field(place)) for place, part in enumerate(parts)]
        return _with_values(array, pa.StructArray.from_arrays(columns, fields=entries), made)

    return convert


def _with_values(array: Array, values: Array, made: pa.DataType) -> Array:
    """A list or map with other values at the same offsets."""
    return pa.Array.from_buffers(made, len(array), array.buffers()[:2], offset=array.offset, children=[values])


def _struct_converter(
    source: Sequence[Column], target: Sequence[Column], dictionaries: bool, made: pa.DataType
) -> Convert:
    places = {column.id: place for place, column in enumerate(source)}
    fields = [made.field(place) for place in range(made.num_fields)]
    parts: list[Callable[[pa.StructArray], Array]] = []
    for column in target:
        parts.append(_struct_part(source, places.get(column.id), column, dictionaries))

    def convert(array: Array) -> Array:
        rows = cast("pa.StructArray", array)
        mask = rows.is_null() if rows.null_count else None
        return pa.StructArray.from_arrays([part(rows) for part in parts], fields=fields, mask=mask)

    return convert


def _struct_part(
    source: Sequence[Column], place: int | None, target: Column, dictionaries: bool
) -> Callable[[pa.StructArray], Array]:
    if place is None:
        fill = filler(target, dictionaries)
        return lambda rows: fill(len(rows))
    convert = _converter(source[place], target, dictionaries)
    return lambda rows: convert(rows.field(place))
