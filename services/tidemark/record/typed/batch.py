# SPDX-License-Identifier: Apache-2.0
"""Typed batches: build, check, prune and read (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import NO_PRODUCER, ErrorCode, TidemarkError
from tidemark.record.arrow_message import (
    UNCOMPRESSED_CEILING_BYTES,
    MessageLayout,
    Numbers,
    check_message,
    read_buffers,
    read_numbers,
)
from tidemark.record.envelope import (
    NO_BASE_OFFSET,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    TYPED_MAGIC,
    VERSION_SHIFT,
    Attributes,
    Batch,
    Codec,
    Envelope,
    body_crc,
    header_crc,
    parse_envelope,
    seal,
)
from tidemark.record.payload import counted_offsets, scalar_of
from tidemark.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from tidemark.record.shapes import WRITE_OPTIONS
from tidemark.record.typed.column_table import (
    HAS_TIMESTAMPS,
    ColumnTable,
    check_columns,
    check_nodes,
    min_timestamp_us,
    parse_table,
    write_table,
)
from tidemark.record.typed.layout import SYSTEM_NAMES, Arrangement, TypedLayout

_ONE_THREAD: Final = pa.ipc.IpcReadOptions(use_threads=False)
_INT64: Final = pa.int64()
RECORDS_MAX: Final = UNCOMPRESSED_CEILING_BYTES // 16
"""Largest number of rows of a batch: readers make an offset and a timestamp for each row, even if the buffers have
none.
"""


class TimeRange(NamedTuple):
    """A range of timestamps, in microseconds since 1970; None: without a bound.

    Attributes:
        from_us: first time of the range, inclusive.
        until_us: end of the range, exclusive.
    """

    from_us: int | None = None
    until_us: int | None = None


@dataclass
class TypedRows:
    """The rows of a typed batch; all parts have one length. Columns that few readers need are made when they are read.

    Attributes:
        columns: the columns of the batch's schema version, or the requested columns.
        deleted: bool: whether the row deletes the earlier rows of its key; None: no row does.
        first_offset: offset of the first row, if the offsets are consecutive; None: the offsets may have gaps.
        make_offsets: makes `offsets`.
        make_timestamps: makes `timestamps`.
        make_headers: makes `headers`.
    """

    columns: pa.RecordBatch
    deleted: pa.Array[Any] | None
    first_offset: int | None
    make_offsets: Callable[[], pa.Array[Any]]
    make_timestamps: Callable[[], pa.Array[Any]]
    make_headers: Callable[[], pa.Array[Any]]

    @cached_property
    def offsets(self) -> pa.Array[Any]:
        """Offset of each row in the partition, int64."""
        return self.make_offsets()

    @cached_property
    def timestamps(self) -> pa.Array[Any]:
        """Timestamp of each row, timestamp[us, UTC]."""
        return self.make_timestamps()

    @cached_property
    def headers(self) -> pa.Array[Any]:
        """Headers of each row, map<string, binary>; null if a row has no headers."""
        return self.make_headers()


def build_typed_batch(
    rows: pa.RecordBatch,
    layout: TypedLayout,
    *,
    flags: int = 0,
    timestamp_us: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    pending: bool = False,
) -> bytes:
    """One typed batch in the form that a producer sends: base_offset 0, leader_epoch -1, sealed with all CRCs.

    Args:
        rows: at least one row, in `layout.arrangement(flags).schema`.
        layout: the version of the schema.
        flags: the system columns of the rows: such as HAS_TIMESTAMPS.
        timestamp_us: timestamp of every row, if there is neither a system column of timestamps nor an event time.
        codec: how to compress the buffers.
        producer_id: with producer_epoch and base_sequence, of an idempotent producer.
        producer_epoch: see producer_id.
        base_sequence: sequence of the first record.
        pending: whether the rows belong to a transaction.

    Raises:
        TidemarkError: INVALID_BATCH when there are no rows; SCHEMA_MISMATCH when the rows do not fit the schema.
    """
    arrangement = layout.arrangement(flags)
    if rows.schema != arrangement.schema:
        raise _mismatch(f"rows have the columns {rows.schema}, not those of version {layout.version}")
    if not rows.num_rows:
        raise TidemarkError(ErrorCode.INVALID_BATCH, "a batch must have at least one record")
    oldest_us, newest_us = timestamp_us, timestamp_us
    times = "_timestamp" if flags & HAS_TIMESTAMPS else layout.event_time
    if times:
        bounds: Any = pc.min_max(pc.cast(rows.column(times), _INT64))
        oldest_us, newest_us = bounds["min"].as_py(), bounds["max"].as_py()
        if oldest_us is None:
            raise _mismatch(f"column {times} has no value")
    envelope = Envelope(
        base_offset=NO_BASE_OFFSET,
        leader_epoch=NO_LEADER_EPOCH,
        header_crc=0,
        batch_length=0,
        crc=0,
        magic=TYPED_MAGIC,
        codec=codec,
        attributes=layout.version << VERSION_SHIFT | (Attributes.PENDING if pending else 0),
        record_count=rows.num_rows,
        last_offset_delta=rows.num_rows - 1,
        base_sequence=base_sequence,
        max_timestamp_us=newest_us,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        delete_horizon_s=0,
    )
    payload = encode_typed(rows, arrangement, codec, flags, layout.event_time_node(flags), oldest_us)
    return seal(envelope, payload)


def encode_typed(
    rows: pa.RecordBatch, arrangement: Arrangement, codec: int, flags: int, event_time_node: int, min_timestamp_us: int
) -> bytes:
    """The table of columns and the Arrow message of some rows.

    Raises:
        TidemarkError: SCHEMA_MISMATCH when a column that is never null has nulls.
    """
    if codec == Codec.NONE:
        message = rows.serialize()
    else:
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, rows.schema, options=WRITE_OPTIONS[codec]).write_batch(rows)
        message = sink.getvalue().slice(len(arrangement.schema_message))
    head_bytes = 8 + int.from_bytes(memoryview(message)[4:8], "little")
    numbers = read_numbers(message.slice(0, head_bytes).to_pybytes(), 0, codec=codec, layout=arrangement.layout)
    for index, node in enumerate(arrangement.layout.nodes):
        if node.never_null and numbers.nodes[2 * index + 1]:
            raise _mismatch(f"column {node.name} has nulls; the schema states it is never null")
    table = write_table(
        message.slice(numbers.body_start),
        _ends(numbers, arrangement.layout),
        flags=flags,
        event_time_node=event_time_node,
        min_timestamp_us=min_timestamp_us,
    )
    return b"".join((table, memoryview(message)))


class CheckedBatch(NamedTuple):
    """A typed batch that fits its schema version."""

    rows: pa.RecordBatch | None
    """The fully validated rows of an uncompressed payload, zero copy; None for a compressed payload."""
    flags: int
    """Flags of the batch's system columns: such as HAS_TIMESTAMPS."""
    uncompressed_bytes: int
    """Declared size of all buffers after decompression."""


