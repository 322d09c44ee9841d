# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays in the form that Spark takes: names, order and nullability of nested fields. Pure; copies no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Array = Any
Convert = Callable[[Array], Array]


def shaping(found: Any, wanted: Any) -> Convert:
    """A function that converts arrays to the names, order and nullability of another type, without a copy of values."""
    if found.equals(wanted):
        return lambda array: array
    if isinstance(wanted, pa.StructType):
        return _struct_shaping(found, wanted)
    if isinstance(wanted, pa.MapType):
        entries = pa.struct([wanted.key_field, wanted.item_field])
        inner = shaping(pa.struct([found.key_field, found.item_field]), entries)
        return lambda array: _with_values(array, inner(array.values), wanted)
    if isinstance(wanted, pa.ListType):
        inner = shaping(found.value_type, wanted.value_type)
        return lambda array: _with_values(array, inner(array.values), wanted)
    return lambda array: array.cast(wanted)


def _struct_shaping(found: Any, wanted: Any) -> Convert:
    fields = list(wanted)
    places = [found.get_field_index(field.name) for field in fields]
    if -1 in places:  # the two fields of a map's entries
        places = list(range(len(fields)))
    parts = [shaping(found.field(place).type, field.type) for place, field in zip(places, fields, strict=True)]

    def convert(array: Array) -> Array:
        children = [part(array.field(place)) for part, place in zip(parts, places, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert


def _with_values(array: Array, values: Array, wanted: Any) -> Array:
    return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values])
