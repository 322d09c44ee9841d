# SPDX-License-Identifier: Apache-2.0
"""The records of `__transaction_state`: keys and values as canonical JSON (docs/formats.md).

A later version may add fields and kinds of keys; readers ignore unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.state import (
    Change,
    EndReason,
    Key,
    PageKey,
    ProducerIdentity,
    TransactionKey,
    TransactionMetadata,
    TransactionPartition,
    Value,
    Writer,
    WritersPage,
)
from tidemark.model import ErrorCode, TidemarkError

_TRANSACTION: Final = "transaction"
_PAGE: Final = "page"


def encode(change: Change) -> tuple[bytes, bytes | None]:
    """Key and value of a record; the value is None for a tombstone."""
    kind = _TRANSACTION if isinstance(change.key, TransactionKey) else _PAGE
    return _dump([kind, *change.key]), None if change.value is None else _dump(_value_out(change.value))


def decode(key: bytes, value: bytes | None) -> Change | None:
    """The change of a record; None for a kind of key of a later version.

    Raises:
        TidemarkError: INVALID_PAYLOAD if the record is not valid.
    """
    try:
        kind, *parts = json.loads(key)
        if kind not in (_TRANSACTION, _PAGE):
            return None
        found: Key = TransactionKey(*parts) if kind == _TRANSACTION else PageKey(*parts)
        return Change(found, None if value is None else _value_in(found, json.loads(value)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"{key!r} is not a record of a transaction: {type(error).__name__}: {error}"
        ) from error


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _value_out(value: Value) -> object:
    if isinstance(value, WritersPage):
        return {"number": value.number, "writers": _writers_out(value.writers)}
    return {
        "producer": list(value.producer),
        "previous": None if value.previous is None else list(value.previous),
        "generation": value.generation,
        "timeout_ms": value.timeout_ms,
        "phase": str(value.phase),
        "number": value.number,
        "started_ms": value.started_ms,
        "updated_ms": value.updated_ms,
        "last_sequence": value.last_sequence,
        "end_reason": str(value.end_reason),
        "committed": _differences(value.committed),
        "writers": _writers_out(value.writers),
    }


def _value_in(key: Key, found: dict[str, Any]) -> Value:
    if isinstance(key, PageKey):
        return WritersPage(found["number"], _writers_in(found["writers"]))
    previous = found["previous"]
    return TransactionMetadata(
        ProducerIdentity(*found["producer"]),
        None if previous is None else ProducerIdentity(*previous),
        found["generation"],
        found["timeout_ms"],
        Phase(found["phase"]),
        found["number"],
        found["started_ms"],
        found["updated_ms"],
        found["last_sequence"],
        EndReason(found["end_reason"]),
        tuple(accumulate(found["committed"])),
        _writers_in(found["writers"]),
    )


def _differences(sorted_ids: tuple[int, ...]) -> list[int]:
    """Each id as its distance from the one before: producer ids are given in blocks, so the distances are short."""
    return [after - before for before, after in zip((0, *sorted_ids), sorted_ids, strict=False)]


def _writers_out(writers: Iterable[Writer]) -> list[tuple[int, int, list[tuple[str, str, list[int]]]]]:
    """For each writer: producer id, epoch, and its partitions as (topic, topic id, partition indexes)."""
    return [(*writer.producer, _by_topic(writer.partitions)) for writer in writers]


def _by_topic(partitions: Iterable[TransactionPartition]) -> list[tuple[str, str, list[int]]]:
    grouped: dict[tuple[str, str], list[int]] = {}
    for topic, topic_id, partition in sorted(partitions):
        grouped.setdefault((topic, topic_id), []).append(partition)
    return [(topic, topic_id, indexes) for (topic, topic_id), indexes in grouped.items()]


def _writers_in(found: list[Any]) -> tuple[Writer, ...]:
    return tuple(
        Writer(
            ProducerIdentity(producer_id, epoch),
            tuple(
                TransactionPartition(topic, topic_id, index)
                for topic, topic_id, indexes in by_topic
                for index in indexes
            ),
        )
        for producer_id, epoch, by_topic in found
    )
