"""A topic's rows as the columns of Spark's Kafka source. Pure, and without copying keys or values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemark_spark.ranges import OffsetRange

CREATE_TIME = 0
LOG_APPEND_TIME = 1

_HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS_TYPE = pa.list_(pa.field("element", _HEADER_TYPE))


def to_columns(
    records: pa.RecordBatch, offsets: OffsetRange, *, timestamp_type: int, with_headers: bool
) -> pa.RecordBatch:
    """Spark's columns for rows with `key`, `value`, `timestamp`, `headers` and `offset`.

    Args:
        records: rows of one partition.
        offsets: names the topic and partition.
        timestamp_type: CREATE_TIME or LOG_APPEND_TIME.
        with_headers: adds the column `headers`.
    """
    count = records.num_rows
    columns: dict[str, pa.Array[Any]] = {
        "key": records.column("key"),
        "value": records.column("value"),
        "topic": pa.repeat(offsets.topic, count),
        "partition": pa.array(np.full(count, offsets.partition, np.int32)),
        "offset": records.column("offset"),
        "timestamp": records.column("timestamp"),
        "timestampType": pa.array(np.full(count, timestamp_type, np.int32)),
    }
    if with_headers:
        columns["headers"] = _headers(records.column("headers"))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _headers(maps: pa.Array[Any]) -> pa.Array[Any]:
    """Maps as lists of (key, value): other names of the same fields."""
    return maps.cast(_HEADERS_TYPE)
