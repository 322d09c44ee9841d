# SPDX-License-Identifier: Apache-2.0
"""Reads the metadata of one encapsulated Arrow RecordBatch message, trusting no length in it.

Arrow's own readers trust the writer: a wrong node or buffer makes them read outside the message. So the flatbuffer is
parsed here first, with every offset checked, and must have the single layout of a payload (docs/formats.md). Only
checked messages go to pyarrow. Source of the layout: Arrow's Message.fbs and the columnar format's section on
encapsulated messages.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, NoReturn

from tidemark.model import ErrorCode, TidemarkError

UNCOMPRESSED_CEILING_BYTES: Final = 256 << 20
"""Bound of the declared uncompressed size of all buffers of a batch; no setting changes it."""

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
_METADATA_V5: Final = 4
_HEADER_RECORD_BATCH: Final = 3
_COMPRESSION_BY_CODEC: Final = (-1, 0, 1)
"""BodyCompression.codec for each of the envelope's codecs; -1: there must be none."""
_ALIGNMENT_BYTES: Final = 8
_GAP_BYTES_MAX: Final = 64
"""Arrow pads buffers to 8 or 64 bytes; a wider gap would hide bytes from every reader."""
_ABSENT: Final = 0

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I16 = struct.Struct("<h")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")

# Nodes, in the order in which Arrow flattens the schema.
_KEY, _VALUE, _TIMESTAMP, _HEADERS, _ENTRIES, _HEADER_KEY, _HEADER_VALUE, _OFFSET_DELTA = range(8)
_NEVER_NULL: Final = (_TIMESTAMP, _ENTRIES, _HEADER_KEY, _OFFSET_DELTA)
_HEADER_NODE_NAMES: Final = ("headers", "headers.entries", "headers.key", "headers.value")
_NODE_NAMES: Final = ("key", "value", "timestamp", *_HEADER_NODE_NAMES, "offset_delta")

# Buffers, in order: (node, width in bits, fixed extra elements); width 1 is a validity bitmap, 0 is values of any size.
_VALIDITY, _DATA = 1, 0
_BUFFERS: Final = (
    (_KEY, _VALIDITY, 0), (_KEY, 32, 1), (_KEY, _DATA, 0),
    (_VALUE, _VALIDITY, 0), (_VALUE, 32, 1), (_VALUE, _DATA, 0),
    (_TIMESTAMP, _VALIDITY, 0), (_TIMESTAMP, 64, 0),
    (_HEADERS, _VALIDITY, 0), (_HEADERS, 32, 1),
    (_ENTRIES, _VALIDITY, 0),
    (_HEADER_KEY, _VALIDITY, 0), (_HEADER_KEY, 32, 1), (_HEADER_KEY, _DATA, 0),
    (_HEADER_VALUE, _VALIDITY, 0), (_HEADER_VALUE, 32, 1), (_HEADER_VALUE, _DATA, 0),
    (_OFFSET_DELTA, _VALIDITY, 0), (_OFFSET_DELTA, 32, 0),
)  # fmt: skip
_NODE_COUNT, _BUFFER_COUNT = 7, 17
_COMPACTED_NODE_COUNT, _COMPACTED_BUFFER_COUNT = 8, 19
_NODES = {n: struct.Struct(f"<{2 * n}q") for n in (_NODE_COUNT, _COMPACTED_NODE_COUNT)}
_BUFFER_TABLES = {n: struct.Struct(f"<{2 * n}q") for n in (_BUFFER_COUNT, _COMPACTED_BUFFER_COUNT)}


class MessageFacts(NamedTuple):
    """Figures from the metadata of a checked message."""

    row_count: int
    null_key_count: int
    uncompressed_bytes: int
    """Declared size of all buffers after decompression."""


class _Table(NamedTuple):
    """A flatbuffer table: its position and the offsets of its fields (0: absent), all within the metadata."""

    position: int
    fields: tuple[int, ...]


