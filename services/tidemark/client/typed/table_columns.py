# SPDX-License-Identifier: Apache-2.0
"""Fits the columns of a table to a schema version: by name, with lossless casts.

Works on whole columns. A column is refused for the first row that does not fit; a search by halves finds that row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tidemark.client.suggestions import nearest
from tidemark.client.typed.mismatches import MisfitError, shown_value
from tidemark.core.schemas.arrow_types import arrow_field, arrow_type, is_list
from tidemark.core.schemas.model import (
    INT_BITS,
    MAP_KEY,
    MAP_VALUE,
    Column,
    ColumnType,
    Decimal,
    ListOf,
    MapOf,
    Primitive,
    StructOf,
    plain_type,
)

_compute: Any = pc  # the stubs do not know every function
_INT_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
_DECIMAL128_DIGITS: Final = 38
_COMPUTE_ERRORS: Final = (pa.ArrowException, ValueError)


def check_arrays(rows: pa.RecordBatch) -> None:
    """Check the buffers of a table, which any library may have made, before Arrow's functions read them.

    Raises:
        MisfitError: a buffer is too short, offsets run backwards, a dictionary lacks an index, or a text is not UTF-8.
    """
    for name, array in zip(rows.schema.names, rows.columns, strict=True):
        try:
            _check(array)
        except MisfitError as misfit:
            raise misfit.below(name) from None


def _check(array: Any) -> None:
    """Check an array and its child arrays, within the range of its rows: slices of one table share child arrays."""
    kind = array.type
    if types.is_struct(kind):
        _validate(array, full=False)
        for place in range(kind.num_fields):
            try:
                _check(array.field(place))
            except MisfitError as misfit:
                raise misfit.below(kind.field(place).name) from None
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        _validate(array, full=False)
        _check_lists(array)
    else:
        _validate(array, full=True)


def _check_lists(array: Any) -> None:
    if not len(array):
        return
    offsets: Any = array.offsets
    backwards = pc.index(_compute.less(offsets.slice(1), offsets.slice(0, len(array))), value=True).as_py()
    if backwards >= 0:
        raise MisfitError("no valid Arrow array: offsets run backwards", row=backwards)
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    try:
        _check(array.values.slice(start, end - start))
    except MisfitError as misfit:
        below = misfit if types.is_map(array.type) else misfit.below("element")
        raise _above(below, pc.subtract(offsets, start)) from None


def _validate(array: Any, *, full: bool) -> None:
    fault = _fault(array, full=full)
    if fault:
        raise MisfitError(f"no valid Arrow array: {fault}", row=_first_invalid(array, full=full))


def _fault(array: Any, *, full: bool) -> str:
    try:
        array.validate(full=full)
    except pa.ArrowException as error:
        return " ".join(str(error).split())
    return ""


def _first_invalid(array: Any, *, full: bool) -> int | None:
    """The row that makes an array invalid; None if no single row does."""
    if _fault(array.slice(0, 0), full=full):
        return None
    valid, invalid = 0, len(array)
    while invalid - valid > 1:
        middle = (valid + invalid) // 2
        if _fault(array.slice(0, middle), full=full):
            invalid = middle
        else:
            valid = middle
    return valid


def fitted(
    rows: pa.RecordBatch | pa.StructArray, columns: Sequence[Column], visible: Any = None
) -> list[pa.Array[Any]]:
    """Arrays of the columns, in their order, as a batch stores them.

    Args:
        rows: a record batch, or the values of a struct column.
        columns: columns of the schema version, or of the struct.
        visible: which rows count (bool): for the fields of a struct, the rows where the struct is not null; None: all
            rows.

    Raises:
        MisfitError: a column is missing or superfluous, or a value does not fit.
    """
    fields = (
        rows.schema if isinstance(rows, pa.RecordBatch) else [rows.type.field(n) for n in range(rows.type.num_fields)]
    )
    names = [field.name for field in fields]
    _check_names(names, columns)
    arrays = rows.columns if isinstance(rows, pa.RecordBatch) else rows.flatten()
    found = []
    for column in columns:
        try:
            if column.name not in names:
                found.append(filled(column, len(rows), visible))
            else:
                found.append(_fit(arrays[names.index(column.name)], column, visible))
        except MisfitError as misfit:
            raise misfit.below(column.name) from None
    return found


def filled(column: Column, count: int, visible: Any = None) -> Any:
    """A column that the rows lack: its default, or null; raises MisfitError."""
    if column.default is not None:
        value: Any = [] if isinstance(column.default.value, tuple) else column.default.value
        return pa.array([value] * count, arrow_type(column.type))
    if not column.nullable and visible is None:
        raise MisfitError("the rows lack the column, which is never null and has no default")
    return _fit(_nulls(count, arrow_type(column.type)), column, visible)


def _check_names(names: Sequence[str], columns: Sequence[Column]) -> None:
    known = [column.name for column in columns]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise MisfitError("two columns have this name", [name])
        if name not in known:
            similar = nearest(name, known)
            hint = f"did you mean {similar}?" if similar else "omit it, or add it to the schema first"
            raise MisfitError(f"the schema has no such column: {hint}", [name])


def _fit(array: Any, column: Column, visible: Any) -> Any:
    """An array of the column's type, with nulls where the column may have them."""
    array = _plain(array)
    if not column.nullable and array.null_count:
        wanted = array.is_null() if visible is None else pc.and_(visible, array.is_null())
        row = pc.index(wanted, value=True).as_py()
        if row >= 0:
            raise MisfitError("null, and the column is never null", row=row)
    made = arrow_type(column.type)
    match column.type:
        case StructOf(columns):
            return _fit_struct(array, columns, column.nullable, made)
        case ListOf(element):
            return _fit_list(array, element, column.nullable, made)
        case MapOf(key, value):
            return _fit_map(array, key, value, column.nullable, made)
        case other:
            return _fit_values(array, other, column.nullable, made)


