# SPDX-License-Identifier: Apache-2.0
"""The checks of a batch before a broker or a client uses it, mostly without reading values (docs/formats.md).

`check_batch` is for every batch from outside: produced, recovered, fetched. `check_replicated` is for batches that a
leader sends, whose payloads were checked on produce. `check_produced` has the rules for producers only: after a change
of a setting, a follower must still accept the batches of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.arrow_message import UNCOMPRESSED_CEILING_BYTES, MessageLayout, check_message
from tidemark.record.envelope import (
    ENVELOPE_BYTES,
    KNOWN_ATTRIBUTES,
    MAGICS,
    NO_BASE_OFFSET,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    Attributes,
    Batch,
    Codec,
    Envelope,
    body_crc,
    cut,
    header_crc,
    invalid_batch,
    parse_envelope,
)
from tidemark.record.record_indexes import REFUSED_RECORDS, ranges_of, ranges_text
from tidemark.record.schema import COMPACTED_SCHEMA, SCHEMA
from tidemark.record.shapes import COMPACTED_LAYOUT, LAYOUT
from tidemark.record.typed.column_table import check_columns

_NOT_PRODUCED: Final = KNOWN_ATTRIBUTES & ~int(Attributes.PENDING)
_OFFSET_MAX: Final = (1 << 63) - 1
_CODEC_MAX: Final = max(Codec)
_ONE_THREAD: Final = pa.ipc.IpcReadOptions(use_threads=False)
_SCHEMA_MESSAGES: Final = {len(schema): schema.serialize().to_pybytes() for schema in (SCHEMA, COMPACTED_SCHEMA)}
"""The schema message that a stream opens with, by the number of columns."""


@dataclass(frozen=True, slots=True)
class ProduceLimits:
    """Limits of a topic for producers; the defaults are the defaults of the topic settings."""

    max_message_bytes: int = 1 << 20
    """`max.message.bytes`: limit of one batch, envelope included."""
    max_uncompressed_bytes: int = UNCOMPRESSED_CEILING_BYTES
    """`max.message.uncompressed.bytes`: limit of the decompressed buffers of a batch."""
    compacted: bool = False
    """Whether the topic is compacted, so that each record needs a key."""
    timestamp_before_max_us: int | None = None
    """`message.timestamp.before.max.ms` in µs; None: no bound."""
    timestamp_after_max_us: int | None = None
    """`message.timestamp.after.max.ms` in µs; None: no bound."""
    append_time: bool = False
    """`message.timestamp.type=LogAppendTime`: the producer's timestamps do not matter."""


def check_batch(data: bytes, offset: int | None = None) -> Batch:
    """Check one batch byte by byte and return it.

    Args:
        data: exactly the batch; with an offset, bytes with the batch at that position (the rest is ignored).
        offset: byte offset of the batch in the data.

    Raises:
        TidemarkError: CORRUPT_BATCH (a CRC), INVALID_BATCH (lengths, magic, codec, attributes, ids),
            INVALID_PAYLOAD (the Arrow message), RECORD_COUNT_MISMATCH.
    """
    batch = check_envelope(data, offset)
    check_payload(batch)
    return batch


def check_batches(data: bytes) -> tuple[Batch, ...]:
    """`check_batch` on each of the concatenated batches that the data consists of."""
    return _each(data, check_batch)


def check_replicated(data: bytes) -> tuple[Batch, ...]:
    """`check_envelope` on each of the concatenated batches that a leader has sent.

    The leader that appended a batch first has checked the payload, and the CRC shows that its bytes are the same.
    """
    return _each(data, check_envelope)


def _each(data: bytes, check: Callable[[bytes, int], Batch]) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    offset = 0
    while offset < len(data):
        batch = check(data, offset)
        batches.append(batch)
        offset += batch.envelope.batch_length
    return tuple(batches)


