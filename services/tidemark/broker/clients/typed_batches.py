# SPDX-License-Identifier: Apache-2.0
"""Batches of typed topics: the produce check, and the pruning of a fetch (rules S5, S6)."""

from __future__ import annotations

import contextlib
from typing import Final

from tidemark.broker.node.typed_layouts import TypedLayouts
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import ProduceLimits
from tidemark.record.envelope import Batch, cut, parse_envelope
from tidemark.record.typed.batch import TimeRange, check_typed, is_outside, prune, without_columns
from tidemark.record.typed.column_table import HAS_TOMBSTONES
from tidemark.record.typed.layout import TypedLayout
from tidemark.record.typed.times import check_times

_ALL_TIMES: Final = TimeRange()


def check_fits_topic(batch: Batch, topic: str, layouts: TypedLayouts, limits: ProduceLimits) -> None:
    """Check that a produced batch has the topic's kind, and a typed one the columns of its schema version.

    Raises:
        TidemarkError: SCHEMA_MISMATCH, UNKNOWN_SCHEMA_VERSION, INVALID_BATCH, INVALID_PAYLOAD, BATCH_TOO_LARGE.
    """
    if batch.envelope.is_typed != layouts.is_typed(topic):
        sent, has = ("typed", "no schema") if batch.envelope.is_typed else ("of bytes", "a schema")
        raise _mismatch(f"topic {topic} has {has}, and the batch is {sent}", topic)
    if not batch.envelope.is_typed:
        return
    version = batch.envelope.schema_version
    try:
        checked = check_typed(batch, layouts.writable(topic, version))
        check_times(batch)
    except TidemarkError as error:
        if error.code is ErrorCode.UNKNOWN_SCHEMA_VERSION:
            raise
        sentence = f"topic {topic}, schema version {version}: {error.message}"
        raise TidemarkError(error.code, sentence, {"topic": topic, "version": str(version)}) from error
    if checked.uncompressed_bytes > limits.max_uncompressed_bytes:
        raise TidemarkError(
            ErrorCode.BATCH_TOO_LARGE,
            f"the batch has {checked.uncompressed_bytes} bytes uncompressed, "
            f"max.message.uncompressed.bytes is {limits.max_uncompressed_bytes}",
        )
    if checked.flags & HAS_TOMBSTONES and not limits.compacted:
        raise _mismatch(f"topic {topic} is not compacted, and the batch has deletions of keys", topic)


def prune_batches(
    data: bytes,
    topic: str,
    layouts: TypedLayouts,
    column_ids: frozenset[int],
    max_bytes: int,
    times: TimeRange = _ALL_TIMES,
) -> bytes:
    """The batches without the columns that are not asked for, up to `max_bytes` and at least one.

    A batch without a timestamp in `times` loses all columns. A batch of a version that this broker does not know keeps
    its columns otherwise, and so does a damaged one.

    Args:
        data: whole batches.
        topic: their topic.
        layouts: versions of its schema.
        column_ids: the requested columns; none: all.
        max_bytes: soft limit of the result.
        times: the timestamps of the wanted rows.
    """
    pruned: list[bytes] = []
    asked: dict[int, frozenset[int]] = {}
    at = size_bytes = 0
    while at < len(data):
        envelope = parse_envelope(data, at)
        batch = cut(data, at, envelope.batch_length)
        if envelope.is_typed:
            with contextlib.suppress(TidemarkError):  # the reader finds the damage, and asks for a repair
                batch = _pruned(batch, layouts.known(topic, envelope.schema_version), column_ids, asked, times)
        if pruned and size_bytes + len(batch) > max_bytes:
            break
        pruned.append(batch)
        size_bytes += len(batch)
        at += envelope.batch_length
    return b"".join(pruned)


def _pruned(
    batch: bytes,
    layout: TypedLayout | None,
    column_ids: frozenset[int],
    asked: dict[int, frozenset[int]],
    times: TimeRange,
) -> bytes:
    if times != _ALL_TIMES and is_outside(batch, times):
        return without_columns(batch)
    if layout is None or not column_ids:
        return batch
    if layout.version not in asked:
        asked[layout.version] = layout.known_ids(column_ids)
    return prune(batch, layout, asked[layout.version])


def _mismatch(sentence: str, topic: str) -> TidemarkError:
    return TidemarkError(ErrorCode.SCHEMA_MISMATCH, sentence, {"topic": topic})