class _Places(NamedTuple):
    """Positions of the numbers of a message in its metadata; position 0 for an absent number, which has value 0."""

    body_bytes: int
    row_count: int
    nodes: int
    buffers: int


class _Shape(NamedTuple):
    """Metadata that is known except for its numbers: `metadata & mask == constant`, both as one integer."""

    mask: int
    constant: int
    places: _Places


_SHAPES: dict[tuple[int, int, bool], _Shape] = {}
"""By the length of the metadata, the codec, and the presence of the column offset_delta. `know_shape` fills it with
messages of this program, never with received ones: a crafted message could place a number over an offset."""


def check_message(data: bytes, start: int, *, codec: int, compacted: bool) -> MessageFacts:
    """Check that bytes [start, end of data) are exactly one RecordBatch message of the layout a payload has.

    A message that passes is the only one; has the nodes and buffers of the schema, in order, aligned, in bounds and not
    overlapping; each buffer is large enough for its node's length; declared uncompressed sizes are under the ceiling.
    Values (offset buffers, UTF-8) are not checked: `validate(full=True)` is safe afterwards and checks them.

    Args:
        data: a batch; its payload ends where `data` ends.
        start: byte offset of the payload.
        codec: the envelope's codec, 0 to 2.
        compacted: whether the payload has the column offset_delta.

    Raises:
        TidemarkError: INVALID_PAYLOAD, or INVALID_BATCH when the codec differs from the envelope's.
    """
    try:
        return _check_message(data, start, codec, compacted)
    except struct.error:
        _refuse("its metadata points outside itself")


def _check_message(data: bytes, start: int, codec: int, compacted: bool) -> MessageFacts:
    continuation, metadata_bytes = _PREFIX.unpack_from(data, start)
    if continuation != _CONTINUATION:
        _refuse("it does not start with the continuation marker")
    metadata_start = start + _PREFIX.size
    body_start = metadata_start + metadata_bytes
    if metadata_bytes <= 0 or metadata_bytes % _ALIGNMENT_BYTES or body_start > len(data):
        _refuse(f"its metadata cannot be {metadata_bytes} bytes long")
    # A copy of some 500 bytes: reads past the metadata fail by themselves, whatever follows it in the batch.
    metadata = data[metadata_start:body_start]

    shape = _SHAPES.get((metadata_bytes, codec, compacted))
    if shape is not None and int.from_bytes(metadata, "little") & shape.mask == shape.constant:
        places = shape.places
    else:
        places = _locate(metadata, codec, compacted)
    body_bytes = _I64.unpack_from(metadata, places.body_bytes)[0] if places.body_bytes else 0
    if body_bytes != len(data) - body_start:
        _refuse(f"its body is {len(data) - body_start} bytes long, not {body_bytes}: truncated, or more follows it")
    row_count = _I64.unpack_from(metadata, places.row_count)[0] if places.row_count else 0
    nodes = _NODES[_COMPACTED_NODE_COUNT if compacted else _NODE_COUNT].unpack_from(metadata, places.nodes)
    buffer_count = _COMPACTED_BUFFER_COUNT if compacted else _BUFFER_COUNT
    buffers = _BUFFER_TABLES[buffer_count].unpack_from(metadata, places.buffers)
    _check_nodes(nodes, row_count, compacted)
    uncompressed_bytes = _check_buffers(data, body_start, nodes, buffers, compressed=codec != 0)
    return MessageFacts(row_count, nodes[1], uncompressed_bytes)


