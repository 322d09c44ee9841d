# SPDX-License-Identifier: Apache-2.0
"""Reads the metadata of one encapsulated Arrow RecordBatch message, without trust in any length of the message.

Arrow's own readers trust the writer: a wrong node or buffer makes them read outside the message. So the flatbuffer is
parsed here first, with every offset checked, and must have the layout that the schema makes (docs/formats.md). Only
checked messages go to pyarrow. Source of the layout: Arrow's Message.fbs and the columnar format's section on
encapsulated messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from tidemark.model import ErrorCode, TidemarkError

UNCOMPRESSED_CEILING_BYTES: Final = 256 << 20
"""Largest declared uncompressed size of all buffers of a batch; no setting changes it."""

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
_METADATA_V5: Final = 4
_HEADER_RECORD_BATCH: Final = 3
_COMPRESSION_BY_CODEC: Final = (-1, 0, 1)
"""BodyCompression.codec for each of the envelope's codecs; -1: the message must not have BodyCompression."""
_ALIGNMENT_BYTES: Final = 8
_GAP_BYTES_MAX: Final = 64
"""Arrow pads buffers to 8 or 64 bytes. A wider gap would hide bytes from every reader, or values of a wider type."""
_ABSENT: Final = 0

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I16 = struct.Struct("<h")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")

BITS: Final = 1
"""Width of one bit for each value: a validity bitmap, or booleans."""
ANY_SIZE: Final = 0
"""Width of the bytes of strings: their offsets state how many."""
NO_PARENT: Final = -1
FREE_LENGTH: Final = -2
"""Parent of a node with its own length: the elements of a list, the entries of a map."""


class NodeLayout(NamedTuple):
    """A field node: one column, or a part of a nested column."""

    name: str
    parent: int
    """Index of the node with the same length; NO_PARENT: the message's length; FREE_LENGTH: any length."""
    never_null: bool


class BufferLayout(NamedTuple):
    """A buffer of a node: a validity bitmap, offsets or values."""

    node: int
    width_bits: int
    """Width of one value in bits: BITS, ANY_SIZE, or a multiple of 8."""
    extra: int
    """Number of values in addition to those of the node: 1 for offsets."""
    is_validity: bool


class MessageLayout:
    """The nodes and buffers that a schema makes, in the order in which Arrow flattens the schema.

    Attributes:
        nodes: the field nodes.
        buffers: the buffers.
        first_buffers: index of the first buffer of each node.
        bare_validity: whether a node that is never null may have no validity bitmap.
        node_numbers: (length, null count) of each node.
        buffer_numbers: (offset, size) of each buffer.
        shapes: by the length of the metadata and the codec. `know_shape` fills it with messages of this program, never
            with received ones: a crafted message could place a number over an offset.
    """

    def __init__(self, nodes: Sequence[NodeLayout], buffers: Sequence[BufferLayout], *, bare_validity: bool) -> None:
        self.nodes = tuple(nodes)
        self.buffers = tuple(buffers)
        self.bare_validity = bare_validity
        first = {buffer.node: index for index, buffer in reversed(list(enumerate(self.buffers)))}
        self.first_buffers = tuple(first[node] for node in range(len(self.nodes)))
        self.node_numbers = struct.Struct(f"<{2 * len(self.nodes)}q")
        self.buffer_numbers = struct.Struct(f"<{2 * len(self.buffers)}q")
        self.shapes: dict[tuple[int, int], Shape] = {}


class Numbers(NamedTuple):
    """The numbers of a message: lengths, counts, positions and sizes."""

    body_start: int
    """Byte offset of the body in the data."""
    body_bytes: int
    row_count: int
    nodes: tuple[int, ...]
    """(length, null count) of each node, one after the other."""
    buffers: tuple[int, ...]
    """(offset in the body, size) of each buffer, one after the other."""


class MessageFacts(NamedTuple):
    """Figures from the metadata of a checked message."""

    uncompressed_bytes: int
    """Declared size of all buffers after decompression."""
    numbers: Numbers

    @property
    def row_count(self) -> int:
        """Number of rows of the message."""
        return self.numbers.row_count

    @property
    def null_key_count(self) -> int:
        """Number of nulls in the first column."""
        return self.numbers.nodes[1]


class _Table(NamedTuple):
    """A flatbuffer table: its position and the offsets of its fields (0: absent), all within the metadata."""

    position: int
    fields: tuple[int, ...]


class Places(NamedTuple):
    """Positions of the numbers of a message in its metadata; position 0 for an absent number, which has value 0."""

    body_bytes: int
    row_count: int
    nodes: int
    buffers: int


class Shape(NamedTuple):
    """Metadata that is known except for its numbers: `metadata & mask == constant`, both as one integer."""

    mask: int
    constant: int
    places: Places


