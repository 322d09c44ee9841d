# SPDX-License-Identifier: Apache-2.0
"""The message layouts of this Arrow version: nearly every received message has one of them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidemark.record.arrow_message import know_shape
from tidemark.record.schema import COMPACTED_SCHEMA, SCHEMA

# By hand: pa.array imports pandas where it is installed, half a second and 37 MB.
_ZERO: Final = pa.py_buffer(bytes(8))


def know_own_shapes() -> None:
    """Serialize one Arrow message for each schema and codec, so that `check_message` recognises the layouts."""
    for schema, compacted in ((SCHEMA, False), (COMPACTED_SCHEMA, True)):
        rows = pa.RecordBatch.from_arrays([_one_value(field) for field in schema], schema=schema)
        know_shape(rows.serialize().to_pybytes(), codec=0, compacted=compacted)
        for codec, options in (
            (1, pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)),
            (2, pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)),
        ):
            sink = pa.BufferOutputStream()
            pa.ipc.new_stream(sink, schema, options=options).write_batch(rows)
            know_shape(sink.getvalue().to_pybytes()[schema.serialize().size :], codec=codec, compacted=compacted)


def _one_value(field: pa.Field[Any]) -> pa.Array[Any]:
    value: pa.Array[Any]
    value = pa.nulls(1, field.type) if field.nullable else pa.Array.from_buffers(field.type, 1, [None, _ZERO])
    return value