def know_shape(message: bytes, *, codec: int, compacted: bool) -> None:
    """Remember the metadata layout of a message that this program wrote, to check equal layouts fast.

    Only numbers may differ: every byte that gives a position must be equal.
    """
    metadata_bytes = _PREFIX.unpack_from(message)[1]
    metadata = message[_PREFIX.size : _PREFIX.size + metadata_bytes]
    places = _locate(metadata, codec, compacted)
    assert places.body_bytes, "it has a body"
    assert places.row_count, "it has rows"
    mask = bytearray(b"\xff" * metadata_bytes)
    for place, size in (
        (places.body_bytes, _I64.size),
        (places.row_count, _I64.size),
        (places.nodes, _NODES[_COMPACTED_NODE_COUNT if compacted else _NODE_COUNT].size),
        (places.buffers, _BUFFER_TABLES[_COMPACTED_BUFFER_COUNT if compacted else _BUFFER_COUNT].size),
    ):
        mask[place : place + size] = bytes(size)
    number = int.from_bytes(mask, "little")
    constant = int.from_bytes(metadata, "little") & number
    _SHAPES[metadata_bytes, codec, compacted] = _Shape(number, constant, places)


def _locate(metadata: bytes, codec: int, compacted: bool) -> _Places:
    """Positions of the numbers, with every offset on the way checked."""
    message = _table(metadata, _U32.unpack_from(metadata, 0)[0], 5)
    _check_message_table(metadata, message)
    header = _table(metadata, _follow(metadata, message, 2, "header"), 5)
    _check_compression(metadata, header, codec)
    node_count = _COMPACTED_NODE_COUNT if compacted else _NODE_COUNT
    buffer_count = _COMPACTED_BUFFER_COUNT if compacted else _BUFFER_COUNT
    return _Places(
        _at(message, 3) if message.fields[3] else _ABSENT,
        _at(header, 0) if header.fields[0] else _ABSENT,
        _struct_vector(metadata, header, 1, "nodes", node_count),
        _struct_vector(metadata, header, 2, "buffers", buffer_count),
    )


def _check_message_table(metadata: bytes, message: _Table) -> None:
    version = _scalar(metadata, message, 0, _I16, 0)
    if version != _METADATA_V5:
        _refuse(f"its metadata version is {version + 1}, not 5")
    header_type = metadata[_at(message, 1)] if message.fields[1] else 0
    if header_type != _HEADER_RECORD_BATCH:
        _refuse("it is not a RecordBatch message")
    if message.fields[4]:
        _refuse("it carries custom metadata")


def _check_compression(metadata: bytes, header: _Table, codec: int) -> None:
    declared = -1
    if header.fields[3]:
        compression = _table(metadata, _follow(metadata, header, 3, "compression"), 2)
        declared = metadata[_at(compression, 0)] if compression.fields[0] else 0
        if compression.fields[1] and metadata[_at(compression, 1)] != 0:
            _refuse("it is compressed in a way other than buffer by buffer")
    if declared != _COMPRESSION_BY_CODEC[codec]:
        raise TidemarkError(
            ErrorCode.INVALID_BATCH,
            f"the envelope's codec {codec} is not the one of the Arrow message",
        )
    if header.fields[4]:
        _refuse("it has variadic buffers, which no column of a payload has")