def check_typed(batch: Batch, layout: TypedLayout) -> CheckedBatch:
    """Check a produced or read batch against its schema version; its CRCs have been checked (`check_envelope`).

    Raises:
        TidemarkError: INVALID_BATCH, INVALID_PAYLOAD, RECORD_COUNT_MISMATCH, BATCH_TOO_LARGE.
    """
    envelope = batch.envelope
    if envelope.record_count > RECORDS_MAX:
        raise TidemarkError(
            ErrorCode.BATCH_TOO_LARGE, f"the batch has {envelope.record_count} records, over {RECORDS_MAX}"
        )
    table = parse_table(batch.data)
    arrangement = layout.arrangement(table.flags, compacted=envelope.is_compacted)
    if table.event_time_node != layout.event_time_node(table.flags, compacted=envelope.is_compacted):
        raise TidemarkError(
            ErrorCode.INVALID_BATCH,
            f"the batch names node {table.event_time_node} as the event time; version {layout.version} does not",
        )
    facts = check_message(batch.data, table.message_at, codec=envelope.codec, layout=arrangement.layout)
    if table.ends != _ends(facts.numbers, arrangement.layout):
        raise TidemarkError(
            ErrorCode.INVALID_BATCH, "the table of columns and the Arrow message disagree on the ends of columns"
        )
    if facts.row_count != envelope.record_count or envelope.record_count > envelope.last_offset_delta + 1:
        raise TidemarkError(
            ErrorCode.RECORD_COUNT_MISMATCH,
            f"record_count states {envelope.record_count} records, the Arrow message has {facts.row_count} rows",
        )
    uncompressed = envelope.codec == Codec.NONE
    rows = _validated(batch.data, table.message_at, envelope, arrangement) if uncompressed else None
    return CheckedBatch(rows, table.flags, facts.uncompressed_bytes)


