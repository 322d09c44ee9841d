# SPDX-License-Identifier: Apache-2.0
"""An output of records in one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv
from pyarrow import parquet

from tidemark.client.outputs.typed_json import json_column
from tidemark.client.records import PartitionBatch

_GROUP_BYTES: Final = 16 << 20
"""Buffered rows of a Parquet file that become one row group."""
_DAY_US: Final = 86_400_000_000
_FAR_DAYS: Final = 2_900_000
"""Nearly 8,000 years. Arrow keeps a year in 16 bits."""
RowsOf = Callable[[PartitionBatch], pa.RecordBatch]
"""The rows to write, in the schema of the output."""


class Sink(ABC):
    """Writes records to a file in one format."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @abstractmethod
    def show(self, batch: PartitionBatch) -> None:
        """Write, or buffer, the rows of one partition; raises INVALID_REQUEST for text that is not UTF-8."""

    def flush(self) -> None:
        """Make written rows visible to readers, as far as the format allows."""
        self._file.flush()

    def close(self) -> None:
        """Complete the output; no more rows are written."""
        self._file.flush()


class CsvSink(Sink):
    """Writes rows of CSV after a header row."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, delimiter: str, rows_of: RowsOf) -> None:
        super().__init__(file)
        self._rows_of = rows_of
        self._writer = pa_csv.CSVWriter(file, schema, write_options=pa_csv.WriteOptions(delimiter=delimiter))
        self._as_text = pa_csv.WriteOptions(delimiter=delimiter, include_header=False)

    def show(self, batch: PartitionBatch) -> None:
        """Write the rows as CSV."""
        rows = self._rows_of(batch)
        columns = [_text_of_far_times(column) for column in rows.columns]
        if all(made is column for made, column in zip(columns, rows.columns, strict=True)):
            self._writer.write_batch(rows)
        else:
            pa_csv.write_csv(pa.RecordBatch.from_arrays(columns, rows.schema.names), self._file, self._as_text)

    def close(self) -> None:
        """Write the rows that are still buffered."""
        self._writer.close()
        super().close()


class ParquetSink(Sink):
    """Writes a Parquet file, which is readable after `close`."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, rows_of: RowsOf) -> None:
        super().__init__(file)
        self._schema = schema
        self._rows_of = rows_of
        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0

    def show(self, batch: PartitionBatch) -> None:
        """Buffer the rows up to a row group."""
        rows = self._rows_of(batch)
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._write()

    def flush(self) -> None:
        """Do nothing: a Parquet file is readable only after its footer is written."""

    def close(self) -> None:
        """Write the buffered rows and the footer."""
        self._write()
        self._writer.close()
        self._file.flush()

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0


def _text_of_far_times(column: Any) -> Any:
    """Convert dates or times that Arrow would write with another year into a column of texts; else return the same
    column.
    """
    if not pa.types.is_temporal(column.type):
        return column
    is_date = column.type.bit_width == 32
    numbers = column.view(pa.int32() if is_date else pa.int64())
    bounds, limit = pc.min_max(numbers), _FAR_DAYS * (1 if is_date else _DAY_US)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest is None or (-limit < lowest and highest < limit):
        return column
    near, exact = column.cast(pa.string()).to_pylist(), json_column(column)
    texts = [
        one if number is None or -limit < number < limit else text.replace("T", " ")
        for number, one, text in zip(numbers.to_pylist(), near, exact, strict=True)
    ]
    return pa.array(texts, pa.string())