def split_until_damage(data: bytes | memoryview) -> tuple[list[Batch], TidemarkError | None]:
    """Split concatenated batches; the CRC of each header is checked, bodies are not.

    Returns:
        The batches before the first damaged header, and the error of that header; None: all headers are valid.
    """
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        try:
            envelope = parse_envelope(data, position)
            batch = Batch(envelope, cut(data, position, envelope.batch_length))
        except TidemarkError as error:
            return batches, error
        if header_crc(batch.data[:12], batch.data[16:20]) != envelope.header_crc:
            return batches, TidemarkError(ErrorCode.CORRUPT_BATCH, "header_crc does not match: a header was damaged")
        batches.append(batch)
        position += envelope.batch_length
    return batches, None


def check_envelope(data: bytes, offset: int | None = None) -> Batch:
    """`check_batch` without the payload: lengths, CRCs, and ranges of the fields."""
    envelope = parse_envelope(data, offset or 0)
    length = envelope.batch_length
    if offset is None and length != len(data):
        raise invalid_batch(f"{len(data) - length} bytes follow the batch of {length} bytes")
    data = cut(data, offset or 0, length)
    if header_crc(data[:12], data[16:20]) != envelope.header_crc:
        raise TidemarkError(ErrorCode.CORRUPT_BATCH, "header_crc does not match: offset, epoch or length was damaged")
    if body_crc(data) != envelope.crc:
        raise TidemarkError(ErrorCode.CORRUPT_BATCH, f"crc does not match: the batch of {length} bytes was damaged")
    _check_fields(envelope)
    if envelope.is_typed:
        check_columns(data)
    return Batch(envelope, data)


def check_payload(batch: Batch) -> pa.RecordBatch | None:
    """`check_batch` without the envelope: the structure of the payload, and the values of an uncompressed payload.

    Returns:
        The fully validated rows of an uncompressed payload, zero copy. None for a compressed payload, which consumers
        and the cleaner decompress; `check_produced` does so for a compacted topic. None also for a typed batch, which
        `record.typed.batch.check_typed` checks with its schema.
    """
    envelope = batch.envelope
    if envelope.is_typed:
        return None
    facts = check_message(batch.data, ENVELOPE_BYTES, codec=envelope.codec, layout=bytes_layout(envelope))
    if facts.row_count != envelope.record_count:
        raise TidemarkError(
            ErrorCode.RECORD_COUNT_MISMATCH,
            f"record_count states {envelope.record_count} records, the Arrow message has {facts.row_count} rows",
        )
    if envelope.record_count > envelope.last_offset_delta + 1:
        raise TidemarkError(
            ErrorCode.RECORD_COUNT_MISMATCH,
            f"{envelope.record_count} records do not fit last_offset_delta {envelope.last_offset_delta}",
        )
    if envelope.codec == Codec.NONE:
        return read_validated(batch)
    try:
        pa.ipc.read_message(_payload(batch))  # pyarrow's own verifier; decompresses nothing
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(error) from None
    return None


def bytes_layout(envelope: Envelope) -> MessageLayout:
    """Nodes and buffers of the payload of a batch of bytes."""
    return COMPACTED_LAYOUT if envelope.is_compacted else LAYOUT


def read_validated(batch: Batch) -> pa.RecordBatch:
    """Decompress and fully validate a payload whose structure `check_payload` has accepted.

    Raises:
        TidemarkError: INVALID_PAYLOAD for a wrong value: offset buffers, UTF-8, null counts, offset deltas.
    """
    if batch.envelope.is_typed:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, "the batch is of a typed topic and is read with its schema")
    try:
        rows = _read(batch)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _unreadable(error) from None
    if batch.envelope.is_compacted:
        _check_offset_deltas(rows.column(4), batch.envelope.last_offset_delta)
    return rows


