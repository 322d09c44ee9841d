# SPDX-License-Identifier: Apache-2.0
"""Readers of both isolation levels over logs with transactions: whole batches are returned or dropped (rule X4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.health import lag_of
from tidemark.client.consuming.isolation import NONE_ABORTED, aborted_in, level_of
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.settings import consumer_settings
from tidemark.model import ErrorCode, TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_batch, from_columns
from tidemark.rpc.codecs.fetch import Fetched
from tidemark.v1 import broker_service_pb2 as pb

from tests.refusals import raises_code

T0 = TopicPartition("t", 0)
PLAIN = -1
EVENTS = st.lists(
    st.tuples(st.sampled_from([PLAIN, 1, 2]), st.sampled_from(["write", "commit", "abort"]), st.integers(1, 3)),
    max_size=14,
)


class Log(NamedTuple):
    """A log of one partition, and the offsets that readers of each isolation level return."""

    batches: list[bytes]
    result: pb.PartitionFetchResult
    written: list[int]
    committed: list[int]


def log_of(events: list[tuple[int, str, int]]) -> Log:
    """Producers 1 and 2 write transactions, producer -1 none; transactions that no event ends are aborted."""
    batches: list[bytes] = []
    written: list[int] = []
    visible: list[int] = []
    open_offsets: dict[int, list[int]] = {}
    epochs = {1: 0, 2: 0}
    aborted: list[pb.AbortedTransaction] = []
    end = 0
    for producer, kind, count in [*events, (1, "abort", 1), (2, "abort", 1)]:
        if kind == "write":
            data = build_batch(
                from_columns(None, [b"v"] * count, [7] * count),
                producer_id=producer,
                producer_epoch=epochs.get(producer, -1),
                base_sequence=-1 if producer == PLAIN else len(open_offsets.get(producer, [])),
                pending=producer != PLAIN,
            )
            offsets = list(range(end, end + count))
            written += offsets
            (visible if producer == PLAIN else open_offsets.setdefault(producer, [])).extend(offsets)
        elif producer in open_offsets:
            epochs[producer] += 1
            marker = EndMarker(kind == "commit", 3)
            data = build_marker(producer_id=producer, producer_epoch=epochs[producer], marker=marker, timestamp_us=7)
            offsets, count = open_offsets.pop(producer), 1
            if kind == "commit":
                visible += offsets
            else:
                aborted.append(pb.AbortedTransaction(producer_id=producer, first_offset=offsets[0], last_offset=end))
        else:
            continue
        batches.append(stamped(Batch(parse_envelope(data), data), base_offset=end, leader_epoch=0).data)
        end += count
    result = pb.PartitionFetchResult(high_watermark=end, last_stable_offset=end, aborted_transactions=aborted)
    return Log(batches, result, written, sorted(visible))


def given_out(cursor: Cursor) -> list[int]:
    offsets: list[int] = []
    while (rows := cursor.next_rows()) is not None:
        offsets += rows.column("offset").to_pylist()
        cursor.passed()
    return offsets


@given(EVENTS, st.data())
def test_a_consumer_gets_neither_markers_nor_in_read_committed_aborted_records(
    events: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    log = log_of(events)
    for aborted, wanted in ((aborted_in(log.result), log.committed), (NONE_ABORTED, log.written)):
        cursor = Cursor(T0, 0, topic_id="id", incarnation="i")
        found: list[int] = []
        while cursor.position < log.result.high_watermark:
            following = [one for one in log.batches if parse_envelope(one).next_offset > cursor.fetch_offset]
            assert cursor.take(b"".join(following[: data.draw(st.integers(1, 3))]), aborted)
            if data.draw(st.booleans()):
                cursor.forget_buffer()
            found += given_out(cursor)
        assert found == wanted
        assert cursor.buffered_bytes == 0
        assert cursor.position == log.result.high_watermark


@given(EVENTS)
def test_a_range_reader_gets_neither_markers_nor_in_read_committed_aborted_records(
    events: list[tuple[int, str, int]],
) -> None:
    log = log_of(events)
    with pytest.MonkeyPatch.context() as patch:
        for isolation_level, wanted in (("read_committed", log.committed), ("read_uncommitted", log.written)):
            with RangeReader("h:9000", deadline_s=5, isolation_level=isolation_level) as reader:

                def fetch(self: RangeReader, begin: Any, *_: Any, **__: Any) -> Fetched:
                    following = [one for one in log.batches if parse_envelope(one).next_offset > begin.start]
                    facts = pb.PartitionFetchResult()
                    if self._isolation_level == pb.READ_COMMITTED:
                        facts.CopyFrom(log.result)
                    return Fetched(facts, b"".join(following[:2]))

                patch.setattr(RangeReader, "_fetch", fetch)
                found = [
                    offset
                    for rows in reader.read("t", 0, 0, log.result.high_watermark)
                    for offset in rows.column("offset").to_pylist()
                ]
                assert found == wanted


def test_an_aborted_transaction_hides_no_batch_of_a_later_one_of_the_same_producer() -> None:
    log = log_of([(1, "write", 2), (1, "abort", 1), (1, "write", 2), (1, "commit", 1)])
    cursor = Cursor(T0, 0, topic_id="id", incarnation="i")
    cursor.take(b"".join(log.batches), aborted_in(log.result))
    assert given_out(cursor) == [3, 4]


@pytest.mark.parametrize(
    ("isolation_level", "end", "level"),
    [("read_committed", 6, pb.READ_COMMITTED), ("read_uncommitted", 10, pb.READ_UNCOMMITTED)],
)
async def test_a_fetch_names_the_isolation_level_and_lag_counts_to_its_end(
    isolation_level: str, end: int, level: int
) -> None:
    cluster: Any = SimpleNamespace(view=None, topic_now=lambda topic: None)
    fetcher = Fetcher(cluster, consumer_settings(isolation_level=isolation_level))
    assert fetcher._isolation_level == level
    cursor = fetcher.cursors[T0] = Cursor(T0, 4, topic_id="id", incarnation="i")
    result = pb.PartitionFetchResult(topic="t", high_watermark=10)
    if level == pb.READ_COMMITTED:
        result.last_stable_offset = 6
    question: Any = SimpleNamespace(cursor=cursor, read_from=pb.READ_FROM_LEADER)
    fetcher._take(question, Fetched(result), "h:1")
    assert lag_of(cursor) == end - 4


@pytest.mark.parametrize("wrong", ["committed", "READ_COMMITTED", ""])
def test_an_unknown_isolation_level_is_refused_with_the_known_ones(wrong: str) -> None:
    for check in (level_of, lambda level: consumer_settings(isolation_level=level)):
        with raises_code(ErrorCode.INVALID_CONFIG, "expected read_uncommitted or read_committed"):
            check(wrong)
