# SPDX-License-Identifier: Apache-2.0
"""A broker stores only batches that fit their topic's schema, and sends only the columns that a reader names."""

from __future__ import annotations

import gc
import struct
import weakref
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tidemark.broker.clients.typed_batches import check_fits_topic, prune_batches, prune_stored
from tidemark.broker.clients.typed_batches import read_pruned as read_from_log
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.messages import NewSchemas
from tidemark.core.schemas.arrow_types import draft_from_arrow
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import NO_ID, Column, Primitive, draft_of
from tidemark.core.schemas.text import to_text
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.record.checks import ProduceLimits, check_batch
from tidemark.record.envelope import (
    ENVELOPE_BYTES,
    Batch,
    Codec,
    parse_envelope,
    seal,
    split_batches,
    stamped,
    with_append_time,
)
from tidemark.record.typed.batch import TimeRange, build_typed_batch, is_outside, prune, read_pruned, read_typed
from tidemark.record.typed.column_table import HAS_TIMESTAMPS, HAS_TOMBSTONES, parse_table

from tests.refusals import raises_code
from tests.unit.record.samples import sample
from tests.unit.record.typed.samples import FLIGHTS, resealed, three_flights
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, memory_directory, open_one

SCHEMA = first_version(draft_from_arrow(FLIGHTS).keyed(key=["carrier"], event_time="scheduled_at"))
LAYOUT = layout_of(SCHEMA)
DELAY = frozenset({column.id for column in SCHEMA.columns if column.name == "delay"})


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable()
    teach(table, {1: to_text(SCHEMA)})
    return table


def teach(table: TopicTable, texts: dict[int, str]) -> None:
    table.update_schemas({"flights": "topic-one"}, {"flights": NewSchemas("topic-one", texts)})


def typed(codec: Codec = Codec.NONE, version: int = 1, flags: int = 0) -> Batch:
    layout = layout_of(replace(SCHEMA, version=version))
    rows = three_flights()
    if flags:
        deleted = pa.array([True, False, False])
        rows = pa.RecordBatch.from_arrays([deleted, *rows.columns], schema=layout.arrangement(flags).schema)
    # the layout's names of list elements and map entries are pyarrow's own
    rows = pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(rows.columns, layout.arrangement(flags).schema, strict=True)],
        schema=layout.arrangement(flags).schema,
    )
    return check_batch(build_typed_batch(rows, layout, codec=codec, flags=flags))


def refusal(topics: TopicTable, batch: Batch, topic: str = "flights", limits: ProduceLimits | None = None) -> ErrorCode:
    with pytest.raises(TidemarkError) as refused:
        check_fits_topic(batch, topic, topics.layouts, limits or ProduceLimits())
    assert topic in refused.value.message or refused.value.code is ErrorCode.BATCH_TOO_LARGE
    return refused.value.code


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_of_the_schema_is_accepted(topics: TopicTable, codec: Codec) -> None:
    check_fits_topic(typed(codec), "flights", topics.layouts, ProduceLimits())
    check_fits_topic(check_batch(sample(codec=codec)), "notes", topics.layouts, ProduceLimits())


def test_a_batch_that_does_not_fit_is_refused_with_topic_and_version(topics: TopicTable) -> None:
    assert refusal(topics, check_batch(sample())) is ErrorCode.SCHEMA_MISMATCH
    assert refusal(topics, typed(), "notes") is ErrorCode.SCHEMA_MISMATCH
    assert refusal(topics, typed(version=2)) is ErrorCode.UNKNOWN_SCHEMA_VERSION
    assert refusal(topics, typed(flags=HAS_TOMBSTONES)) is ErrorCode.SCHEMA_MISMATCH
    small = ProduceLimits(max_uncompressed_bytes=100)
    assert refusal(topics, typed(Codec.LZ4), limits=small) is ErrorCode.BATCH_TOO_LARGE
    compacted = ProduceLimits(compacted=True)
    check_fits_topic(typed(flags=HAS_TOMBSTONES), "flights", topics.layouts, compacted)


