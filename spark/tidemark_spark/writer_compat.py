# SPDX-License-Identifier: Apache-2.0
"""What PySpark's versions differ in for writers, in one place: a streaming sink that is given Arrow came after 4.0."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

ROWS_A_BATCH: Final = 10_000
"""As Spark's own Arrow batches have by default."""

_arrow_base: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)


def batches_of_rows(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows, as PySpark 4.0 gives them to a streaming sink, as record batches of that schema."""
    wanted = to_arrow_schema(schema)
    while chunk := list(itertools.islice(rows, ROWS_A_BATCH)):
        columns = [
            pa.array([_plain(row[index]) for row in chunk], type=column.type) for index, column in enumerate(wanted)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain(value: Any) -> Any:
    """Rows within a row, those of headers, as what pyarrow understands."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return value.asDict() if hasattr(value, "asDict") else value


class _StreamWriter:
    """The half that does not depend on PySpark."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    def write_arrow(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        raise AssertionError("each writer says how")


if TYPE_CHECKING or _arrow_base is not None:

    class StreamWriterBase(_StreamWriter, datasource.DataSourceStreamArrowWriter):
        """PySpark from 4.1: Arrow comes in."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            """One attempt of one task, given record batches."""
            return self.write_arrow(iterator)
else:

    class StreamWriterBase(_StreamWriter, DataSourceStreamWriter):
        """PySpark 4.0: rows come in, and are made columns of again."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            """One attempt of one task."""
            return self.write_arrow(batches_of_rows(iterator, self.schema))
