# SPDX-License-Identifier: Apache-2.0
"""The layout of the messages of a schema: its nodes and buffers, and the shape in which this Arrow version writes it.

Nearly every received message has such a shape.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidemark.record.arrow_message import (
    ANY_SIZE,
    BITS,
    FREE_LENGTH,
    NO_PARENT,
    BufferLayout,
    MessageLayout,
    NodeLayout,
    Template,
    know_shape,
)
from tidemark.record.schema import COMPACTED_SCHEMA, SCHEMA

WRITE_OPTIONS: Final = {
    1: pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False),
    2: pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False),
}
"""Options of the writer, by codec; codec 0, none, uses `RecordBatch.serialize`."""


def layout_of(schema: pa.Schema, *, bare_validity: bool = False) -> MessageLayout:
    """Nodes and buffers of a schema of booleans, numbers, times, decimals, strings, lists, maps and structs.

    Raises:
        TypeError: another type; a schema with it is refused when it is created.
    """
    nodes: list[NodeLayout] = []
    buffers: list[BufferLayout] = []
    for field in schema:
        _add(field, field.name, NO_PARENT, nodes, buffers)
    return MessageLayout(nodes, buffers, bare_validity=bare_validity)


def _add(field: pa.Field[Any], name: str, parent: int, nodes: list[NodeLayout], buffers: list[BufferLayout]) -> None:
    data_type: Any = field.type
    node = len(nodes)
    nodes.append(NodeLayout(name, parent, not field.nullable))
    buffers.append(BufferLayout(node, BITS, 0, is_validity=True))
    if pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            child = data_type.field(index)
            _add(child, f"{name}.{child.name}", node, nodes, buffers)
    elif pa.types.is_map(data_type):
        buffers.append(BufferLayout(node, 32, 1, is_validity=False))
        entries = pa.field("entries", pa.struct([data_type.key_field, data_type.item_field]), nullable=False)
        _add(entries, f"{name}.entries", FREE_LENGTH, nodes, buffers)
    elif pa.types.is_list(data_type):
        buffers.append(BufferLayout(node, 32, 1, is_validity=False))
        _add(data_type.value_field, f"{name}.element", FREE_LENGTH, nodes, buffers)
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        buffers.append(BufferLayout(node, 32, 1, is_validity=False))
        buffers.append(BufferLayout(node, ANY_SIZE, 0, is_validity=False))
    elif pa.types.is_primitive(data_type) or pa.types.is_decimal128(data_type):
        buffers.append(BufferLayout(node, data_type.bit_width, 0, is_validity=False))
    else:
        raise TypeError(f"column {name} has the type {data_type}, which no batch has")


def know_shapes(schema: pa.Schema, layout: MessageLayout) -> dict[int, Template]:
    """Serialize a message for each codec, so that `check_message` knows its shape; returns templates by codec."""
    columns: list[Any] = [pa.nulls(1, field.type) for field in schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    templates = {0: know_shape(rows.serialize().to_pybytes(), codec=0, layout=layout)}
    for codec, options in WRITE_OPTIONS.items():
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, schema, options=options).write_batch(rows)
        message = sink.getvalue().to_pybytes()[schema.serialize().size :]
        templates[codec] = know_shape(message, codec=codec, layout=layout)
    return templates


LAYOUT: Final = layout_of(SCHEMA)
COMPACTED_LAYOUT: Final = layout_of(COMPACTED_SCHEMA)
TEMPLATES: Final = know_shapes(SCHEMA, LAYOUT)
"""Templates of messages in SCHEMA, by codec."""
know_shapes(COMPACTED_SCHEMA, COMPACTED_LAYOUT)