def _plain(array: Any) -> Any:
    """The array without extension types, dictionaries and runs."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(array.type):
            array = decoded(array)
        elif types.is_run_end_encoded(array.type):
            array = _compute.run_end_decode(array)
        else:
            return array


def decoded(array: Any) -> Any:
    """The values of a dictionary. Arrow does not decode a dictionary of views, which Polars makes."""
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    plain = views.get(array.type.value_type)
    if plain is not None:
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def _fit_struct(array: Any, columns: Sequence[Column], nullable: bool, made: Any) -> Any:
    if types.is_null(array.type):
        array = _nulls(len(array), made)
    if not types.is_struct(array.type):
        raise _other_type(array, "a struct")
    # Below a null struct even columns that are never null have nulls; values that no reader sees replace these.
    children = fitted(array, columns, array.is_valid() if array.null_count else None)
    mask = array.is_null() if nullable and array.null_count else None
    fields = [made.field(place) for place in range(made.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _fit_list(array: Any, element: Column, nullable: bool, made: Any) -> Any:
    if types.is_null(array.type):
        array = _nulls(len(array), made)
    if not is_list(array.type):
        raise _other_type(array, "a list")
    offsets, values = unnested(array)
    try:
        fitted_values = _fit(values, element, None)
    except MisfitError as misfit:
        raise _above(misfit.below(element.name), offsets) from None
    return _nested(array, offsets, fitted_values, nullable, made)


def _fit_map(array: Any, key: Column, value: Column, nullable: bool, made: Any) -> Any:
    if types.is_null(array.type):
        array = _nulls(len(array), made)
    if types.is_map(array.type):
        array = _entries(array)
    if not is_list(array.type) or not types.is_struct(array.type.value_type) or array.type.value_type.num_fields != 2:
        raise _other_type(array, "a map, or a list of structs of key and value")
    offsets, entries_found = unnested(array)
    if entries_found.null_count:
        raise _above(
            MisfitError("an entry is null", row=pc.index(entries_found.is_null(), value=True).as_py()), offsets
        )
    fields = [
        pa.field(MAP_KEY, entries_found.type.field(0).type),
        pa.field(MAP_VALUE, entries_found.type.field(1).type),
    ]
    renamed = pa.StructArray.from_arrays(entries_found.flatten(), fields=fields)
    try:
        columns = fitted(renamed, (key, value))
    except MisfitError as misfit:
        raise _above(misfit, offsets) from None
    _check_unique(offsets, columns[0])
    values = pa.StructArray.from_arrays(columns, fields=[made.key_field, made.item_field])
    return _nested(array, offsets, values, nullable, made)


def _entries(maps: Any) -> Any:
    """The maps as lists of their entries: a cast refuses a null struct below them that has a field that is never
    null.
    """
    buffers, entries = maps.buffers()[:2], maps.values
    return pa.Array.from_buffers(pa.list_(entries.type), len(maps), buffers, offset=maps.offset, children=[entries])


def _check_unique(offsets: Any, keys: Any) -> None:
    """Refuse a map that has a key twice: DuckDB cannot read the column, and a dict would have only one of the
    values.
    """
    lists = pa.ListArray.from_arrays(offsets, keys)  # a null map has no entries here
    if (_compute.max(_compute.list_value_length(lists)).as_py() or 0) < 2:
        return
    entries = pa.table({"row": _compute.list_parent_indices(lists), "key": keys})
    counted = entries.group_by(["row", "key"]).aggregate([([], "count_all")])
    twice = counted.filter(_compute.greater(counted["count_all"], 1)).sort_by("row").slice(0, 1)
    for found in twice.to_pylist():
        raise MisfitError(f"the map has the key {shown_value(found['key'])} twice", [MAP_KEY], found["row"])


def unnested(array: Any) -> tuple[Any, Any]:
    """Offsets (int32, from 0) and values of a list of any kind; a null has no values."""
    lengths = pc.fill_null(_compute.list_value_length(array), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return offsets, _compute.list_flatten(array)


def _nested(array: Any, offsets: Any, values: Any, nullable: bool, made: Any) -> Any:
    validity = None
    if nullable and array.null_count:
        valid = pa.concat_arrays([array.is_valid()])
        validity = valid.buffers()[1] if valid.offset == 0 else pa.array(valid.to_pylist()).buffers()[1]
    return pa.Array.from_buffers(made, len(array), [validity, offsets.buffers()[1]], children=[values])


def _above(misfit: MisfitError, offsets: Any) -> MisfitError:
    """The mismatch of an element of a list or map, at the row of that list or map."""
    if misfit.row is None:
        return misfit
    ends = offsets.slice(1)
    return misfit.at(_compute.sum(_compute.less_equal(ends, misfit.row)).as_py() or 0)


def is_binary(found: Any) -> bool:
    """Whether a type is one of Arrow's types of bytes."""
    checks = ("is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary")
    return any(getattr(types, check)(found) for check in checks)


