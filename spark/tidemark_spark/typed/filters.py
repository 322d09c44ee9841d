# SPDX-License-Identifier: Apache-2.0
"""Filters of a query as masks of Arrow columns, and as bounds of a read by event time. Pure.

Spark applies every filter again, so a mask is correct if it omits no row that passes the filter. Spark's NaN is
equal to itself and larger than every number, but Arrow's NaN is not: so rows with NaN always stay, and a comparison
with NaN has no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from tidemark.model import microseconds_of
from tidemark.record.typed.batch import TimeRange

Mask = Callable[[pa.RecordBatch], Any]
_compute: Any = pc

_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "EqualTo": pc.equal,
    "EqualNullSafe": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_AT_LEAST: Final = frozenset({"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"})
_AT_MOST: Final = frozenset({"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"})
_TEXT: Final[Mapping[str, Callable[..., Any]]] = {
    "StringStartsWith": _compute.starts_with,
    "StringEndsWith": _compute.ends_with,
    "StringContains": _compute.match_substring,
}
_NULLS: Final[Mapping[str, Callable[[Any], Any]]] = {"IsNull": _compute.is_null, "IsNotNull": _compute.is_valid}
_ROUNDED_DIGITS: Final = 28
"""Digits of a decimal that PySpark may have rounded: it makes the values of filters in Python's default precision."""


def masks(filters: Iterable[Any], schema: pa.Schema) -> list[Mask]:
    """Masks of the filters that can be applied to rows of this schema; Spark applies all other filters.

    Args:
        filters: PySpark's filters.
        schema: schema of the rows.
    """
    return [mask for mask in (_mask(one, schema) for one in filters) if mask is not None]


def times_of(filters: Iterable[Any], columns: Collection[str]) -> TimeRange:
    """The range of the timestamps of rows that pass the filters.

    Args:
        filters: PySpark's filters.
        columns: columns that hold the timestamp of a row.
    """
    from_us: int | None = None
    until_us: int | None = None
    wanted = {(name,) for name in columns}
    for one in filters:
        kind, path, value = type(one).__name__, tuple(getattr(one, "attribute", ())), getattr(one, "value", None)
        if path not in wanted or not isinstance(value, datetime) or value.tzinfo is None:
            continue
        at_us = microseconds_of(value)
        if kind in _AT_LEAST:
            from_us = at_us if from_us is None else max(from_us, at_us)
        if kind in _AT_MOST:
            until_us = at_us + 1 if until_us is None else min(until_us, at_us + 1)
    return TimeRange(from_us, until_us)


def _mask(one: Any, schema: pa.Schema) -> Mask | None:
    kind = type(one).__name__
    if kind == "Not":
        return _negated(one.child, schema)
    column = _column(tuple(getattr(one, "attribute", ())), schema)
    if column is None:
        return None
    data_type, values = column
    if kind in _NULLS:
        return lambda rows: _NULLS[kind](values(rows))
    try:
        if kind in _COMPARE and _is_exact(one.value):
            scalar = pa.scalar(one.value, data_type)
            return _with_nan(lambda rows: _COMPARE[kind](values(rows), scalar), data_type, values)
        if kind == "In" and all(value is None or _is_exact(value) for value in one.value):
            chosen = [value for value in one.value if value is not None]
            # Spark's 0.0 is equal to -0.0, but Arrow looks both up by their bits.
            zeros = [-value for value in chosen if value == 0] if pa.types.is_floating(data_type) else []
            among: Any = pa.array([*chosen, *zeros], data_type)
            return _with_nan(lambda rows: _compute.is_in(values(rows), value_set=among), data_type, values)
        if kind in _TEXT and pa.types.is_string(data_type):
            text = one.value
            return lambda rows: _TEXT[kind](values(rows), text)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return None


def _is_exact(value: Any) -> bool:
    """Whether a comparison with this value is the same for Spark and Arrow, except for rows with NaN."""
    if isinstance(value, Decimal):
        return len(value.as_tuple().digits) < _ROUNDED_DIGITS
    return value is not None and value == value


def _negated(child: Any, schema: pa.Schema) -> Mask | None:
    kind = type(child).__name__
    column = _column(tuple(getattr(child, "attribute", ())), schema)
    mask = _mask(child, schema)
    if column is None or mask is None or pa.types.is_floating(column[0]):
        return None
    if kind == "EqualNullSafe":  # a null is not equal, so it passes
        return lambda rows: _compute.fill_null(pc.invert(mask(rows)), fill_value=True)
    return lambda rows: pc.invert(mask(rows))


def _with_nan(mask: Mask, data_type: pa.DataType, values: Mask) -> Mask:
    if not pa.types.is_floating(data_type):
        return mask
    return lambda rows: _compute.or_kleene(mask(rows), pc.is_nan(values(rows)))


def _column(path: Sequence[str], schema: pa.Schema) -> tuple[Any, Mask] | None:
    """Type and values of a column, or of a field of a struct."""
    if not path or path[0] not in schema.names:
        return None
    name, *below = path
    data_type: Any = schema.field(name).type
    places: list[int] = []
    for part in below:
        place = data_type.get_field_index(part) if isinstance(data_type, pa.StructType) else -1
        if place < 0:
            return None
        places.append(place)
        data_type = data_type.field(place).type
    if not places:
        return data_type, lambda rows: rows.column(name)
    return data_type, lambda rows: _compute.struct_field(rows.column(name), places)
