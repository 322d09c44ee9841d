# SPDX-License-Identifier: Apache-2.0
"""Output of the records of a typed topic: JSON lines, CSV, or Parquet with the topic's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.client.outputs.record_format import moment, named_bytes, named_headers
from tidemark.client.outputs.shape import OutputOptions, Shape
from tidemark.client.outputs.sink import CsvSink, ParquetSink, Sink
from tidemark.client.outputs.typed_json import columns_of, encode_json, json_column, json_rows
from tidemark.client.records import PartitionBatch
from tidemark.client.typed.batch_rows import OF_RECORDS, SYSTEM_COLUMNS, BatchRows
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import invalid_request

_CSV_BEFORE: Final = ("_partition", "_offset", "_timestamp")
_PARQUET_BEFORE: Final = (*_CSV_BEFORE, "_key")
_PARQUET_AFTER: Final = ("_headers",)
_NEEDED: Final = ("_offset", "_deleted")
"""System columns that every output reads."""
_PARTITION: Final = pa.field("_partition", pa.int32(), nullable=False)
_compute: Any = pc
_Line = Callable[[PartitionBatch], list[str]]


def columns_to_read(options: OutputOptions) -> list[str] | None:
    """The columns to ask brokers for; None: all of the topic, and OF_RECORDS."""
    named = options.named_columns
    if named is None:
        return None
    match options.shape:
        case Shape.JSON:
            beside: tuple[str, ...] = OF_RECORDS
        case Shape.TEXT if options.key_separator:
            beside = (*_NEEDED, "_key")
        case _:
            beside = _NEEDED
    return list(dict.fromkeys((*named, *beside)))


def reader_of(options: OutputOptions, versions: Mapping[int, TopicSchema]) -> BatchRows | None:
    """Reads the batches of the topic for these options; None for a topic without a schema.

    A table keeps the version of its beginning; lines have the newest version.

    Raises:
        TidemarkError: INVALID_REQUEST: no such column, or the topic has none; UNKNOWN_SCHEMA_VERSION.
    """
    if not versions:
        if options.named_columns is not None:
            sentence = f"topic {options.topic} has no schema, so its records have no columns: omit the columns"
            raise invalid_request(sentence)
        if options.schema_version is not None:
            sentence = f"topic {options.topic} has no schema, and so no schema versions: omit the version"
            raise invalid_request(sentence)
        return None
    version = version_to_read(options, max(versions))
    return BatchRows(options.topic, versions, columns_to_read(options), dictionaries=False, version=version)


def version_to_read(options: OutputOptions, newest: int) -> int | None:
    """The version of all rows; None: always the newest."""
    is_table = options.shape in (Shape.CSV, Shape.PARQUET)
    return newest if options.schema_version is None and is_table else options.schema_version


def next_offset(rows: pa.RecordBatch) -> int:
    """The offset after the last of these rows, of any topic."""
    offsets: Any = rows.column("_offset" if "_offset" in rows.schema.names else "offset")
    last: int = offsets[rows.num_rows - 1].as_py()
    return last + 1


def names_to_write(options: OutputOptions, schema: pa.Schema) -> list[str]:
    """The columns of the output, in order; columns of the topic as `schema` has them.

    Args:
        options: output options; they may name columns.
        schema: schema of the rows that are read.
    """
    of_topic = columns_of(schema)
    if options.shape is Shape.JSON:  # the record has the other columns
        return of_topic
    if options.named_columns is not None:
        system = [name for name in dict.fromkeys(options.named_columns) if name in SYSTEM_COLUMNS]
        return [*of_topic, *system]
    match options.shape:
        case Shape.CSV:
            return [*_CSV_BEFORE, *of_topic]
        case Shape.PARQUET:
            return [*_PARQUET_BEFORE, *of_topic, *_PARQUET_AFTER]
        case _:
            return of_topic


class TypedLines(Sink):
    """Writes a line of JSON for each row."""

    def __init__(self, file: BinaryIO, line: _Line) -> None:
        super().__init__(file)
        self._lines = line

    def show(self, batch: PartitionBatch) -> None:
        """Write the lines of the rows."""
        self._file.write("".join(f"{line}\n" for line in self._lines(batch)).encode())


def open_typed_sink(file: BinaryIO, options: OutputOptions, schema: pa.Schema) -> Sink:
    """The sink for the format of the output.

    Args:
        file: open for writing.
        options: the format, and names of columns.
        schema: schema of the rows that are read, without dictionaries.
    """
    if "_partition" not in schema.names:
        schema = schema.append(_PARTITION)
    match options.shape:
        case Shape.JSON:
            return TypedLines(file, lambda batch: _json_lines(batch, options))
        case Shape.TEXT:
            return TypedLines(file, lambda batch: _text_lines(batch, options))
        case Shape.CSV:
            written = _of(schema, names_to_write(options, schema))
            plain = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in written])
            return CsvSink(file, plain, options.delimiter, lambda batch: _csv_rows(batch, written, plain))
        case Shape.PARQUET:
            written = _of(schema, names_to_write(options, schema))
            return ParquetSink(file, written, lambda batch: _written(batch, written))


def _of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


# -- lines -------------------------------------------------------------------------------------------------------------


def _values(batch: PartitionBatch, options: OutputOptions) -> list[dict[str, Any] | None]:
    """The rows as JSON objects; None for a deleted row."""
    rows = _with_partition(batch, batch.rows)
    found = json_rows(rows, names_to_write(options, rows.schema))
    deleted = batch.rows.column("_deleted").to_pylist()
    return [None if gone else row for row, gone in zip(found, deleted, strict=True)]


def _text_lines(batch: PartitionBatch, options: OutputOptions) -> list[str]:
    lines = ["null" if row is None else encode_json(row) for row in _values(batch, options)]
    if not options.key_separator:
        return lines
    keys: list[Any] = batch.rows.column("_key").to_pylist()
    return [
        f"{(key or b'').decode(errors='backslashreplace')}{options.key_separator}{line}"
        for key, line in zip(keys, lines, strict=True)
    ]


def _json_lines(batch: PartitionBatch, options: OutputOptions) -> list[str]:
    rows = batch.rows
    columns = [rows.column(name) for name in ("_offset", "_timestamp", "_key", "_headers")]
    columns[1] = columns[1].cast(pa.int64())
    lists: list[list[Any]] = [column.to_pylist() for column in columns]
    values = _values(batch, options)
    return [
        encode_json(_document(batch, offset, timestamp_us, key, headers, value))
        for offset, timestamp_us, key, headers, value in zip(*lists, values, strict=True)
    ]


def _document(
    batch: PartitionBatch, offset: int, timestamp_us: int, key: bytes | None, headers: Any, value: Any
) -> Mapping[str, object]:
    when = moment(timestamp_us)
    return {
        "topic": batch.topic,
        "partition": batch.partition,
        "offset": offset,
        "timestamp_us": timestamp_us,
        **({} if when is None else {"timestamp": when}),
        **named_bytes("key", key),
        "value": value,
        "headers": named_headers(headers),
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def _with_partition(batch: PartitionBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    if "_partition" in rows.schema.names:
        return rows
    column = pa.repeat(pa.scalar(batch.partition, pa.int32()), rows.num_rows)
    return rows.append_column(_PARTITION, column)


def _written(batch: PartitionBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows that are not deleted, in `schema`; raises INVALID_REQUEST if they no longer fit."""
    deleted: Any = batch.rows.column("_deleted")
    kept = batch.rows.filter(_compute.invert(deleted)) if pc.any(deleted).as_py() else batch.rows
    rows = _with_partition(batch, kept)
    try:
        columns = [_as_type(rows.column(field.name), field.type) for field in schema]
    except (pa.ArrowException, KeyError) as error:
        raise invalid_request(
            f"the schema of {batch.topic} has changed, and {batch.topic}-{batch.partition} has rows that no longer fit "
            f"this output: {error}; run the command again for the new columns"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_type(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type.equals(wanted) else column.cast(wanted)


def _csv_rows(batch: PartitionBatch, schema: pa.Schema, plain: pa.Schema) -> pa.RecordBatch:
    """Cells of text. Nested values are JSON, binary ones base64; deleted rows are omitted."""
    rows = _written(batch, schema)
    cells = [_csv_cells(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(cells, schema=plain)


def _csv_type(data_type: Any) -> pa.DataType:
    nested = pa.types.is_nested(data_type) or pa.types.is_binary(data_type)
    return pa.string() if nested else data_type


def _csv_cells(column: Any, data_type: Any) -> Any:
    if _csv_type(data_type) == data_type:
        return column
    made = json_column(column)
    return pa.array([one if one is None or isinstance(one, str) else encode_json(one) for one in made], pa.string())
