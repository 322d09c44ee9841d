# SPDX-License-Identifier: Apache-2.0
"""An output of records in one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import BinaryIO, Final

import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow import parquet

from tidemark.client.records import PartitionBatch

_GROUP_BYTES: Final = 16 << 20
"""Buffered rows of a Parquet file that become one row group."""
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
        """Complete the output."""
        self._file.flush()


class CsvSink(Sink):
    """Rows after a header row."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, delimiter: str, rows_of: RowsOf) -> None:
        super().__init__(file)
        self._rows_of = rows_of
        self._writer = pa_csv.CSVWriter(file, schema, write_options=pa_csv.WriteOptions(delimiter=delimiter))

    def show(self, batch: PartitionBatch) -> None:
        """Write the rows."""
        self._writer.write_batch(self._rows_of(batch))

    def close(self) -> None:
        """Write the buffered rows."""
        self._writer.close()
        super().close()


class ParquetSink(Sink):
    """A table; readable after `close`."""

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

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0