def check_message(data: bytes, start: int, *, codec: int, layout: MessageLayout) -> MessageFacts:
    """Check that bytes [start, end of data) are exactly one RecordBatch message of this layout.

    No other message follows. Nodes and buffers match the schema, in order, aligned, in bounds and not
    overlapping. Each buffer is large enough for its node's length. Declared uncompressed sizes are under the ceiling.
    Values (offset buffers, UTF-8) are not checked: `validate(full=True)` is safe afterwards and checks them.

    Args:
        data: a batch; its payload ends where `data` ends.
        start: byte offset of the message.
        codec: the envelope's codec, 0 to 2.
        layout: nodes and buffers of the schema.

    Raises:
        TidemarkError: INVALID_PAYLOAD, or INVALID_BATCH when the codec differs from the envelope's.
    """
    try:
        numbers = _read_numbers(data, start, codec, layout)
        body_bytes = len(data) - numbers.body_start
        if numbers.body_bytes != body_bytes:
            _refuse(f"its body is {body_bytes} bytes long, not {numbers.body_bytes}: truncated, or more follows it")
        _check_nodes(numbers.nodes, numbers.row_count, layout)
        uncompressed_bytes = _check_buffers(data, numbers, layout, compressed=codec != 0)
    except struct.error:
        _refuse("an offset of its metadata is outside the metadata")
    return MessageFacts(uncompressed_bytes, numbers)


def read_numbers(data: bytes, start: int, *, codec: int, layout: MessageLayout) -> Numbers:
    """The unchecked numbers of a message; `data` may lack a part of the body.

    Raises:
        TidemarkError: the errors of `check_message`, for the metadata alone.
    """
    try:
        return _read_numbers(data, start, codec, layout)
    except struct.error:
        _refuse("an offset of its metadata is outside the metadata")


def _read_numbers(data: bytes, start: int, codec: int, layout: MessageLayout) -> Numbers:
    continuation, metadata_bytes = _PREFIX.unpack_from(data, start)
    if continuation != _CONTINUATION:
        _refuse("it does not start with the continuation marker")
    metadata_start = start + _PREFIX.size
    body_start = metadata_start + metadata_bytes
    if metadata_bytes <= 0 or metadata_bytes % _ALIGNMENT_BYTES or body_start > len(data):
        _refuse(f"its metadata cannot be {metadata_bytes} bytes long")
    # A copy of some 500 bytes: reads past the metadata then raise an error, independent of the following bytes.
    metadata = data[metadata_start:body_start]

    shape = layout.shapes.get((metadata_bytes, codec))
    if shape is not None and int.from_bytes(metadata, "little") & shape.mask == shape.constant:
        places = shape.places
    else:
        places = _locate(metadata, codec, layout)
    return Numbers(
        body_start,
        _I64.unpack_from(metadata, places.body_bytes)[0] if places.body_bytes else 0,
        _I64.unpack_from(metadata, places.row_count)[0] if places.row_count else 0,
        layout.node_numbers.unpack_from(metadata, places.nodes),
        layout.buffer_numbers.unpack_from(metadata, places.buffers),
    )


def read_buffers(data: bytes, start: int) -> tuple[int, ...]:
    """(offset in the body, size) of each buffer of a message of any schema, one after the other; unchecked.

    Raises:
        TidemarkError: INVALID_PAYLOAD.
    """
    try:
        metadata_bytes = _PREFIX.unpack_from(data, start)[1]
        metadata = data[start + _PREFIX.size : start + _PREFIX.size + max(metadata_bytes, 0)]
        message = _table(metadata, _U32.unpack_from(metadata, 0)[0], 5)
        header = _table(metadata, _follow(metadata, message, 2, "header"), 5)
        position = _follow(metadata, header, 2, "buffers")
        count = _U32.unpack_from(metadata, position)[0]
        if position + _U32.size + 2 * count * _I64.size > len(metadata):
            raise struct.error
        numbers: tuple[int, ...] = struct.unpack_from(f"<{2 * count}q", metadata, position + _U32.size)
        return numbers
    except struct.error:
        _refuse("an offset of its metadata is outside the metadata")


def know_shape(message: bytes, *, codec: int, layout: MessageLayout) -> Template:
    """Remember the metadata of a message that this program wrote, to check equal messages fast and to write messages of
    the same shape.

    Only numbers may differ: every byte of a position must be equal.
    """
    metadata_bytes = _PREFIX.unpack_from(message)[1]
    metadata = message[_PREFIX.size : _PREFIX.size + metadata_bytes]
    places = _locate(metadata, codec, layout)
    assert places.body_bytes, "it has a body"
    assert places.row_count, "it has rows"
    mask = bytearray(b"\xff" * metadata_bytes)
    for place, size in (
        (places.body_bytes, _I64.size),
        (places.row_count, _I64.size),
        (places.nodes, layout.node_numbers.size),
        (places.buffers, layout.buffer_numbers.size),
    ):
        mask[place : place + size] = bytes(size)
    number = int.from_bytes(mask, "little")
    constant = int.from_bytes(metadata, "little") & number
    layout.shapes[metadata_bytes, codec] = Shape(number, constant, places)
    return Template(message[: _PREFIX.size + metadata_bytes], places)


