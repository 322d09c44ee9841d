# SPDX-License-Identifier: Apache-2.0
"""Decodes values to the columns of a job: text, JSON and Arrow by a schema. Pure; whole columns at a time.

All values of a batch are parsed together; only after an error, bisection finds the malformed values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as pa_json

from tidemark_spark.columns import Malformed, ValueFormat

# pyarrow's type stubs lack binary columns here.
pc: Any = importlib.import_module("pyarrow.compute")

_JOINED_BYTES_MAX: Final = 1 << 30
"""Largest number of bytes to parse together, since pyarrow's offsets have 32 bits."""
_TOLD_BYTES_MAX: Final = 60


class MalformedValueError(ValueError):
    """A value is not in its format, or does not fit its schema."""


def decode(
    values: pa.Array[Any],
    offsets: pa.Array[Any],
    *,
    value_format: ValueFormat,
    value_type: pa.DataType,
    malformed: Malformed,
    where: str,
) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Decoded values, and dead letters: the bytes of malformed values, else null.

    Args:
        values: binary; a null stays null and is never malformed.
        offsets: offset of each record, for errors.
        value_format: format of the values.
        value_type: string for STRING; a struct for JSON; for ARROW a list of structs, the rows of a value.
        malformed: policy for malformed values.
        where: name of the partition, for errors.

    Raises:
        MalformedValueError: names the first malformed record, if the policy is FAIL.
    """
    parse = _PARSERS[value_format]
    present = values.is_valid()
    try:
        if not values.null_count:
            return _parsed(parse, values, value_type), pa.nulls(len(values), pa.binary())
        bad: list[int] = []
        found = _parsed(parse, values.drop_null(), value_type)
    except pa.ArrowException as error:
        kept = pc.indices_nonzero(present).to_pylist()
        bad = [kept[index] for index in _malformed(parse, values.drop_null(), value_type)]
        if malformed is Malformed.FAIL:
            raise _refusal(values, offsets, bad[0], value_format, value_type, where, error) from None
        wrong = _mask(len(values), bad)
        present = pc.and_not(present, wrong)
        remaining = values.filter(present)
        found = _parsed(parse, remaining, value_type)
    places = pc.if_else(present, pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1), None)
    letters = pc.if_else(_mask(len(values), bad), values, pa.scalar(None, pa.binary()))
    return found.take(places), letters


Parser = Callable[["pa.Array[Any]", pa.DataType], "pa.Array[Any]"]


def _parsed(parse: Parser, values: pa.Array[Any], value_type: pa.DataType) -> pa.Array[Any]:
    """Parse all values; raises pa.ArrowException if any is malformed."""
    try:
        found = parse(values, value_type)
        found.validate(full=True)
    except (OSError, KeyError, MemoryError, UnicodeDecodeError) as error:  # of a damaged Arrow stream
        raise pa.ArrowInvalid(str(error)) from error
    return found


def _malformed(parse: Parser, values: pa.Array[Any], value_type: pa.DataType) -> list[int]:
    """Indices of malformed values, ascending."""
    bad = []
    pending = [(0, len(values))]
    while pending:
        start, end = pending.pop()
        try:
            _parsed(parse, values.slice(start, end - start), value_type)
        except pa.ArrowException:
            if end - start == 1:
                bad.append(start)
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
    return bad


def _mask(length: int, indices: list[int]) -> pa.Array[Any]:
    flags = bytearray(length)
    for index in indices:
        flags[index] = 1
    found: pa.Array[Any] = pc.not_equal(pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(flags)]), 0)
    return found


def _refusal(
    values: pa.Array[Any],
    offsets: pa.Array[Any],
    index: int,
    value_format: ValueFormat,
    value_type: pa.DataType,
    where: str,
    error: Exception,
) -> MalformedValueError:
    shown = bytes(values[index].as_py()[:_TOLD_BYTES_MAX])
    cause = str(error).split("\n", maxsplit=1)[0]
    return MalformedValueError(
        f"{where}: the value at offset {offsets[index].as_py()}, {shown!r}, is not {value_format} of {value_type} "
        f"({cause}); option malformedValues=null or deadLetter continues the read"
    )


def _string(values: pa.Array[Any], value_type: pa.DataType) -> pa.Array[Any]:
    return values.cast(value_type)


def _json(values: pa.Array[Any], value_type: pa.DataType) -> pa.Array[Any]:
    """Wrap each value in a list in an object, one per line, so a value makes a list of one item or is malformed."""
    if not len(values):
        return pa.array([], value_type)
    if values.nbytes > _JOINED_BYTES_MAX and len(values) > 1:
        middle = len(values) // 2
        halves = [_json(values.slice(0, middle), value_type), _json(values.slice(middle), value_type)]
        return pa.concat_arrays(halves)
    # Created here: pa.scalar imports pandas, which a task that reads bytes does not need.
    opening, closing, nothing, newline = (pa.scalar(text, pa.binary()) for text in (b'{"v":[', b"]}", b"", b"\n"))
    lines = pc.binary_join_element_wise(opening, values, closing, nothing)
    ends = pa.array([0, len(values)], pa.int32())
    text = pc.binary_join(pa.ListArray.from_arrays(ends, lines), newline)[0].as_buffer()
    source: Any = pa.BufferReader(text)
    table = pa_json.read_json(
        source,
        read_options=pa_json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", pa.list_(_parsed_as(value_type)))]),
            unexpected_field_behavior="ignore",
        ),
    )
    lists: Any = pa.concat_arrays(table.column(0).chunks)
    if len(lists) != len(values) or not pc.all(pc.equal(pc.list_value_length(lists), 1)).as_py():
        raise pa.ArrowInvalid("a value is not one JSON document")
    found: pa.Array[Any] = lists.flatten()
    return found if found.type == value_type else found.cast(value_type)


def _parsed_as(kind: pa.DataType) -> pa.DataType:
    """Type of pyarrow's JSON reader for a type: dates and times are parsed as text."""
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _parsed_as(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(pa.field(kind.value_field.name, _parsed_as(kind.value_type)))
    return kind


def _arrow(values: pa.Array[Any], value_type: pa.DataType) -> pa.Array[Any]:
    """Parse each value as an Arrow IPC stream; its rows become a list. Columns match by name."""
    assert isinstance(value_type, pa.ListType)
    wanted = value_type.value_type
    assert isinstance(wanted, pa.StructType)
    ends, parts = [0], []
    for value in values:
        content = pa.BufferReader(value.as_buffer())
        with pa.ipc.open_stream(content) as stream:
            table = stream.read_all()
            if content.read().strip(b"\0"):  # a second stream, whose rows would be lost
                raise pa.ArrowInvalid("more bytes behind the end of the Arrow stream")
        table.validate(full=True)
        missing = [field.name for field in wanted if field.name not in table.schema.names]
        if missing:
            raise pa.ArrowInvalid(f"no column {missing[0]!r}, only {table.schema.names}")
        for batch in table.to_batches():
            columns = [batch.column(field.name).cast(field.type) for field in wanted]
            parts.append(pa.StructArray.from_arrays(columns, fields=list(wanted)))
        ends.append(ends[-1] + table.num_rows)
    rows = pa.concat_arrays(parts) if parts else pa.array([], wanted)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), rows).cast(value_type)


