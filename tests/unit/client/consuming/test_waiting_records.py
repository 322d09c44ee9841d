# SPDX-License-Identifier: Apache-2.0
"""The records of a polled batch: the short way to the next one moves the positions as the long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.record_reader import RecordReader, WaitingRecords
from tidemark.client.records import ConsumerRecord
from tidemark.model import TopicPartition
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import stamped
from tidemark.record.payload import build_batch, from_columns

COUNT = 4


def stored(base_offset: int) -> bytes:
    values = [b"%d" % number for number in range(COUNT)]
    data = build_batch(from_columns([b"k"] * COUNT, values, [7] * COUNT))
    return stamped(check_envelope(data), base_offset=base_offset, leader_epoch=base_offset).data


def begun(reader: RecordReader | None = None) -> tuple[WaitingRecords, Cursor]:
    """Two batches; the reader has returned a part of the first one."""
    cursor = Cursor(TopicPartition("t", 0), 0, topic_id="id", incarnation="i")
    cursor.take(stored(0) + stored(COUNT))
    waiting = WaitingRecords(RecordReader() if reader is None else reader)
    begin(waiting, cursor)
    return waiting, cursor


def begin(waiting: WaitingRecords, cursor: Cursor) -> None:
    rows = cursor.next_rows()
    assert rows is not None
    waiting.begin(cursor, rows)


def iterated(*, quickly: bool) -> list[tuple[Any, ...]]:
    """Each record of both batches, with the positions when the application has it."""
    waiting, cursor = begun()
    found: list[tuple[Any, ...]] = []
    for _ in range(2 * COUNT):
        record = waiting.take_next(cursor) if quickly and found and len(found) % COUNT else None
        if record is None:
            cursor.settle()
            if waiting.cursor is None:
                begin(waiting, cursor)
            record = waiting.take()
        found.append((record, cursor.position, cursor.position_epoch, cursor.processed, cursor.processed_epoch))
    return found


def test_both_ways_return_the_same_records_and_move_the_same_positions() -> None:
    slow = iterated(quickly=False)
    assert iterated(quickly=True) == slow
    assert [record.offset for record, *_ in slow] == list(range(2 * COUNT))
    assert slow[1][0] == ConsumerRecord("t", 0, 1, 7, b"k", b"1", ())


def test_short_way_leaves_the_last_record_of_a_batch() -> None:
    waiting, cursor = begun()
    waiting.take()
    assert [waiting.take_next(cursor) is None for _ in range(COUNT)] == [False] * (COUNT - 2) + [True, True]
    assert waiting.take().offset == COUNT - 1


@pytest.mark.parametrize(
    "change",
    [
        lambda cursor: setattr(cursor, "paused", True),
        lambda cursor: setattr(cursor, "withheld", True),
        lambda cursor: cursor.seek(0),
    ],
    ids=["paused", "withheld", "sought"],
)
def test_short_way_ends_when_the_partition_gives_no_records(change: Callable[[Cursor], None]) -> None:
    waiting, cursor = begun()
    waiting.take()
    change(cursor)
    assert waiting.take_next(cursor) is None


def test_short_way_is_not_for_another_partition_or_deserializers() -> None:
    waiting, cursor = begun()
    waiting.take()
    assert waiting.take_next(Cursor(TopicPartition("t", 1), 0, topic_id="id", incarnation="i")) is None
    waiting, cursor = begun(RecordReader(value_deserializer="text"))
    waiting.take()
    assert waiting.take_next(cursor) is None