class Template(NamedTuple):
    """The head of a message, to be written again with other numbers."""

    head: bytes
    places: Places

    def write(self, layout: MessageLayout, numbers: Numbers) -> bytes:
        """The template's continuation marker and metadata, with these numbers in it (`body_start` is ignored).

        Raises:
            TidemarkError: INVALID_PAYLOAD: a number of a received message does not fit into 64 bits after the move.
        """
        head, places = bytearray(self.head), self.places
        try:
            _I64.pack_into(head, _PREFIX.size + places.body_bytes, numbers.body_bytes)
            _I64.pack_into(head, _PREFIX.size + places.row_count, numbers.row_count)
            layout.node_numbers.pack_into(head, _PREFIX.size + places.nodes, *numbers.nodes)
            layout.buffer_numbers.pack_into(head, _PREFIX.size + places.buffers, *numbers.buffers)
        except struct.error:
            _refuse("its buffers lie outside of any body")
        return bytes(head)


def _locate(metadata: bytes, codec: int, layout: MessageLayout) -> Places:
    """Positions of the numbers, after a check of every offset that leads to them."""
    message = _table(metadata, _U32.unpack_from(metadata, 0)[0], 5)
    _check_message_table(metadata, message)
    header = _table(metadata, _follow(metadata, message, 2, "header"), 5)
    _check_compression(metadata, header, codec)
    return Places(
        _at(message, 3) if message.fields[3] else _ABSENT,
        _at(header, 0) if header.fields[0] else _ABSENT,
        _struct_vector(metadata, header, 1, "nodes", len(layout.nodes)),
        _struct_vector(metadata, header, 2, "buffers", len(layout.buffers)),
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
            f"the envelope's codec {codec} is not the codec of the Arrow message",
        )
    if header.fields[4]:
        _refuse("it has variadic buffers, which no column of a payload has")


def _check_nodes(numbers: tuple[int, ...], row_count: int, layout: MessageLayout) -> None:
    for index, (name, parent, never_null) in enumerate(layout.nodes):
        length, null_count = numbers[2 * index], numbers[2 * index + 1]
        if not 0 <= null_count <= length:
            _refuse(f"column {name} states {null_count} nulls in {length} values")
        if parent >= 0:
            if length != numbers[2 * parent]:
                above = layout.nodes[parent].name
                _refuse(f"column {name} has {length} values, not the {numbers[2 * parent]} of {above}")
        elif parent == NO_PARENT and length != row_count:
            _refuse(f"its columns are not all {row_count} rows long")
        if null_count and never_null:
            _refuse(f"column {name} has nulls")


def _check_buffers(data: bytes, numbers: Numbers, layout: MessageLayout, *, compressed: bool) -> int:
    nodes, buffers, body_start = numbers.nodes, numbers.buffers, numbers.body_start
    body_bytes = len(data) - body_start
    end = total_bytes = 0
    for index, (node, width_bits, extra, is_validity) in enumerate(layout.buffers):
        offset, size = buffers[2 * index], buffers[2 * index + 1]
        if not end <= offset < end + _GAP_BYTES_MAX or offset & 7:
            _refuse(f"buffer {index} starts at {offset}, out of order, unaligned or over another")
        end = offset + size
        if size < 0 or end > body_bytes:
            _refuse(f"buffer {index} reaches outside the body")
        if compressed and size:
            size = _declared_bytes(data, body_start + offset, size, index)
        total_bytes += size
        if is_validity:
            if size and layout.bare_validity and layout.nodes[node].never_null:
                _refuse(f"column {layout.nodes[node].name} has a validity bitmap and is never null")
            if not nodes[2 * node + 1]:
                continue
        elif not width_bits:
            continue
        # Arrow permits an array without values to omit its offsets.
        length = nodes[2 * node]
        needed_bytes = ((length + extra) * width_bits + 7) >> 3 if length else 0
        if not needed_bytes <= size < needed_bytes + _GAP_BYTES_MAX:
            _refuse(f"buffer {index} is {size} bytes long, column {layout.nodes[node].name} needs {needed_bytes}")
    if body_bytes - end >= _GAP_BYTES_MAX:
        _refuse(f"{body_bytes - end} bytes of its body belong to no buffer")
    if total_bytes > UNCOMPRESSED_CEILING_BYTES:
        _refuse(f"its buffers declare {total_bytes} bytes uncompressed, over {UNCOMPRESSED_CEILING_BYTES}")
    return total_bytes


def _declared_bytes(data: bytes, at: int, size: int, index: int) -> int:
    """Uncompressed size of a compressed buffer: an i64 before its bytes, -1 if the buffer is not compressed."""
    if size < _I64.size:
        _refuse(f"buffer {index} is too short to state its uncompressed size")
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
    """Position of the first struct of a vector."""
    position = _follow(metadata, table, field, name)
    found = _U32.unpack_from(metadata, position)[0]
    if found != count:
        _refuse(f"it has {found} {name}; the columns of a payload make {count}")
    return position + _U32.size


def _refuse(reason: str) -> NoReturn:
    raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the Arrow message of the batch is refused: {reason}")
