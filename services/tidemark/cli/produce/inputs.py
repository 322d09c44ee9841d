# SPDX-License-Identifier: Apache-2.0
"""Input formats of `produce`: lines, JSON lines, CSV and Parquet, as rows of key, value, timestamp and headers.

Rows are yielded in chunks of about a megabyte, as soon as they arrive. So rows of a pipe are sent when they are
written, and a file of any size needs the memory of one chunk. Malformed input raises an error with its place, after the
rows before it.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv
from pyarrow import parquet

from tidemark.client.outputs.record_format import microseconds
from tidemark.client.serializers import to_json
from tidemark.client.units import UNITS_US
from tidemark.model import TidemarkError, invalid_request
from tidemark.record.schema import HEADERS_TYPE, SCHEMA, TIMESTAMP_TYPE

_BLOCK_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 16 << 20
"""Limit of a line of the input: more than the largest batch."""
_PARQUET_ROWS: Final = 10_000
_NO_TIME: Final = "outside of the range of times: --timestamp-unit names another unit"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_Record = tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes | None]]]
"""Key, value, timestamp and headers of a record."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table, or members of a JSON object, that make a record.

    Attributes:
        key: column of the key; records have null keys if this is None.
        value: column of the value; the value is the whole row or line as JSON if this is None.
        timestamp: column of the timestamp; the timestamp is the time of sending if this is None.
        timestamp_unit: unit of a numeric timestamp since 1970: "s", "ms" or "us".
    """

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    timestamp_unit: str = "us"


def line_blocks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Lines without newlines, in blocks of one read each; the newline of the last line is optional.

    Raises:
        TidemarkError: INVALID_REQUEST for a line that is longer than the largest record.
    """
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    rest: list[bytes] = []
    rest_bytes = number = 0
    while block := read(_BLOCK_BYTES):
        first, newline, others = block.partition(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if rest_bytes > LINE_BYTES_MAX:
            raise invalid_request(f"line {number + 1} has more than {LINE_BYTES_MAX >> 20} MiB: too large for a record")
        if not newline:
            continue
        lines = [b"".join(rest), *others.split(b"\n")]
        rest = [lines.pop()]
        rest_bytes = len(rest[0])
        number += len(lines)
        yield lines
    if rest_bytes:
        yield [b"".join(rest)]


def text_chunks(file: BinaryIO, key_separator: str) -> Iterator[pa.RecordBatch]:
    """One record per line; with a separator, the key ends at the first separator.

    Raises:
        TidemarkError: INVALID_REQUEST for a line without the separator.
    """
    separator = key_separator.encode()
    number = 0
    for lines in line_blocks(file):
        if not separator:
            yield _rows(None, lines, None)
            continue
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        wrong = False
        for line in lines:
            number += 1
            key, found, value = line.partition(separator)
            if not found:
                wrong = True
                break
            keys.append(key)
            values.append(value)
        if keys:
            yield _rows(keys, values, None)
        if wrong:
            raise invalid_request(
                f"line {number} has no key separator {key_separator!r}: expected KEY{key_separator}VALUE"
            )


def json_chunks(file: BinaryIO, columns: Columns) -> Iterator[pa.RecordBatch]:
    """One JSON document per line; empty lines are skipped.

    Raises:
        TidemarkError: INVALID_REQUEST for a line that is not JSON, or lacks a required member.
    """
    number = 0
    for lines in line_blocks(file):
        records: list[_Record] = []
        refused: TidemarkError | None = None
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                records.append(_json_record(line, columns))
            except ValueError as error:
                refused = invalid_request(f"line {number}: {error}")
                break
        if records:
            keys, values, stamps, headers = (list(column) for column in zip(*records, strict=True))
            yield _rows(
                keys if columns.key is not None else None,
                values,
                stamps if columns.timestamp is not None else None,
                headers if any(headers) else None,
            )
        if refused is not None:
            raise refused


def _json_record(line: bytes, columns: Columns) -> _Record:
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON: {error.msg} at column {error.colno}; expected a JSON document in each line"
        ) from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not UTF-8") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(document, dict) and (columns.key, columns.value, columns.timestamp) != (None, None, None):
        raise ValueError(f"not a JSON object with {columns.key or columns.value or columns.timestamp!r}")
    key = _member(document, columns.key) if columns.key is not None else None
    value = _member(document, columns.value) if columns.value is not None else line.strip()
    stamp = _stamp_us(document, columns) if columns.timestamp is not None else None
    headers = headers_of(document) if columns.value is not None else []
    return key, value, stamp, headers