def check_produced(batch: Batch, limits: ProduceLimits, *, now_us: int) -> None:
    """The rules for producers only; the batch has passed `check_batch`.

    Of the timestamps only max_timestamp_us, the newest of the batch, is checked: the broker reads no other timestamp
    before it refuses a batch. NULL_KEY and INVALID_TIMESTAMP have facts, from which a producer knows the records to
    send again.

    Raises:
        TidemarkError: BATCH_TOO_LARGE, INVALID_BATCH, RECORD_COUNT_MISMATCH, NULL_KEY, INVALID_TIMESTAMP;
            INVALID_PAYLOAD: the topic is compacted, and the batch cannot be decompressed.
    """
    envelope = batch.envelope
    if envelope.batch_length > limits.max_message_bytes:
        raise TidemarkError(
            ErrorCode.BATCH_TOO_LARGE,
            f"the batch has {envelope.batch_length} bytes, max.message.bytes is {limits.max_message_bytes}",
        )
    if envelope.base_offset != NO_BASE_OFFSET or envelope.leader_epoch != NO_LEADER_EPOCH:
        raise invalid_batch("a producer must send base_offset 0 and leader_epoch -1; the leader assigns both")
    if envelope.attributes & _NOT_PRODUCED:
        raise invalid_batch(f"a producer sets none of the attributes {envelope.attributes & _NOT_PRODUCED:#x}")
    if envelope.is_pending and envelope.base_sequence < 0:
        raise invalid_batch("a batch of a transaction must have a producer_id and a base_sequence")
    if envelope.record_count == 0:
        raise invalid_batch("a produced batch must have at least one record")
    if envelope.last_offset_delta != envelope.record_count - 1:
        raise TidemarkError(
            ErrorCode.RECORD_COUNT_MISMATCH,
            f"last_offset_delta is {envelope.last_offset_delta}, with {envelope.record_count} records it must be one "
            "less",
        )
    _check_produced_payload(batch, limits)
    if not limits.append_time:
        _check_timestamp(batch, limits, now_us)


def _check_produced_payload(batch: Batch, limits: ProduceLimits) -> None:
    if batch.envelope.is_typed:
        return  # `broker.clients.typed_batches` checks a typed batch
    # An uncompressed batch within max.message.bytes can exceed the other bound only if that bound is lower.
    if not limits.compacted and limits.max_uncompressed_bytes >= (
        UNCOMPRESSED_CEILING_BYTES if batch.envelope.codec else batch.envelope.batch_length
    ):
        return
    facts = check_message(batch.data, ENVELOPE_BYTES, codec=batch.envelope.codec, layout=LAYOUT)
    if facts.uncompressed_bytes > limits.max_uncompressed_bytes:
        raise TidemarkError(
            ErrorCode.BATCH_TOO_LARGE,
            f"the batch has {facts.uncompressed_bytes} bytes uncompressed, "
            f"max.message.uncompressed.bytes is {limits.max_uncompressed_bytes}",
        )
    if limits.compacted and facts.null_key_count:
        raise _of_records(
            ErrorCode.NULL_KEY,
            f"{facts.null_key_count} records have no key; in a compacted topic each needs one",
            batch,
            lambda rows: rows.column(0).is_null().to_pylist(),
        )
    if limits.compacted and batch.envelope.codec:
        read_validated(batch)  # the cleaner decompresses the batch, and would never clean the log


def _check_timestamp(batch: Batch, limits: ProduceLimits, now_us: int) -> None:
    newest_us = batch.envelope.max_timestamp_us
    before_us, after_us = limits.timestamp_before_max_us, limits.timestamp_after_max_us
    if before_us is not None and now_us - newest_us > before_us:
        raise _of_records(
            ErrorCode.INVALID_TIMESTAMP,
            f"the newest timestamp is {now_us - newest_us} µs old, more than message.timestamp.before.max.ms",
            batch,
            lambda rows: (now_us - stamp_us > before_us for stamp_us in timestamps_us(rows)),
            timestamp_min_us=str(now_us - before_us),
        )
    if after_us is not None and newest_us - now_us > after_us:
        raise _of_records(
            ErrorCode.INVALID_TIMESTAMP,
            f"the newest timestamp is {newest_us - now_us} µs ahead, more than message.timestamp.after.max.ms",
            batch,
            lambda rows: (stamp_us - now_us > after_us for stamp_us in timestamps_us(rows)),
            timestamp_max_us=str(now_us + after_us),
        )