def _check_nodes(nodes: tuple[int, ...], row_count: int, compacted: bool) -> None:
    for node in range(len(nodes) // 2):
        length, null_count = nodes[2 * node], nodes[2 * node + 1]
        if not 0 <= null_count <= length:
            _refuse(f"column {_NODE_NAMES[node]} says {null_count} nulls in {length} values")
    lengths = nodes[0::2]
    if lengths[:4] != (row_count,) * 4 or (compacted and lengths[_OFFSET_DELTA] != row_count):
        _refuse(f"its columns are not all {row_count} rows long")
    if not lengths[_ENTRIES] == lengths[_HEADER_KEY] == lengths[_HEADER_VALUE]:
        _refuse("the names and the values of its headers differ in number")
    for node in _NEVER_NULL:
        if node < len(lengths) and nodes[2 * node + 1]:
            _refuse(f"column {_NODE_NAMES[node]} has nulls")


def _check_buffers(
    data: bytes, body_start: int, nodes: tuple[int, ...], buffers: tuple[int, ...], *, compressed: bool
) -> int:
    body_bytes = len(data) - body_start
    end = total_bytes = 0
    for index, (node, width_bits, extra) in enumerate(_BUFFERS[: len(buffers) // 2]):
        offset, size = buffers[2 * index], buffers[2 * index + 1]
        if not end <= offset < end + _GAP_BYTES_MAX or offset & 7:
            _refuse(f"buffer {index} starts at {offset}, out of order, unaligned or over another")
        end = offset + size
        if size < 0 or end > body_bytes:
            _refuse(f"buffer {index} reaches outside the body")
        if compressed and size:
            size = _declared_bytes(data, body_start + offset, size, index)
        total_bytes += size
        if width_bits > 1:
            # Arrow lets an array of no values leave out its offsets.
            length = nodes[2 * node]
            needed_bytes = (length + extra) * (width_bits >> 3) if length else 0
        elif width_bits and nodes[2 * node + 1]:
            needed_bytes = (nodes[2 * node] + 7) >> 3
        else:
            continue
        if size < needed_bytes:
            _refuse(f"buffer {index} is {size} bytes long, column {_NODE_NAMES[node]} needs {needed_bytes}")
    if body_bytes - end >= _GAP_BYTES_MAX:
        _refuse(f"{body_bytes - end} bytes of its body belong to no buffer")
    if total_bytes > UNCOMPRESSED_CEILING_BYTES:
        _refuse(f"its buffers declare {total_bytes} bytes uncompressed, over {UNCOMPRESSED_CEILING_BYTES}")
    return total_bytes


def _declared_bytes(data: bytes, at: int, size: int, index: int) -> int:
    """Uncompressed size of a compressed buffer: an i64 before its bytes, -1 where they were left uncompressed."""
    if size < _I64.size:
        _refuse(f"buffer {index} is too short to say its uncompressed size")
    declared: int = _I64.unpack_from(data, at)[0]
    if declared == -1:
        return size - _I64.size
    if declared < 0:
        _refuse(f"buffer {index} declares {declared} bytes uncompressed")
    return declared


def _table(metadata: bytes, position: int, field_count: int) -> _Table:
    """The table at a position: a signed distance back to its vtable, which has the offset of each field."""
    if not 0 < position <= len(metadata) - 4:
        raise struct.error
    vtable = position - _I32.unpack_from(metadata, position)[0]
    if vtable < 0:
        raise struct.error
    vtable_bytes = _U16.unpack_from(metadata, vtable)[0]
    if vtable_bytes < 4 or vtable_bytes & 1 or vtable + vtable_bytes > len(metadata):
        raise struct.error
    known = min(vtable_bytes // 2 - 2, field_count)
    fields = struct.unpack_from(f"<{known}H", metadata, vtable + 4)
    if any(field and position + field >= len(metadata) for field in fields):
        raise struct.error
    return _Table(position, fields + (_ABSENT,) * (field_count - known))


def _at(table: _Table, field: int) -> int:
    return table.position + table.fields[field]


def _scalar(metadata: bytes, table: _Table, field: int, kind: struct.Struct, default: int) -> int:
    if not table.fields[field]:
        return default
    value: int = kind.unpack_from(metadata, _at(table, field))[0]
    return value


def _follow(metadata: bytes, table: _Table, field: int, name: str) -> int:
    """Position that a field points to."""
    if not table.fields[field]:
        _refuse(f"its metadata has no {name}")
    at = _at(table, field)
    position: int = at + _U32.unpack_from(metadata, at)[0]
    return position


def _struct_vector(metadata: bytes, table: _Table, field: int, name: str, count: int) -> int:
    """Position of the first of its structs."""
    position = _follow(metadata, table, field, name)
    found = _U32.unpack_from(metadata, position)[0]
    if found != count:
        _refuse(f"it has {found} {name}; the columns of a payload make {count}")
    return position + _U32.size


def _refuse(reason: str) -> NoReturn:
    raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the Arrow message of the batch is refused: {reason}")