def read_values(batch: Batch, layout: TypedLayout) -> pa.RecordBatch:
    """Decompress and fully validate a batch whose structure `check_typed` has accepted.

    Raises:
        TidemarkError: INVALID_PAYLOAD.
    """
    table = parse_table(batch.data)
    arrangement = layout.arrangement(table.flags, compacted=batch.envelope.is_compacted)
    return _validated(batch.data, table.message_at, batch.envelope, arrangement)


class StoredRows(NamedTuple):
    """The stored rows of a whole batch, including system columns."""

    rows: pa.RecordBatch
    layout: TypedLayout
    flags: int
    min_timestamp_us: int


def read_stored(batch: Batch, layout: TypedLayout) -> StoredRows:
    """The stored rows of a whole batch after a full check.

    Raises:
        TidemarkError: CORRUPT_BATCH, and as `check_typed`.
    """
    _check_head(batch.data, batch.envelope)
    table = check_columns(batch.data)
    rows = check_typed(batch, layout).rows
    if rows is None:
        rows = read_values(batch, layout)
    return StoredRows(rows, layout, table.flags, table.min_timestamp_us)


def encode_stored(stored: StoredRows, offset_deltas: pa.Array[Any] | None, stays: Any, codec: int) -> bytes:
    """The payload of a compacted batch with some of the rows.

    Args:
        stored: all rows.
        offset_deltas: uint32, for rows without offset deltas; None: the rows have them.
        stays: bool: the rows to keep.
        codec: codec of the buffers.
    """
    arrangement = stored.layout.arrangement(stored.flags, compacted=True)
    columns = list(stored.rows.columns)
    if offset_deltas is not None:
        columns.insert(arrangement.schema.get_field_index("_offset_delta"), offset_deltas)
    rows = pa.RecordBatch.from_arrays(columns, schema=arrangement.schema).filter(stays)
    node = stored.layout.event_time_node(stored.flags, compacted=True)
    return encode_typed(rows, arrangement, codec, stored.flags, node, stored.min_timestamp_us)


def declared_bytes(batch: Batch) -> int:
    """Declared size of all buffers of a compressed batch after decompression."""
    table = parse_table(batch.data)
    numbers = read_buffers(batch.data, table.message_at)
    total_bytes = 0
    for offset, size in zip(numbers[0::2], numbers[1::2], strict=True):
        at = table.body_at + offset
        declared = int.from_bytes(batch.data[at : at + 8], "little", signed=True) if size >= 8 else 0
        total_bytes += size if declared < 0 else declared
    return total_bytes


def deletions(rows: pa.RecordBatch) -> pa.Array[Any] | None:
    """bool: which stored rows delete the earlier rows of their key; None: no row does."""
    return rows.column("_deleted") if "_deleted" in rows.schema.names else None


def read_typed(batch: Batch, layout: TypedLayout) -> TypedRows:
    """The rows of a whole batch after a full check.

    Raises:
        TidemarkError: CORRUPT_BATCH, and as `check_typed`.
    """
    return _typed_rows(read_stored(batch, layout).rows, batch.envelope, layout, None)


def prune(data: bytes, layout: TypedLayout, column_ids: frozenset[int]) -> bytes:
    """The batch without the nodes of other columns, without decoding. `read_pruned` reads the result.

    Raises:
        TidemarkError: INVALID_BATCH.
    """
    spans = kept_spans(data, parse_envelope(data), layout, column_ids)
    view = memoryview(data)
    return b"".join((shortened_head(data, spans), *(view[begin:end] for begin, end in spans)))


def kept_spans(
    head: bytes, envelope: Envelope, layout: TypedLayout, column_ids: frozenset[int]
) -> list[tuple[int, int]]:
    """Start and end, in the batch, of the bytes after its head that a reader of these columns gets.

    Args:
        head: the batch, at least up to the body of its message.
        envelope: envelope of the batch.
        layout: layout of its version.
        column_ids: the columns.

    Raises:
        TidemarkError: INVALID_BATCH.
    """
    table = parse_table(head)
    kept = layout.kept(table.flags, column_ids, compacted=envelope.is_compacted)
    _check_node_count(table, layout, envelope)
    if table.body_at + table.ends[-1] != envelope.batch_length:
        raise TidemarkError(ErrorCode.INVALID_BATCH, "the table of columns does not end where the batch ends")
    return [(table.body_at + begin, table.body_at + end) for begin, end in _spans(table, kept)]