def _member(document: Mapping[str, Any], name: str) -> bytes | None:
    """A member as bytes: text unchanged, null as None, other values as JSON; or the decoded NAME_base64."""
    if name not in document:
        try:
            return base64.b64decode(document[f"{name}_base64"], validate=True)
        except (binascii.Error, TypeError):
            raise ValueError(f"{name}_base64 is not base64") from None
        except KeyError:
            raise ValueError(f"no member {name!r}, only {', '.join(document) or 'none'}") from None
    return _as_bytes(document[name])


def _as_bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _json_of(value)


def _stamp_us(document: Mapping[str, Any], columns: Columns) -> int:
    name = columns.timestamp or ""
    value = document.get(name)
    if isinstance(value, str):
        try:
            return microseconds(datetime.fromisoformat(value))
        except ValueError:
            raise ValueError(f"{name} is {value!r}, not a time such as 2013-01-01T05:00:00Z") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        us = value * UNITS_US[columns.timestamp_unit]
        if not -(1 << 63) <= us < 1 << 63:  # also for NaN
            raise ValueError(f"{name!r} is a number {_NO_TIME}")
        return round(us)
    raise ValueError(
        f"{name!r} is {'missing' if value is None else value}: expected a time, or a number of units since 1970"
    )


def headers_of(document: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Headers in the form that `consume` prints; another value of "headers" is ignored."""
    found = document.get("headers")
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in found
    ):
        return []
    return [(one["name"], _member(one, "value")) for one in found]


def csv_chunks(file: BinaryIO, columns: Columns, *, delimiter: str, strings: bool) -> Iterator[pa.RecordBatch]:
    """One record per row; the first row names the columns. Quoted cells may contain newlines.

    Raises:
        TidemarkError: INVALID_REQUEST for a row that does not fit, or a missing column.
    """
    header = file.readline(LINE_BYTES_MAX + 1)
    if len(header) > LINE_BYTES_MAX:
        raise invalid_request(f"line 1 has more than {LINE_BYTES_MAX >> 20} MiB: too large for the names of columns")
    header = header.removeprefix(BYTE_ORDER_MARK)
    if not header:
        return
    try:
        names = next(csv.reader([header.decode()], delimiter=delimiter))
    except UnicodeDecodeError:
        raise invalid_request("line 1 does not name the columns: not UTF-8") from None
    except (csv.Error, StopIteration) as error:
        raise invalid_request(f"line 1 does not name the columns: {error}") from None
    _check_columns(names, columns)
    types: dict[str, pa.DataType] = {name: pa.binary() for name in (columns.key, columns.value) if name is not None}
    if strings:
        types = {name: pa.string() for name in names if name != columns.timestamp} | types
    try:
        reader = pa_csv.open_csv(
            file,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False, column_names=names),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=types),
        )
        for batch in reader:
            yield _shaped(batch, columns)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        more = "" if strings else "; if the cells of a column differ in type, --strings reads all of them as text"
        raise invalid_request(
            f"the CSV cannot be read (rows are counted after the first line): {error}{more}"
        ) from error


def parquet_chunks(file: BinaryIO, columns: Columns) -> Iterator[pa.RecordBatch]:
    """One record per row.

    Raises:
        TidemarkError: INVALID_REQUEST for a file that is not Parquet, or a missing column.
    """
    for batch in parquet_batches(file):
        try:
            rows = _shaped(batch, columns)
        except pa.ArrowException as error:
            raise invalid_request(f"the Parquet file cannot be read: {error}") from error
        yield rows


def parquet_batches(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The rows unchanged. A pipe is copied into a temporary file first, since Parquet's metadata is at the end.

    Raises:
        TidemarkError: INVALID_REQUEST for a file that is not Parquet.
    """
    with tempfile.TemporaryFile() as spool:
        source: Any = file
        if not file.seekable():
            while block := file.read(_BLOCK_BYTES):
                spool.write(block)
            spool.seek(0)
            source = spool
        try:
            yield from parquet.ParquetFile(source).iter_batches(batch_size=_PARQUET_ROWS)
        except (pa.ArrowException, OSError) as error:
            raise invalid_request(f"the Parquet file cannot be read: {error}") from error


def _shaped(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """Rows in SCHEMA; timestamps are null without a timestamp column, and the producer sets them."""
    names = batch.schema.names
    _check_columns(names, columns)
    keys = None if columns.key is None else _binary(batch, columns.key)
    if columns.value is None:
        values: Any = pa.array([_json_of(row) for row in batch.to_pylist()], pa.binary())
    else:
        values = _binary(batch, columns.value)
    stamps = None if columns.timestamp is None else _times(batch, columns)
    headers: Any = None
    if columns.value is not None and "headers" in names and pa.types.is_map(batch.schema.field("headers").type):
        headers = batch.column("headers").cast(HEADERS_TYPE)
    return _rows(keys, values, stamps, headers)


def _check_columns(names: list[str], columns: Columns) -> None:
    for wanted in (columns.key, columns.value, columns.timestamp):
        if wanted is not None and wanted not in names:
            raise invalid_request(f"there is no column {wanted!r}, only {', '.join(names)}")
    used = (columns.key, columns.value, columns.timestamp)
    for name in names:
        if (columns.value is None or name in used) and names.count(name) > 1:
            raise invalid_request(f"there are {names.count(name)} columns {name!r}: give each column a name of its own")


def _binary(batch: pa.RecordBatch, name: str) -> Any:
    column: Any = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type):
        return pa.array([None if one is None else _json_of(one) for one in column.to_pylist()], pa.binary())
    plain = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.binary()) if plain else column.cast(pa.string()).cast(pa.binary())


