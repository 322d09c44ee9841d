# SPDX-License-Identifier: Apache-2.0
"""Batches of typed topics: the produce check, and the pruning of a fetch (rules S5, S6)."""

from __future__ import annotations

import contextlib
from typing import Final

from tidemark.broker.node.typed_layouts import TypedLayouts
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.ports import Log, ReadBytes
from tidemark.record.checks import ProduceLimits
from tidemark.record.envelope import Batch, Envelope, end_of_batches, head_end, parse_envelope
from tidemark.record.typed.batch import TimeRange, check_typed, is_outside, kept_spans, read_values, shortened_head
from tidemark.record.typed.column_table import HAS_TOMBSTONES
from tidemark.record.typed.layout import TypedLayout
from tidemark.record.typed.times import check_times

_ALL_TIMES: Final = TimeRange()
READ_AHEAD: Final = 16
"""A fetch of some columns reads up to this multiple of the bytes that its answer may have."""
_SEEN_BYTES_MAX: Final = 64 << 20
"""Limit of the bytes that a fetch of some columns reads: the heads of batches, and the columns of its answer."""
_HEAD_BYTES: Final = 4 << 10
"""Size of the first read of a batch, in bytes: its head, unless its schema is wide."""
_WHOLE_BYTES: Final = 32 << 10
"""A batch up to this size is read whole: more reads would cost more than the copy of columns that are omitted."""

Parts = list[bytes | memoryview]


def check_fits_topic(batch: Batch, topic: str, layouts: TypedLayouts, limits: ProduceLimits) -> None:
    """Check that a produced batch has the topic's kind, and a typed one the columns of its schema version.

    Raises:
        TidemarkError: SCHEMA_MISMATCH, UNKNOWN_SCHEMA_VERSION, INVALID_BATCH, INVALID_PAYLOAD, BATCH_TOO_LARGE.
    """
    if batch.envelope.is_typed != layouts.is_typed(topic):
        sent, has = ("typed", "no schema") if batch.envelope.is_typed else ("of bytes", "a schema")
        sentence = f"topic {topic} has {has}, and the batch is {sent}"
        raise TidemarkError(ErrorCode.SCHEMA_MISMATCH, sentence, {"topic": topic})
    if not batch.envelope.is_typed:
        return
    version = batch.envelope.schema_version
    try:
        _check_columns(batch, layouts.writable(topic, version), limits)
    except TidemarkError as error:
        if error.code is ErrorCode.UNKNOWN_SCHEMA_VERSION:
            raise
        sentence = f"topic {topic}, schema version {version}: {error.message}"
        facts = {**error.metadata, "topic": topic, "version": str(version)}
        raise TidemarkError(error.code, sentence, facts) from error


def _check_columns(batch: Batch, layout: TypedLayout, limits: ProduceLimits) -> None:
    checked = check_typed(batch, layout)
    # this check precedes every decompression
    if checked.uncompressed_bytes > limits.max_uncompressed_bytes:
        raise TidemarkError(
            ErrorCode.BATCH_TOO_LARGE,
            f"the batch has {checked.uncompressed_bytes} bytes uncompressed, "
            f"max.message.uncompressed.bytes is {limits.max_uncompressed_bytes}",
        )
    if checked.flags & HAS_TOMBSTONES and not limits.compacted:
        raise TidemarkError(
            ErrorCode.SCHEMA_MISMATCH, "the topic is not compacted, and the batch has deletions of keys"
        )
    check_times(batch)
    if checked.rows is None:
        read_values(batch, layout)


def prune_batches(
    data: bytes,
    topic: str,
    layouts: TypedLayouts,
    column_ids: frozenset[int],
    max_bytes: int,
    times: TimeRange = _ALL_TIMES,
) -> bytes:
    """The batches with the requested columns only, up to `max_bytes` and at least one.

    A batch without a timestamp in `times` loses all columns. A damaged batch, and a batch of a version that this broker
    does not know, keep all columns.

    Args:
        data: whole batches.
        topic: their topic.
        layouts: versions of its schema.
        column_ids: the requested columns; none: all.
        max_bytes: soft limit of the result.
        times: the timestamps of the wanted rows.
    """
    view = memoryview(data)
    return prune_stored(
        lambda at, length: bytes(view[at : at + length]), len(data), topic, layouts, column_ids, max_bytes, times
    )