def shortened_head(data: bytes, spans: Sequence[tuple[int, int]] = ()) -> bytes:
    """The head of a batch with only these spans of the body; no spans: a batch without columns.

    Raises:
        TidemarkError: INVALID_BATCH.
    """
    body_at = parse_table(data).body_at
    length_field = (body_at + sum(end - begin for begin, end in spans)).to_bytes(4, "little")
    prefix = data[:12]
    crc = header_crc(prefix, length_field).to_bytes(4, "little")
    return b"".join((prefix, crc, length_field, memoryview(data)[20:body_at]))


def is_outside(data: bytes, times: TimeRange, envelope: Envelope | None = None) -> bool:
    """Whether no row of a typed batch has a timestamp in the range; false for a batch with append times.

    Args:
        data: the batch, at least up to the body of its message.
        times: the range.
        envelope: envelope of the batch, if known.

    Raises:
        TidemarkError: CORRUPT_BATCH, INVALID_BATCH: the head is damaged.
    """
    envelope = envelope or parse_envelope(data)
    if envelope.has_append_time:
        return False
    _check_head(data, envelope)
    if times.from_us is not None and envelope.max_timestamp_us < times.from_us:
        return True
    return times.until_us is not None and min_timestamp_us(data) >= times.until_us


def read_pruned(data: bytes, layout: TypedLayout, column_ids: frozenset[int]) -> TypedRows:
    """The rows of a batch that `prune` made for the same columns, after a check of every CRC and value.

    A whole batch is valid, too: a broker that does not know the version yet sends one.

    Raises:
        TidemarkError: CORRUPT_BATCH, INVALID_BATCH, INVALID_PAYLOAD, RECORD_COUNT_MISMATCH.
    """
    envelope = parse_envelope(data)
    _check_head(data, envelope)
    table = parse_table(data)
    pruning = layout.pruned(table.flags, column_ids, compacted=envelope.is_compacted)
    whole = layout.arrangement(table.flags, compacted=envelope.is_compacted)
    _check_node_count(table, layout, envelope)
    if len(data) - table.body_at == table.ends[-1]:
        data = prune(data, layout, column_ids)
    spans = [table.span(node) for node in pruning.kept]
    if len(data) - table.body_at != sum(end - begin for begin, end in spans):
        raise TidemarkError(ErrorCode.INVALID_BATCH, "the pruned batch does not have the requested columns")
    check_nodes(table, data, pruning.kept)
    if not pruning.kept:
        rows = pa.RecordBatch.from_struct_array(pa.nulls(envelope.record_count, pa.struct([])))
        return _typed_rows(rows, envelope, layout, column_ids)
    numbers = read_numbers(data[: table.body_at], table.message_at, codec=envelope.codec, layout=whole.layout)
    head = pruning.arrangement.templates[envelope.codec].write(
        pruning.arrangement.layout, _moved(numbers, whole.layout, table, pruning.kept)
    )
    message = b"".join((head, memoryview(data)[table.body_at :]))
    facts = check_message(message, 0, codec=envelope.codec, layout=pruning.arrangement.layout)
    if facts.row_count != envelope.record_count:
        raise TidemarkError(ErrorCode.RECORD_COUNT_MISMATCH, "the rows of a pruned batch are not as many as it states")
    rows = _validated(message, 0, envelope, pruning.arrangement)
    return _typed_rows(rows, envelope, layout, column_ids)


def _check_node_count(table: ColumnTable, layout: TypedLayout, envelope: Envelope) -> None:
    wanted = len(layout.arrangement(table.flags, compacted=envelope.is_compacted).node_ids)
    if len(table.ends) != wanted:
        raise TidemarkError(
            ErrorCode.INVALID_BATCH,
            f"the batch has {len(table.ends)} column nodes; version {layout.version} of the schema has {wanted}",
        )


def _moved(numbers: Numbers, whole: MessageLayout, table: ColumnTable, kept: Sequence[int]) -> Numbers:
    """The numbers of the message after pruning: the message has only the nodes `kept`, in order."""
    nodes: list[int] = []
    buffers: list[int] = []
    at = 0
    for node in kept:
        begin, end = table.span(node)
        nodes += numbers.nodes[2 * node : 2 * node + 2]
        first = whole.first_buffers[node]
        last = whole.first_buffers[node + 1] if node + 1 < len(whole.nodes) else len(whole.buffers)
        for index in range(first, last):
            offset, size = numbers.buffers[2 * index : 2 * index + 2]
            buffers += (offset - begin + at, size)
        at += end - begin
    return Numbers(0, at, numbers.row_count, tuple(nodes), tuple(buffers))