def test_a_batch_above_the_limit_is_refused_before_any_column_is_decompressed(
    topics: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decompress(*_: object, **__: object) -> None:
        raise AssertionError("a column was decompressed")

    monkeypatch.setattr(pa, "decompress", decompress)
    small = ProduceLimits(max_uncompressed_bytes=100)
    assert refusal(topics, typed(Codec.ZSTD), limits=small) is ErrorCode.BATCH_TOO_LARGE


def test_a_batch_of_other_columns_is_refused_though_it_names_the_version(topics: TopicTable) -> None:
    other = first_version(draft_from_arrow(pa.schema([pa.field("n", pa.int64())])))
    rows = pa.RecordBatch.from_pylist([{"n": 1}], schema=layout_of(other).schema)
    assert refusal(topics, check_batch(build_typed_batch(rows, layout_of(other)))) is ErrorCode.INVALID_BATCH


@pytest.mark.parametrize("codec", list(Codec))
def test_a_fetch_of_one_column_gets_that_column_of_each_batch(topics: TopicTable, codec: Codec) -> None:
    batches = [stamped(typed(codec), base_offset=3 * number, leader_epoch=0).data for number in range(3)]
    pruned = prune_batches(b"".join(batches), "flights", topics.layouts, DELAY, 1 << 20)
    assert len(pruned) < sum(map(len, batches))
    offsets, delays = [], []
    while pruned:
        length = parse_envelope(pruned).batch_length
        rows = read_pruned(pruned[:length], LAYOUT, DELAY)
        offsets += rows.offsets.to_pylist()
        delays += rows.columns.to_pylist()
        pruned = pruned[length:]
    assert offsets == list(range(9))
    assert delays == [{"delay": 5}, {"delay": None}, {"delay": -3}] * 3


def test_a_pruned_answer_ends_at_its_limit_with_at_least_one_batch(topics: TopicTable) -> None:
    batches = [stamped(typed(), base_offset=3 * number, leader_epoch=0).data for number in range(3)]
    one = prune_batches(batches[0], "flights", topics.layouts, DELAY, 1)
    assert parse_envelope(one).batch_length == len(one)
    assert len(prune_batches(b"".join(batches), "flights", topics.layouts, DELAY, 2 * len(one))) == 2 * len(one)


def large(rows: int, base_offset: int) -> bytes:
    flights = pa.Table.from_batches([three_flights()] * (rows // 3)).combine_chunks().to_batches()[0]
    schema = LAYOUT.arrangement(0).schema
    columns = [column.cast(field.type) for column, field in zip(flights.columns, schema, strict=True)]
    batch = check_batch(build_typed_batch(pa.RecordBatch.from_arrays(columns, schema=schema), LAYOUT))
    return stamped(batch, base_offset=base_offset, leader_epoch=0).data


def test_a_prune_of_stored_batches_reads_heads_and_wanted_columns_only(topics: TopicTable) -> None:
    data = large(6_000, 0) + typed().data + large(3_000, 6_003)
    read_bytes = 0

    def read(at: int, length: int) -> bytes:
        nonlocal read_bytes
        read_bytes += length
        return data[at : at + length]

    found = prune_stored(read, len(data), "flights", topics.layouts, DELAY, 1 << 20)
    assert found == prune_batches(data, "flights", topics.layouts, DELAY, 1 << 20)
    first = parse_envelope(found).batch_length
    assert found[:first] == prune(large(6_000, 0), LAYOUT, DELAY)
    assert len(found) < read_bytes < len(found) + 16_384 < len(data) / 4
    newer = TimeRange(1 << 60)
    bare = prune_stored(read, len(data), "flights", topics.layouts, DELAY, 1 << 20, newer)
    assert [len(one.data) < 2_000 for one in split_batches(bare)] == [True] * 3


def test_a_fetch_of_columns_continues_in_the_next_segment_while_there_is_room(topics: TopicTable) -> None:
    with memory_directory() as path:
        logs = open_one(path)
        log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "50000"})
        for _ in range(6):
            lead(log, check_batch(large(900, 0)))
        assert len(list(path.rglob("*.log"))) >= 3
        end = log.log_end_offset

        def fetched(offset: int, max_bytes: int) -> list[int]:
            data = read_from_log(
                log, Offset(offset), end, "flights", topics.layouts, DELAY, max_bytes, TimeRange(None, None)
            )
            return [one.envelope.base_offset for one in split_batches(data)]

        assert fetched(0, 1 << 20) == [900 * number for number in range(6)]
        assert fetched(901, 1 << 20) == [900 * number for number in range(1, 6)]
        assert fetched(0, 1) == [0]
        assert fetched(end, 1 << 20) == []
        log.trim(Offset(1_800))
        with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE):
            fetched(900, 1 << 20)
        logs.close()


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_without_a_wanted_time_is_sent_without_columns(topics: TopicTable, codec: Codec) -> None:
    sent = typed(codec)
    newest_us = sent.envelope.max_timestamp_us
    oldest_us = parse_table(sent.data).min_timestamp_us
    whole = prune_batches(sent.data, "flights", topics.layouts, DELAY, 1 << 20)

    def fetched(*bounds: int | None, data: bytes = sent.data, ids: frozenset[int] = DELAY) -> bytes:
        return prune_batches(data, "flights", topics.layouts, ids, 1 << 20, TimeRange(*bounds))

    assert fetched(oldest_us, oldest_us + 1) == fetched(newest_us, None) == fetched(None, None) == whole
    assert fetched(newest_us, newest_us + 1, ids=frozenset()) == sent.data
    for bounds in ((newest_us + 1, None), (None, oldest_us), (newest_us + 1, newest_us + 9)):
        bare = fetched(*bounds)
        envelope = parse_envelope(bare)
        assert (envelope.batch_length, envelope.next_offset) == (len(bare), sent.envelope.next_offset)
        assert len(bare) < len(whole)
        assert fetched(*bounds, data=typed(codec, version=2).data) != typed(codec, version=2).data
        for columns in (["delay"], None):
            reader = BatchRows("flights", {1: SCHEMA}, columns, times=TimeRange(*bounds))
            for data in (bare, sent.data):
                assert reader.rows(Batch(parse_envelope(data), data), 0, 0).num_rows == 0
        with pytest.raises(TidemarkError):
            read_pruned(bare, LAYOUT, DELAY)
    flipped = bytearray(fetched(newest_us + 1, None))
    flipped[ENVELOPE_BYTES + 9] ^= 1
    with raises_code(ErrorCode.CORRUPT_BATCH):
        is_outside(bytes(flipped), TimeRange(newest_us + 1))