# -- values ------------------------------------------------------------------------------------------------------------


def _fit_values(array: Any, column_type: ColumnType, nullable: bool, made: Any) -> Any:
    if types.is_null(array.type):
        array = _nulls(len(array), made)
    wanted = plain_type(column_type)
    if array.type != made:
        _check_kind(array, wanted)
        array = _cast(array, made)
    if wanted in _YEARS_1_TO_9999:
        check_years(array, wanted)
    if not nullable and array.null_count:
        return pc.fill_null(array, _zero(wanted, made))
    return array


def check_years(array: Any, wanted: ColumnType) -> None:
    """Raise MisfitError for years that Python and pandas do not have: a reader would fail at the row."""
    integers, first, last, unit = _YEARS_1_TO_9999[wanted]
    numbers = array.view(integers)
    found: Any = pc.min_max(numbers)
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    if lowest is None or (first <= lowest and highest <= last):
        return
    outside = _compute.or_(_compute.less(numbers, first), _compute.greater(numbers, last))
    row = pc.index(outside, value=True).as_py()
    raise MisfitError(f"{numbers[row].as_py()} {unit} since 1970 is outside of the years 1 to 9999", row=row)


FIRST_US: Final = -62_135_596_800_000_000
"""The start of year 1, in microseconds since 1970."""
LAST_US: Final = 253_402_300_799_999_999
"""The end of year 9999, in microseconds since 1970."""
_OF_TIMESTAMP: Final = pa.int64(), FIRST_US, LAST_US, "us"
_YEARS_1_TO_9999: Final[dict[ColumnType, tuple[Any, int, int, str]]] = {
    Primitive.DATE: (pa.int32(), -719_162, 2_932_896, "days"),
    Primitive.TIMESTAMP: _OF_TIMESTAMP,
    Primitive.TIMESTAMP_NTZ: _OF_TIMESTAMP,
}
"""The integers of a type, the first and the last of them, inclusive, and their unit."""


