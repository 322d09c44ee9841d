# SPDX-License-Identifier: Apache-2.0
"""Counts of acknowledged and failed records, and the end by --count."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from tidemark.cli.produce.run import Tally, limited, send
from tidemark.client.records import BatchMetadata
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.schema import SCHEMA


class Sending:
    def __init__(self, *outcomes: BatchMetadata | tuple[int, TidemarkError], done: bool = True) -> None:
        self._outcomes = outcomes
        self._done = done

    def done(self) -> bool:
        return self._done

    def outcomes(self, timeout: float | None = None) -> tuple[list[BatchMetadata], list[tuple[int, TidemarkError]]]:
        went = [one for one in self._outcomes if isinstance(one, BatchMetadata)]
        return went, [one for one in self._outcomes if not isinstance(one, BatchMetadata)]


def test_acknowledged_records_are_counted_by_partition_and_the_first_failure_is_kept() -> None:
    tally = Tally()
    first, second = (TidemarkError(ErrorCode.REQUEST_TIMED_OUT, text) for text in ("first", "second"))
    tally.add(Sending(BatchMetadata("t", 1, 0, 5), (3, first)), 8)
    tally.add(Sending((2, second), BatchMetadata("t", 1, 5, 1)), 3)
    tally.reap()
    assert (tally.sent, tally.acknowledged, tally.failed, dict(tally.by_partition)) == (11, 6, 5, {1: 6})
    assert tally.first_error is first


def test_tables_in_flight_are_awaited_only_at_the_end() -> None:
    tally = Tally()
    tally.add(Sending(BatchMetadata("t", 0, 0, 1)), 1)
    tally.add(Sending(BatchMetadata("t", 0, 1, 2), done=False), 2)
    tally.reap()
    assert tally.acknowledged == 1
    tally.reap(everything=True)
    assert tally.acknowledged == 3


def rows(count: int, *, stamped: bool = False) -> pa.RecordBatch:
    stamps = pa.array([7 if stamped else None] * count, pa.int64()).cast(SCHEMA.field("timestamp").type)
    columns = [pa.nulls(count, pa.binary()), pa.array([b"v"] * count), stamps, pa.nulls(count, SCHEMA.field(3).type)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.mark.parametrize(("count", "sizes"), [(None, [2, 3]), (2, [2]), (4, [2, 2]), (9, [2, 3]), (10**20, [2, 3])])
def test_no_more_than_count_records_are_sent(count: int | None, sizes: list[int]) -> None:
    assert [chunk.num_rows for chunk in limited([rows(2), rows(3)], count)] == sizes


def test_rows_without_a_timestamp_get_the_current_time() -> None:
    sent: list[pa.RecordBatch] = []

    class Producer:
        def send_table(self, topic: str, table: pa.RecordBatch, *, timestamp: str) -> Sending:
            assert (topic, timestamp) == ("t", "timestamp")
            sent.append(table)
            return Sending()

    before_us = time.time_ns() // 1000
    for chunk in (rows(1), rows(1, stamped=True)):
        send(Producer(), "t", chunk, Tally())
    first, second = (chunk.column("timestamp").cast(pa.int64())[0].as_py() for chunk in sent)
    assert before_us <= first <= time.time_ns() // 1000
    assert second == 7