def test_a_batch_with_append_times_keeps_its_columns_for_every_range(topics: TopicTable) -> None:
    sent = with_append_time(typed(), timestamp_us=7).data
    assert prune_batches(sent, "flights", topics.layouts, frozenset(), 1 << 20, TimeRange(1 << 60)) == sent
    reader = BatchRows("flights", {1: SCHEMA}, times=TimeRange(1 << 60))
    assert reader.rows(Batch(parse_envelope(sent), sent), 0, 0).num_rows == 3


def test_a_batch_of_an_unknown_version_and_a_damaged_one_stay_whole(topics: TopicTable) -> None:
    newer = typed(version=2)
    assert prune_batches(newer.data, "flights", topics.layouts, DELAY, 1 << 20) == newer.data
    damaged = newer.data[:66] + b"\xff\xff" + newer.data[68:]
    old = bytearray(typed().data)
    old[66:68] = b"\xff\xff"
    assert prune_batches(bytes(old), "flights", topics.layouts, DELAY, 1 << 20) == bytes(old)
    assert prune_batches(damaged, "flights", topics.layouts, DELAY, 1 << 20) == damaged
    whole = layout_of(replace(SCHEMA, version=2))
    assert read_pruned(newer.data, whole, DELAY).columns.equals(read_typed(newer, whole).columns.select(["delay"]))


def test_an_old_version_is_refused_after_a_change_that_its_batches_do_not_survive() -> None:
    columns = [column for column in draft_of(SCHEMA).columns if column.name != "delay"]
    required = Column(NO_ID, "gate", Primitive.STRING, nullable=False)
    for added, accepted in ((replace(required, nullable=True), True), (required, False)):
        draft = replace(draft_of(SCHEMA), columns=(*columns, added))
        topics = TopicTable()
        teach(topics, {1: to_text(SCHEMA), 2: to_text(next_version(SCHEMA, draft, Compatibility.NONE))})
        if accepted:
            check_fits_topic(typed(), "flights", topics.layouts, ProduceLimits())
        else:
            assert refusal(topics, typed()) is ErrorCode.SCHEMA_MISMATCH


def test_a_schema_that_does_not_parse_makes_no_topic_of_bytes() -> None:
    topics = TopicTable()
    teach(topics, {1: "{"})
    assert refusal(topics, check_batch(sample())) is ErrorCode.SCHEMA_MISMATCH
    assert refusal(topics, typed()) is ErrorCode.UNKNOWN_SCHEMA_VERSION


# -- wrong contents under valid CRCs ---------------------------------------------------------------------------------


def with_envelope(batch: Batch, **fields: int) -> Batch:
    return check_batch(seal(batch.envelope._replace(**fields), batch.data[ENVELOPE_BYTES:]))