def _check_kind(array: Any, wanted: ColumnType) -> None:
    """Raise MisfitError unless the column may accept values of this type."""
    found = array.type
    match wanted:
        case Decimal():
            fits = types.is_decimal(found) or types.is_integer(found)
        case Primitive.FLOAT32 | Primitive.FLOAT64:
            fits = types.is_floating(found) or types.is_integer(found)
        case Primitive.TIMESTAMP:
            fits = types.is_timestamp(found) and found.tz is not None
        case Primitive.TIMESTAMP_NTZ:
            fits = types.is_timestamp(found) and found.tz is None
        case Primitive() if wanted in INT_BITS:
            fits = types.is_integer(found) or types.is_floating(found) or types.is_decimal(found)
        case Primitive():
            fits = any(check(found) for check in _KINDS[wanted])
        case _:
            raise AssertionError(wanted)
    if fits:
        return
    if types.is_timestamp(found) and wanted in _HINTS:
        raise MisfitError(f"the table has the type {found}, the schema {wanted}: {_HINTS[wanted]}")
    raise _other_type(array, str(wanted) if isinstance(wanted, Primitive) else "a decimal")


_KINDS: Final[dict[Primitive, tuple[Callable[[Any], bool], ...]]] = {
    Primitive.BOOL: (types.is_boolean,),
    Primitive.STRING: (types.is_string, types.is_large_string, types.is_string_view),
    Primitive.BINARY: (is_binary,),
    Primitive.DATE: (types.is_date,),
}
_HINTS: Final[dict[ColumnType, str]] = {
    Primitive.TIMESTAMP: "name the time zone of its values first",
    Primitive.TIMESTAMP_NTZ: "take the time zone away first",
    Primitive.DATE: "cast it to a date first",
}


def _cast(array: Any, made: Any) -> Any:
    try:
        return _cast_whole(array, made)
    except _COMPUTE_ERRORS:
        low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast_whole(array.slice(low, middle - low), made)
            low = middle
        except _COMPUTE_ERRORS:
            high = middle
    raise MisfitError(f"{_one(array, low)} does not fit {made} without a loss", row=low)


def _cast_whole(array: Any, made: Any) -> Any:
    """Cast without a loss; raises ArrowInvalid."""
    if types.is_decimal(made) and types.is_integer(array.type):
        digits = _INT_DIGITS[array.type.bit_width] + made.scale
        wide = pa.decimal128(digits, made.scale) if digits <= _DECIMAL128_DIGITS else pa.decimal256(digits, made.scale)
        return array.cast(wide).cast(made)
    cast = array.cast(made)
    if types.is_float32(made) and types.is_float64(array.type):
        finite = pc.and_(pc.is_finite(array), pc.is_inf(cast))
        if pc.any(finite).as_py():
            raise pa.ArrowInvalid("a finite number would become infinite")
    return cast


def _one(array: Any, row: int) -> str:
    try:
        return shown_value(array[row].as_py())
    except Exception:  # noqa: BLE001 - Python cannot represent the value, such as a nanosecond
        return shown_value(array.slice(row, 1).cast(pa.string())[0].as_py())


def _nulls(count: int, made: Any) -> Any:
    return pa.nulls(count, made)


def _zero(wanted: ColumnType, made: Any) -> Any:
    """A value for the place below a null, which no reader sees."""
    value: Any = "" if wanted is Primitive.STRING else b"" if wanted is Primitive.BINARY else None
    if value is not None:
        return pa.scalar(value, made)
    width = max(1, made.bit_width // 8)
    return pa.Array.from_buffers(made, 1, [None, pa.py_buffer(bytes(width))])[0]


def _other_type(array: Any, wanted: str) -> MisfitError:
    return MisfitError(f"the table has the type {array.type}, the schema {wanted}")


def schema_fields(columns: Sequence[Column]) -> pa.Schema:
    """The fields of these columns in a stored batch."""
    return pa.schema([arrow_field(column) for column in columns])
