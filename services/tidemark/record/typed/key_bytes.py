# SPDX-License-Identifier: Apache-2.0
"""The key of a typed row as bytes: the same for equal values, in every schema version and from every client.

docs/formats.md ("Key bytes") has the rules. A key of one column has the bytes that Kafka's serializers make of it.
"""

from __future__ import annotations

import datetime
import decimal
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tidemark.model import UNIX_EPOCH

_EPOCH_DAY: Final = UNIX_EPOCH.toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_LENGTH_BYTES: Final = 4
_DECIMAL_BYTES: Final = 16
_TYPECODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_EXACT: Final = decimal.Context(prec=80)

Encoder = Callable[[Any], bytes]


def key_bytes(rows: pa.RecordBatch, key_columns: Sequence[str]) -> pa.Array[Any] | None:
    """The key of each row, binary, without nulls; None if there are no key columns.

    Args:
        rows: rows with at least the key columns, which may be dictionary-encoded.
        key_columns: names of the key columns, in the order of the key.
    """
    if not key_columns:
        return None
    columns = [_plain(rows.column(name)) for name in key_columns]
    parts: list[Any] = []
    for column in columns[:-1]:
        if _is_of_any_length(column.type):
            parts.append(_fixed(pc.binary_length(column).cast(pa.int32())))
        parts.append(_binary(column))
    parts.append(_binary(columns[-1]))
    join: Any = pc.binary_join_element_wise
    found: pa.Array[Any] = parts[0] if len(parts) == 1 else join(*parts, b"")
    return found


def key_encoder(key_types: Sequence[pa.DataType]) -> Callable[[Sequence[Any]], bytes]:
    """A function that encodes the key values of one row, in Python's types, exactly as `key_bytes` encodes a column."""
    encoders = [_encoder(found) for found in key_types]
    last = encoders[-1]
    if len(encoders) == 1:
        return lambda values: last(values[0])
    framed = [
        _with_length(one) if _is_of_any_length(found) else one for one, found in zip(encoders, key_types, strict=True)
    ]
    framed[-1] = last
    return lambda values: b"".join([one(value) for one, value in zip(framed, values, strict=True)])


def _is_of_any_length(found: pa.DataType) -> bool:
    return bool(types.is_string(found) or types.is_binary(found))


def _plain(column: Any) -> Any:
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _binary(column: Any) -> pa.Array[Any]:
    if _is_of_any_length(column.type):
        found: pa.Array[Any] = column.cast(pa.binary())
        return found
    return _fixed(column.cast(pa.int8()) if types.is_boolean(column.type) else column)


def _fixed(column: Any) -> pa.Array[Any]:
    """The values of a column of fixed width, big-endian."""
    width = column.type.bit_width // 8
    count = len(column)
    begin = column.offset * width
    data = memoryview(column.buffers()[1])[begin : begin + count * width] if count else memoryview(b"")
    if width == _DECIMAL_BYTES:
        halves = array("q", bytes(data))
        halves.byteswap()
        halves[0::2], halves[1::2] = halves[1::2], halves[0::2]
        swapped = halves
    else:
        swapped = array(_TYPECODES[width], bytes(data))
        swapped.byteswap()
    offsets = array("i", range(0, (count + 1) * width, width))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(swapped)])


def _encoder(found: Any) -> Encoder:
    if types.is_string(found):
        return str.encode
    if types.is_binary(found):
        return bytes
    if types.is_boolean(found):
        return lambda value: b"\1" if value else b"\0"
    if types.is_date32(found):
        return lambda value: (value.toordinal() - _EPOCH_DAY).to_bytes(4, "big", signed=True)
    if types.is_timestamp(found):
        return lambda value: ((value - UNIX_EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)
    if types.is_decimal(found):
        scale = found.scale
        return lambda value: int(_EXACT.scaleb(value, scale)).to_bytes(_DECIMAL_BYTES, "big", signed=True)
    width = found.bit_width // 8
    return lambda value: value.to_bytes(width, "big", signed=True)


def _with_length(encoder: Encoder) -> Encoder:
    def encode(value: Any) -> bytes:
        data = encoder(value)
        return len(data).to_bytes(_LENGTH_BYTES, "big") + data

    return encode