def with_oldest(batch: Batch, timestamp_us: int) -> Batch:
    payload = batch.data[ENVELOPE_BYTES:72] + timestamp_us.to_bytes(8, "little", signed=True) + batch.data[80:]
    return check_batch(seal(batch.envelope, payload))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("offsets", "data"), [((0, 4, 2, 6), b"abcdef"), ((0, -4, 2, 6), b"abcdef"), ((0, 1, 2, 3), b"ab\xff")]
)
def test_a_batch_with_lying_buffers_is_refused_by_column(
    topics: TopicTable, codec: Codec, offsets: tuple[int, ...], data: bytes
) -> None:
    buffers = [None, pa.py_buffer(struct.pack("<4i", *offsets)), pa.py_buffer(data)]
    lying: Any = pa.Array.from_buffers(pa.string(), 3, buffers)
    rows = read_typed(typed(), LAYOUT).columns
    rows = rows.set_column(rows.schema.names.index("carrier"), rows.schema.field("carrier"), lying)
    batch = check_batch(build_typed_batch(rows, LAYOUT, codec=codec))
    with pytest.raises(TidemarkError) as refused:
        check_fits_topic(batch, "flights", topics.layouts, ProduceLimits())
    error = refused.value
    assert error.code is ErrorCode.INVALID_PAYLOAD
    assert error.metadata == {"topic": "flights", "version": "1", "column": "carrier"}
    assert "topic flights, schema version 1: column carrier of the batch is not a valid Arrow array" in error.message


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_lies_about_its_timestamps_is_refused(topics: TopicTable, codec: Codec) -> None:
    """Retention and searches by time use the timestamps of the envelope."""
    honest = typed(codec)
    newest_us, oldest_us = honest.envelope.max_timestamp_us, parse_table(honest.data).min_timestamp_us
    for lie in (
        with_envelope(honest, max_timestamp_us=newest_us + 1),
        with_envelope(honest, max_timestamp_us=newest_us - 1),
        with_oldest(honest, oldest_us + 1),
        with_oldest(honest, oldest_us - 1),
    ):
        assert refusal(topics, lie) is ErrorCode.INVALID_BATCH


def test_a_batch_without_a_column_of_timestamps_has_one_timestamp(topics: TopicTable) -> None:
    schema = first_version(draft_from_arrow(pa.schema([pa.field("n", pa.int64())])))
    topics.update_schemas({"plain": "topic-two"}, {"plain": NewSchemas("topic-two", {1: to_text(schema)})})
    rows = pa.RecordBatch.from_pylist([{"n": 1}], schema=layout_of(schema).schema)
    batch = check_batch(build_typed_batch(rows, layout_of(schema), timestamp_us=9))
    check_fits_topic(batch, "plain", topics.layouts, ProduceLimits())
    assert refusal(topics, with_oldest(batch, 8), "plain") is ErrorCode.INVALID_BATCH


def test_a_batch_has_no_timestamps_beside_the_event_time(topics: TopicTable) -> None:
    plain, schema = typed(), LAYOUT.arrangement(HAS_TIMESTAMPS).schema
    columns = read_typed(plain, LAYOUT).columns.columns
    rows = pa.RecordBatch.from_arrays([columns[schema.names.index("scheduled_at") - 1], *columns], schema=schema)
    batch = check_batch(build_typed_batch(rows, LAYOUT, flags=HAS_TIMESTAMPS))
    assert refusal(topics, batch) is ErrorCode.INVALID_BATCH


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_column_of_timestamps_that_no_search_could_decode_is_refused(
    topics: TopicTable, codec: Codec
) -> None:
    """A search by time treats such a batch as damaged."""
    batch = typed(codec)
    table = parse_table(batch.data)
    begin, _ = table.span(table.event_time_node)
    data = bytearray(batch.data)
    at = table.body_at + begin
    data[at : at + 8] = (24).to_bytes(8, "little")  # declares three compressed timestamps
    data[at + 8 : at + 32] = b"\xff" * 24
    assert refusal(topics, check_batch(resealed(bytes(data)))) is ErrorCode.INVALID_PAYLOAD


def test_a_small_batch_of_a_billion_rows_is_refused() -> None:
    """Each reader makes an offset and a timestamp of each row: 16 GB of a batch of 5 KB."""
    schema = first_version(draft_from_arrow(pa.schema([pa.field("n", pa.bool_())])))
    count = 1 << 30
    bits = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(count // 8))])
    rows = pa.RecordBatch.from_arrays([bits], schema=layout_of(schema).schema)
    bomb = check_batch(build_typed_batch(rows, layout_of(schema), codec=Codec.ZSTD))
    assert len(bomb.data) < 10_000
    topics = TopicTable()
    topics.update_schemas({"bombs": "topic-one"}, {"bombs": NewSchemas("topic-one", {1: to_text(schema)})})
    assert refusal(topics, bomb, "bombs") is ErrorCode.BATCH_TOO_LARGE


def test_the_layouts_of_a_deleted_topic_are_forgotten(topics: TopicTable) -> None:
    layout = topics.layouts.stored("flights", 1)
    held = weakref.ref(layout)
    del layout
    topics.forget({"flights": "topic-one"})
    gc.collect()
    assert held() is None
