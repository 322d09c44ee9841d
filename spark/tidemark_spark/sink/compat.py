# SPDX-License-Identifier: Apache-2.0
"""Differences between PySpark's versions for writers: streaming sinks with Arrow input exist since 4.1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

ROWS_A_BATCH: Final = 10_000
"""Spark's default size of Arrow batches."""

_arrow_base: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)


def batches_of_rows(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Record batches of the schema from the rows that PySpark 4.0 passes to a streaming sink.

    PySpark converts back what it made of Arrow's values: a timestamp is a datetime in the machine's time zone there.
    """
    while chunk := list(itertools.islice(rows, ROWS_A_BATCH)):
        yield from LocalDataToArrowConversion.convert(chunk, schema, False).to_batches()


class _StreamWriter:
    """The part that does not depend on PySpark's version."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    def write_arrow(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        raise AssertionError("subclasses implement this")


if TYPE_CHECKING or _arrow_base is not None:

    class StreamWriterBase(_StreamWriter, datasource.DataSourceStreamArrowWriter):
        """Base class of a stream writer; PySpark from 4.1 passes Arrow record batches to its tasks."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            """Write the record batches of one attempt of a task."""
            return self.write_arrow(iterator)
else:

    class StreamWriterBase(_StreamWriter, DataSourceStreamWriter):
        """PySpark 4.0: the input is rows, converted to Arrow."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            """Write one attempt of a task."""
            return self.write_arrow(batches_of_rows(iterator, self.schema))