def read_pruned(
    log: Log,
    offset: Offset,
    end_offset: Offset,
    topic: str,
    layouts: TypedLayouts,
    column_ids: frozenset[int],
    max_bytes: int,
    times: TimeRange,
) -> bytes:
    """Read the batches from an offset on, as `prune_batches` returns them, from as many segments as the answer has room
    for.

    Raises:
        TidemarkError: the errors of `Log.read`, for the first batch.
    """
    found: list[bytes] = []
    left_bytes, unseen_bytes, seen_bytes = max_bytes, min(max_bytes * READ_AHEAD, _SEEN_BYTES_MAX), 0

    def take(read: ReadBytes, size_bytes: int) -> bytes:
        nonlocal seen_bytes
        seen_bytes = size_bytes
        return prune_stored(read, size_bytes, topic, layouts, column_ids, left_bytes, times)

    while left_bytes > 0 and unseen_bytes > 0 and offset < end_offset:
        try:
            data = log.read_parts(offset, end_offset=end_offset, max_bytes=unseen_bytes, take=take)
        except TidemarkError:
            if not found:
                raise
            break
        if not data:
            break
        found.append(data)
        left_bytes -= len(data)
        unseen_bytes -= seen_bytes
        offset = Offset(end_of_batches(data))
    return found[0] if len(found) == 1 else b"".join(found)


def prune_stored(
    read: ReadBytes,
    size_bytes: int,
    topic: str,
    layouts: TypedLayouts,
    column_ids: frozenset[int],
    max_bytes: int,
    times: TimeRange = _ALL_TIMES,
) -> bytes:
    """Like `prune_batches`, of batches in a file: the bytes of other columns are not read.

    Args:
        read: reads bytes of the batches.
        size_bytes: size of all batches.
        topic: see `prune_batches`.
        layouts: see `prune_batches`.
        column_ids: see `prune_batches`.
        max_bytes: see `prune_batches`.
        times: see `prune_batches`.
    """
    found: Parts = []
    asked: dict[int, frozenset[int]] = {}
    at = found_bytes = 0
    while at < size_bytes:
        batch = _StoredBatch(read, at, size_bytes)
        parts: Parts | None = None
        if batch.envelope.is_typed:
            with contextlib.suppress(TidemarkError):  # the reader finds the damage, and asks for a repair
                layout = layouts.known(topic, batch.envelope.schema_version)
                parts = _pruned(batch, layout, column_ids, asked, times)
        if parts is None:
            parts = [batch.between(0, batch.envelope.batch_length)]
        parts_bytes = sum(map(len, parts))
        if found and found_bytes + parts_bytes > max_bytes:
            break
        found += parts
        found_bytes += parts_bytes
        at += batch.envelope.batch_length
    return b"".join(found)


class _StoredBatch:
    """A batch whose parts are read when they are needed.

    Attributes:
        envelope: its envelope.
        head: at least the bytes before the body of a typed batch's message.
    """

    def __init__(self, read: ReadBytes, at: int, end: int) -> None:
        self._read = read
        self._at = at
        self.head = read(at, min(_HEAD_BYTES, end - at))
        self.envelope: Envelope = parse_envelope(self.head, left_bytes=end - at)
        length = self.envelope.batch_length
        if len(self.head) > length:
            self.head = self.head[:length]
        elif len(self.head) < length and (length <= _WHOLE_BYTES or head_end(self.head) == len(self.head)):
            self.head = read(at, length)

    def between(self, begin: int, end: int) -> bytes | memoryview:
        """The bytes [begin, end) of the batch."""
        if end <= len(self.head):
            return memoryview(self.head)[begin:end]
        return self._read(self._at + begin, end - begin)


def _pruned(
    batch: _StoredBatch,
    layout: TypedLayout | None,
    column_ids: frozenset[int],
    asked: dict[int, frozenset[int]],
    times: TimeRange,
) -> Parts | None:
    """The parts of the batch that its reader gets; None: the whole batch."""
    if times != _ALL_TIMES and is_outside(batch.head, times, batch.envelope):
        return [shortened_head(batch.head)]
    if layout is None or not column_ids:
        return None
    if layout.version not in asked:
        asked[layout.version] = layout.known_ids(column_ids)
    spans = kept_spans(batch.head, batch.envelope, layout, asked[layout.version])
    return [shortened_head(batch.head, spans), *(batch.between(begin, end) for begin, end in spans)]
