# SPDX-License-Identifier: Apache-2.0
"""Output of records without a schema: lines, JSON lines, CSV and Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, Final

import pyarrow as pa

from tidemark.client.outputs.record_format import record_json, record_text
from tidemark.client.outputs.shape import OutputOptions, Shape
from tidemark.client.outputs.sink import CsvSink, ParquetSink, Sink
from tidemark.client.outputs.typed_rows import open_typed_sink
from tidemark.client.records import PartitionBatch, records_of
from tidemark.model import invalid_request
from tidemark.record.schema import OFFSET_SCHEMA

_TABLE_FIELDS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
_CSV_FIELDS: Final = _TABLE_FIELDS[:-1]
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode


class Lines(Sink):
    """Writes a line of text for each record."""

    def __init__(self, file: BinaryIO, line: Callable[[Any], bytes]) -> None:
        super().__init__(file)
        self._line = line

    def show(self, batch: PartitionBatch) -> None:
        """Write the lines of the records."""
        lines = [self._line(record) for record in records_of(*batch)]
        lines.append(b"")
        self._file.write(b"\n".join(lines))


def open_sink(file: BinaryIO, options: OutputOptions, typed: pa.Schema | None = None) -> Sink:
    """The sink for the format of the output; `typed`: Arrow schema of the rows of a typed topic."""
    if typed is not None:
        return open_typed_sink(file, options, typed)
    match options.shape:
        case Shape.JSON:
            return Lines(file, lambda record: _encode(record_json(record)).encode())
        case Shape.CSV:
            schema = _table_schema(strings=True, fields=_CSV_FIELDS)
            return CsvSink(file, schema, options.delimiter, partial(_table_rows, strings=True, fields=_CSV_FIELDS))
        case Shape.PARQUET:
            schema = _table_schema(strings=options.strings, fields=_TABLE_FIELDS)
            return ParquetSink(file, schema, partial(_table_rows, strings=options.strings, fields=_TABLE_FIELDS))
        case Shape.TEXT:
            return Lines(file, lambda record: record_text(record, options.key_separator))


def _table_schema(*, strings: bool, fields: tuple[str, ...]) -> pa.Schema:
    types: dict[str, pa.DataType] = {"partition": pa.int32()}
    types |= {name: OFFSET_SCHEMA.field(name).type for name in ("offset", "timestamp", "headers")}
    types |= dict.fromkeys(("key", "value"), pa.string() if strings else pa.binary())
    return pa.schema([pa.field(name, types[name]) for name in fields])


def _table_rows(batch: PartitionBatch, *, strings: bool, fields: tuple[str, ...]) -> pa.RecordBatch:
    rows = batch.rows
    columns: dict[str, Any] = {name: rows.column(name) for name in ("offset", "timestamp", "key", "value", "headers")}
    columns["partition"] = pa.repeat(pa.scalar(batch.partition, pa.int32()), rows.num_rows)
    if strings:
        for name in ("key", "value"):
            try:
                columns[name] = columns[name].cast(pa.string())
            except pa.ArrowInvalid:
                raise invalid_request(
                    f"{batch.topic}-{batch.partition}: a {name} from offset {columns['offset'][0].as_py()} on is not "
                    "UTF-8: use --output json, or parquet without --strings"
                ) from None
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in fields], schema=_table_schema(strings=strings, fields=fields)
    )