_PARSERS: Final[dict[ValueFormat, Parser]] = {
    ValueFormat.STRING: _string,
    ValueFormat.JSON: _json,
    ValueFormat.ARROW: _arrow,
}


def check_type(value_format: ValueFormat, value_type: pa.DataType) -> None:
    """Check that values of this format can have this type; ValueError names the option and the type."""
    if value_format is ValueFormat.JSON:
        if not isinstance(value_type, pa.StructType):
            raise ValueError(f"valueFormat=json gives a struct; the schema states {value_type} for the column 'value'")
        _check_json(value_type, "value")
    if value_format is ValueFormat.ARROW:
        rows = value_type.value_type if isinstance(value_type, pa.ListType) else None
        if not isinstance(rows, pa.StructType):
            raise ValueError(
                f"valueFormat=arrow gives an array of structs, the rows of a value; the schema states {value_type}"
            )


def _check_json(kind: pa.DataType, path: str) -> None:
    if isinstance(kind, pa.StructType):
        for field in kind:
            _check_json(field.type, f"{path}.{field.name}")
    elif isinstance(kind, pa.ListType):
        _check_json(kind.value_type, path)
    elif isinstance(kind, pa.MapType) or pa.types.is_duration(kind):
        raise ValueError(
            f"option 'valueSchema': {path} is {kind}, which valueFormat=json does not read. Give the fields of an "
            "object, or read it as a string and parse it with from_json"
        )
