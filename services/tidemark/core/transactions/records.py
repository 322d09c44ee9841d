# SPDX-License-Identifier: Apache-2.0
"""The records of `__transaction_state` (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, starmap
from typing import Any, Final

from tidemark.core.state_records import Form, PartitionsOfTopic, StateRecords, by_topic, object_of, one_by_one
from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.state import (
    Change,
    EndReason,
    PageKey,
    ProducerIdentity,
    TransactionKey,
    TransactionMetadata,
    TransactionPartition,
    Writer,
    WritersPage,
)


def _differences(sorted_ids: tuple[int, ...]) -> list[int]:
    """Each id as its distance from the one before: producer ids are given in blocks, so the distances are short."""
    return [after - before for before, after in zip((0, *sorted_ids), sorted_ids, strict=False)]


def _writers_out(writers: Iterable[Writer]) -> list[tuple[int, int, list[PartitionsOfTopic]]]:
    """For each writer: producer id, epoch, and its partitions by topic."""
    return [(*writer.producer, by_topic(writer.partitions)) for writer in writers]


def _writers_in(found: list[Any]) -> tuple[Writer, ...]:
    return tuple(
        Writer(ProducerIdentity(producer_id, epoch), tuple(starmap(TransactionPartition, one_by_one(partitions))))
        for producer_id, epoch, partitions in found
    )


def _or_none(found: Any) -> ProducerIdentity | None:
    return None if found is None else ProducerIdentity(*found)


_WRITERS: Final = Form(_writers_out, _writers_in)
_RECORDS: Final = StateRecords(
    Change,
    {
        "transaction": (
            TransactionKey,
            object_of(
                TransactionMetadata,
                producer=Form(list, lambda found: ProducerIdentity(*found)),
                previous=Form(lambda value: None if value is None else list(value), _or_none),
                phase=Form(str, Phase),
                end_reason=Form(str, EndReason),
                committed=Form(_differences, lambda found: tuple(accumulate(found))),
                writers=_WRITERS,
            ),
        ),
        "page": (PageKey, object_of(WritersPage, writers=_WRITERS)),
    },
    "a transaction",
)
encode: Final = _RECORDS.encode
decode: Final = _RECORDS.decode
