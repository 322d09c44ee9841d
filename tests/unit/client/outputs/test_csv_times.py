# SPDX-License-Identifier: Apache-2.0
"""Dates and times in CSV, of any year."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from tidemark.client.outputs.sink import CsvSink
from tidemark.client.records import PartitionBatch


def _written(*batches: list[Any], data_type: Any) -> list[str]:
    file, schema = io.BytesIO(), pa.schema([pa.field("at", data_type), pa.field("n", pa.int32())])
    sink = CsvSink(file, schema, ",", lambda batch: batch.rows)
    for values in batches:
        columns: list[Any] = [pa.array(values, data_type), pa.array(range(len(values)), pa.int32())]
        sink.show(PartitionBatch("odd", 0, pa.RecordBatch.from_arrays(columns, schema=schema)))
    sink.close()
    return file.getvalue().decode().splitlines()


def test_a_time_of_any_year_is_exact() -> None:
    near, far = 1_357_016_400_000_000, -(2**62)
    assert _written([near], [far, None, near], [near], data_type=pa.timestamp("us", "UTC")) == [
        '"at","n"',
        "2013-01-01 05:00:00.000000Z,0",
        '"-144169-06-28 09:59:32.612096Z",0',
        ",1",
        '"2013-01-01 05:00:00.000000Z",2',
        "2013-01-01 05:00:00.000000Z,0",
    ]


def test_a_date_of_any_year_is_exact() -> None:
    assert _written([15706, None], [2**31 - 1], [None], data_type=pa.date32()) == [
        '"at","n"',
        "2013-01-01,0",
        ",1",
        '"+5881580-07-11",0',
        ",0",
    ]