def _spans(table: ColumnTable, kept: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of the kept nodes in the body; neighbours together."""
    spans: list[tuple[int, int]] = []
    for node in kept:
        begin, end = table.span(node)
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    return spans


def _ends(numbers: Numbers, layout: MessageLayout) -> tuple[int, ...]:
    """The end of each node's bytes: where the first buffer of the next node starts."""
    return (*(numbers.buffers[2 * first] for first in layout.first_buffers[1:]), numbers.body_bytes)


def _check_head(data: bytes, envelope: Envelope) -> None:
    if header_crc(data[:12], data[16:20]) != envelope.header_crc:
        raise TidemarkError(ErrorCode.CORRUPT_BATCH, "header_crc does not match: offset, epoch or length was damaged")
    if not envelope.is_typed or body_crc(data) != envelope.crc:
        raise TidemarkError(ErrorCode.CORRUPT_BATCH, "crc does not match: the head of a typed batch was damaged")


def _validated(data: bytes, at: int, envelope: Envelope, arrangement: Arrangement) -> pa.RecordBatch:
    try:
        message = pa.py_buffer(data).slice(at)
        if envelope.codec == Codec.NONE:
            rows = pa.ipc.read_record_batch(message, arrangement.schema)
        else:
            stream = b"".join((arrangement.schema_message, memoryview(message)))
            with pa.ipc.open_stream(stream, options=_ONE_THREAD) as reader:
                rows = reader.read_next_batch()
        try:
            rows.validate(full=True)
        except pa.ArrowException:
            _check_each_column(rows)
            raise
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"the Arrow message of the batch cannot be read: {error}"
        ) from None
    return rows


def _check_each_column(rows: pa.RecordBatch) -> None:
    """Name the column that made a validation fail; slower than a validation of all columns."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            sentence = f"column {name} of the batch is not a valid Arrow array: {' '.join(str(error).split())}"
            raise TidemarkError(ErrorCode.INVALID_PAYLOAD, sentence, {"column": name}) from None


def _typed_rows(
    rows: pa.RecordBatch, envelope: Envelope, layout: TypedLayout, column_ids: frozenset[int] | None
) -> TypedRows:
    names = rows.schema.names
    count = rows.num_rows
    wanted = [name for name in names if name not in SYSTEM_NAMES]
    if column_ids is not None and layout.event_time_id not in column_ids and layout.event_time in wanted:
        wanted.remove(layout.event_time)

    def timestamps() -> pa.Array[Any]:
        times = "_timestamp" if "_timestamp" in names else layout.event_time
        found: pa.Array[Any]
        if envelope.has_append_time or times is None or times not in names:
            found = pa.repeat(scalar_of(envelope.max_timestamp_us, TIMESTAMP_TYPE), count)
        else:
            found = rows.column(times)
        return found

    def headers() -> pa.Array[Any]:
        return rows.column("_headers") if "_headers" in names else pa.nulls(count, HEADERS_TYPE)

    columns = rows if len(wanted) == len(names) else rows.select(wanted)
    if "_offset_delta" in names:
        offsets = stored_offsets(rows, envelope)  # read now, because damaged offsets must raise an error
        return TypedRows(columns, deletions(rows), None, lambda: offsets, timestamps, headers)
    counted = partial(counted_offsets, envelope.base_offset, count)
    return TypedRows(columns, deletions(rows), envelope.base_offset, counted, timestamps, headers)


def _mismatch(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.SCHEMA_MISMATCH, sentence)


def stored_offsets(rows: pa.RecordBatch, envelope: Envelope) -> pa.Array[Any]:
    """Offset of each stored row in the partition, int64.

    Raises:
        TidemarkError: INVALID_PAYLOAD: the offset deltas of a compacted batch do not rise.
    """
    if "_offset_delta" not in rows.schema.names:
        return counted_offsets(envelope.base_offset, rows.num_rows)
    deltas = rows.column("_offset_delta").cast(_INT64)
    count = len(deltas)
    rises = count < 2 or pc.all(pc.less(deltas.slice(0, count - 1), deltas.slice(1))).as_py()
    if not rises or (count and deltas[count - 1].as_py() > envelope.last_offset_delta):
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"offset_delta does not rise up to {envelope.last_offset_delta} at most"
        )
    return pc.add(deltas, envelope.base_offset)