def timestamps_us(rows: pa.RecordBatch) -> list[int]:
    """The timestamps of rows in SCHEMA."""
    return cast("list[int]", rows.column(2).cast(pa.int64()).to_pylist())


def _of_records(
    code: ErrorCode,
    sentence: str,
    batch: Batch,
    refused: Callable[[pa.RecordBatch], Iterable[bool | None]],
    **facts: str,
) -> TidemarkError:
    """The refusal of a batch for some of its records; it names them in `records` if the batch is not compressed."""
    if batch.envelope.codec == Codec.NONE and not batch.envelope.is_typed:
        ranges = ranges_of(refused(read_validated(batch)))
        facts |= {REFUSED_RECORDS: ranges_text(ranges)} if ranges else {}
    return TidemarkError(code, sentence, facts)


def _check_fields(envelope: Envelope) -> None:
    if envelope.magic not in MAGICS:
        raise invalid_batch(f"magic {envelope.magic} is not known here; this version reads {MAGICS}")
    if envelope.codec > _CODEC_MAX:
        raise invalid_batch(f"codec {envelope.codec} is not known: 0 none, 1 lz4, 2 zstd")
    if envelope.is_typed != bool(envelope.schema_version):
        raise invalid_batch(f"schema version {envelope.schema_version} does not go with magic {envelope.magic}")
    if envelope.delete_horizon_s and not envelope.has_delete_horizon:
        raise invalid_batch("delete_horizon_s is given and its attribute is not set")
    if envelope.base_offset < 0 or envelope.next_offset > _OFFSET_MAX:
        raise invalid_batch(f"base_offset {envelope.base_offset} is outside the offsets of a log")
    if envelope.leader_epoch < NO_LEADER_EPOCH:
        raise invalid_batch(f"leader_epoch {envelope.leader_epoch} is below -1")
    if min(envelope.producer_id, envelope.producer_epoch, envelope.base_sequence) < NO_SEQUENCE:
        raise invalid_batch("producer_id, producer_epoch and base_sequence must be -1 or more")
    if (envelope.producer_id < 0) != (envelope.producer_epoch < 0):
        raise invalid_batch("producer_id and producer_epoch must be given together or not at all")
    if envelope.producer_id < 0 <= envelope.base_sequence:
        raise invalid_batch("base_sequence needs a producer_id")


def _check_offset_deltas(deltas: pa.Array[Any], last_offset_delta: int) -> None:
    count = len(deltas)
    rises = count < 2 or pc.all(pc.less(deltas.slice(0, count - 1), deltas.slice(1))).as_py()
    if not rises or (count and deltas[count - 1].as_py() > last_offset_delta):
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"offset_delta does not rise from row to row up to {last_offset_delta} at most"
        )


def _read(batch: Batch) -> pa.RecordBatch:
    schema = COMPACTED_SCHEMA if batch.envelope.is_compacted else SCHEMA
    if batch.envelope.codec == Codec.NONE:
        return pa.ipc.read_record_batch(_payload(batch), schema)
    # Only the stream reader has an option to decompress on this thread. For a batch of this size, Arrow's thread pool
    # costs several times the decompression.
    stream = b"".join((_SCHEMA_MESSAGES[len(schema)], memoryview(batch.data)[ENVELOPE_BYTES:]))
    with pa.ipc.open_stream(stream, options=_ONE_THREAD) as reader:
        return reader.read_next_batch()


def _payload(batch: Batch) -> pa.Buffer:
    return pa.py_buffer(batch.data).slice(ENVELOPE_BYTES)


def _unreadable(error: BaseException) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the Arrow message of the batch cannot be read: {error}")
