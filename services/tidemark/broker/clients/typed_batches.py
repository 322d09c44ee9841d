# SPDX-License-Identifier: Apache-2.0
"""Batches of typed topics: the produce check, and the pruning of a fetch (rules S5, S6)."""

from __future__ import annotations

import contextlib

from tidemark.broker.node.typed_layouts import TypedLayouts
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import ProduceLimits
from tidemark.record.envelope import Batch, cut, parse_envelope
from tidemark.record.typed.batch import check_typed, prune
from tidemark.record.typed.column_table import HAS_TOMBSTONES
from tidemark.record.typed.times import check_times


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


def prune_batches(data: bytes, topic: str, layouts: TypedLayouts, column_ids: frozenset[int], max_bytes: int) -> bytes:
    """The batches without the columns that are not asked for, up to `max_bytes` and at least one.

    A batch of a version that this broker does not know stays whole, and so does a damaged one.
    """
    pruned: list[bytes] = []
    asked: dict[int, frozenset[int]] = {}
    at = size_bytes = 0
    while at < len(data):
        envelope = parse_envelope(data, at)
        batch = cut(data, at, envelope.batch_length)
        layout = layouts.known(topic, envelope.schema_version) if envelope.is_typed else None
        if layout is not None:
            if layout.version not in asked:
                asked[layout.version] = layout.known_ids(column_ids)
            with contextlib.suppress(TidemarkError):  # the reader finds the damage, and asks for a repair
                batch = prune(batch, layout, asked[layout.version])
        if pruned and size_bytes + len(batch) > max_bytes:
            break
        pruned.append(batch)
        size_bytes += len(batch)
        at += envelope.batch_length
    return b"".join(pruned)


def _mismatch(sentence: str, topic: str) -> TidemarkError:
    return TidemarkError(ErrorCode.SCHEMA_MISMATCH, sentence, {"topic": topic})