def _times(batch: pa.RecordBatch, columns: Columns) -> Any:
    assert columns.timestamp is not None
    column: Any = batch.column(columns.timestamp)
    if column.null_count:
        raise invalid_request(
            f"column {columns.timestamp!r} has {column.null_count} empty cells: each record needs a time"
        )
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        try:
            return _scaled(column, UNITS_US[columns.timestamp_unit]).cast(TIMESTAMP_TYPE)
        except pa.ArrowInvalid:
            raise invalid_request(f"column {columns.timestamp!r} has a number {_NO_TIME}") from None
    try:
        return column.cast(TIMESTAMP_TYPE)
    except pa.ArrowException as error:
        raise invalid_request(f"column {columns.timestamp!r} has no timestamps: {error}") from error


def _scaled(numbers: Any, factor: int) -> Any:
    """The products as int64, rounded; raises ArrowInvalid for one that does not fit."""
    if pa.types.is_integer(numbers.type):
        return pc.multiply_checked(numbers.cast(pa.int64()), pa.scalar(factor, pa.int64()))
    fine = pc.multiply(numbers.cast(pa.float64()), pa.scalar(float(factor), pa.float64()))
    return pc.round(fine).cast(pa.int64())


def _json_of(value: object) -> bytes:
    try:
        return to_json(value)
    except (TypeError, ValueError) as error:
        raise invalid_request(f"a value cannot be written as JSON: {error}") from None


def _rows(keys: Any, values: Any, stamps: Any, headers: Any = None) -> pa.RecordBatch:
    """Rows in SCHEMA of lists or arrays; None is a column of nulls."""
    columns: list[Any] = []
    for column, field in zip((keys, values, stamps, headers), SCHEMA, strict=True):
        if column is None:
            column = pa.nulls(len(values), field.type)
        columns.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
