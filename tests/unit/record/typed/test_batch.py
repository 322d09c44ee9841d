# SPDX-License-Identifier: Apache-2.0
"""Typed batches: any rows are read as they were written, whole or pruned; every damaged byte is found."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import check_batch, check_envelope
from tidemark.record.compaction import CleaningRule, KeyOffsets, compact, decode
from tidemark.record.envelope import Attributes, Batch, Codec, seal, stamped, with_append_time
from tidemark.record.typed import layout as layout_module
from tidemark.record.typed.batch import build_typed_batch, check_typed, encode_typed, prune, read_pruned, read_typed
from tidemark.record.typed.column_table import HAS_HEADERS, HAS_TIMESTAMPS, HAS_TOMBSTONES, NO_NODE, parse_table
from tidemark.record.typed.layout import TIMESTAMP_ID, TypedLayout
from tidemark.record.typed.times import times_and_offsets

from tests.refusals import raises_code
from tests.unit.record.typed.samples import FLIGHTS, NOON_US, flights, resealed, three_flights, typed_rows

CODECS = list(Codec)
few = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def batch_of(rows: pa.RecordBatch, layout: TypedLayout, codec: Codec = Codec.NONE, **fields: Any) -> Batch:
    data = build_typed_batch(rows, layout, codec=codec, timestamp_us=NOON_US, **fields)
    return stamped(check_batch(data), base_offset=100, leader_epoch=3)


@given(typed_rows(), st.sampled_from(CODECS))
@few
def test_any_rows_come_back_as_they_were(sample: tuple[TypedLayout, pa.RecordBatch], codec: Codec) -> None:
    layout, rows = sample
    batch = batch_of(rows, layout, codec)
    assert batch.envelope.schema_version == layout.version
    found = read_typed(batch, layout)
    assert found.columns.equals(rows)
    assert found.columns.schema == rows.schema
    assert found.offsets.to_pylist() == list(range(100, 100 + rows.num_rows))
    assert found.timestamps.cast(pa.int64()).to_pylist() == [NOON_US] * rows.num_rows


@given(typed_rows(), st.sampled_from(CODECS), st.data())
@few
def test_a_pruned_batch_has_the_columns_that_were_asked_for(
    sample: tuple[TypedLayout, pa.RecordBatch], codec: Codec, data: st.DataObject
) -> None:
    layout, rows = sample
    names = data.draw(st.lists(st.sampled_from(rows.schema.names), unique=True))
    tops = {name: _first_node(layout, name) for name in rows.schema.names}
    ids = frozenset(layout.node_ids[tops[name]] for name in names)
    batch = batch_of(rows, layout, codec)
    pruned = prune(batch.data, layout, ids)
    found = read_pruned(pruned, layout, ids)
    wanted = [name for name in rows.schema.names if name in names]
    assert found.columns.schema.names == wanted
    assert found.columns.num_rows == rows.num_rows
    assert all(found.columns.column(name).equals(rows.column(name)) for name in wanted)
    assert len(pruned) <= len(batch.data)


def _first_node(layout: TypedLayout, name: str) -> int:
    def count(kind: Any) -> int:
        return 1 + sum(count(kind.field(index).type) for index in range(kind.num_fields))

    index = layout.schema.get_field_index(name)
    return sum(count(layout.schema.field(before).type) for before in range(index))


@pytest.mark.parametrize("codec", CODECS)
def test_a_part_of_a_struct_can_be_read_alone(codec: Codec) -> None:
    layout = flights()
    batch = batch_of(three_flights(), layout, codec)
    ids = frozenset({5, 9})  # leg.origin, stops.element.at
    found = read_pruned(prune(batch.data, layout, ids), layout, ids)
    assert found.columns.to_pylist() == [
        {"leg": {"origin": "EWR"}, "stops": [{"at": "ORD"}, {"at": None}]},
        {"leg": {"origin": "JFK"}, "stops": []},
        {"leg": {"origin": "LGA"}, "stops": None},
    ]


def test_the_columns_that_a_client_names_cost_a_broker_no_arrow_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = flights()
    data = batch_of(three_flights(), layout).data
    made: list[int] = []
    know = layout_module.know_shapes
    monkeypatch.setattr(layout_module, "know_shapes", lambda *schema: made.append(1) or know(*schema))
    sizes = {len(prune(data, layout, frozenset(ids))) for ids in ({3}, {3, 5}, {3, 5, 7}, {3, 99}, set(range(1, 500)))}
    assert len(sizes) == 4
    assert not made


def test_an_event_time_is_the_timestamp_and_is_pruned_unless_asked_for() -> None:
    layout = flights()
    batch = batch_of(three_flights(), layout)
    times = three_flights().column("scheduled_at")
    assert batch.envelope.max_timestamp_us == max(times.cast(pa.int64()).to_pylist())
    assert parse_table(batch.data).min_timestamp_us == min(times.cast(pa.int64()).to_pylist())
    assert read_typed(batch, layout).timestamps.equals(times)
    with_time = frozenset({3, TIMESTAMP_ID})
    found = read_pruned(prune(batch.data, layout, with_time), layout, with_time)
    assert found.timestamps.equals(times)
    assert found.columns.schema.names == ["delay"]
    without = read_pruned(prune(batch.data, layout, frozenset({3})), layout, frozenset({3}))
    assert without.columns.to_pylist() == [{"delay": 5}, {"delay": None}, {"delay": -3}]


def test_system_columns_come_beside_the_columns() -> None:
    layout = TypedLayout(7, pa.schema([pa.field("n", pa.int64())]), [1])
    flags = HAS_TIMESTAMPS | HAS_HEADERS | HAS_TOMBSTONES
    rows = pa.RecordBatch.from_pylist(
        [
            {"_timestamp": NOON_US, "_headers": [("a", b"1")], "_deleted": False, "n": 1},
            {"_timestamp": NOON_US + 9, "_headers": None, "_deleted": True, "n": None},
        ],
        schema=layout.arrangement(flags).schema,
    )
    batch = batch_of(rows, layout, flags=flags)
    found = read_typed(batch, layout)
    assert found.columns.to_pylist() == [{"n": 1}, {"n": None}]
    assert found.timestamps.cast(pa.int64()).to_pylist() == [NOON_US, NOON_US + 9]
    assert found.headers.to_pylist() == [[("a", b"1")], None]
    assert found.deleted is not None
    assert found.deleted.to_pylist() == [False, True]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("flags", [0, HAS_TIMESTAMPS])
def test_times_and_offsets_are_read_without_the_schema(codec: Codec, flags: int) -> None:
    layout = flights() if not flags else TypedLayout(1, pa.schema([pa.field("n", pa.int64())]), [1])
    rows = (
        three_flights()
        if not flags
        else pa.RecordBatch.from_pylist(
            [{"_timestamp": NOON_US + n, "n": n} for n in (4, 1)], schema=layout.arrangement(flags).schema
        )
    )
    batch = batch_of(rows, layout, codec, flags=flags)
    times, offsets = times_and_offsets(batch)
    whole = read_typed(batch, layout)
    assert times.equals(whole.timestamps)
    assert offsets.equals(whole.offsets)


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_batch_has_the_offsets_of_its_rows(codec: Codec) -> None:
    layout = flights()
    arrangement = layout.arrangement(HAS_HEADERS | HAS_TOMBSTONES, compacted=True)
    system = [pa.nulls(3, arrangement.schema.field(0).type), pa.array([False] * 3), pa.array([1, 4, 9], pa.uint32())]
    rows = pa.RecordBatch.from_arrays([*system, *three_flights().columns], schema=arrangement.schema)
    flags = HAS_HEADERS | HAS_TOMBSTONES
    envelope = batch_of(three_flights(), layout).envelope
    payload = encode_typed(rows, arrangement, codec, flags, layout.event_time_node(flags, compacted=True), NOON_US)
    attributes = envelope.attributes | Attributes.COMPACTED
    data = seal(envelope._replace(codec=codec, attributes=attributes, last_offset_delta=9), payload)
    batch = check_envelope(data)
    found = read_typed(batch, layout)
    assert found.offsets.to_pylist() == [101, 104, 109]
    assert found.columns.equals(three_flights())
    times, offsets = times_and_offsets(batch)
    assert offsets.equals(found.offsets)
    assert times.equals(found.timestamps)
    ids = frozenset({3})
    assert read_pruned(prune(data, layout, ids), layout, ids).offsets.to_pylist() == [101, 104, 109]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_without_rows_as_cleaning_leaves_it_has_no_times(codec: Codec) -> None:
    """A search by time treats a batch with unreadable times as damaged."""
    layout = flights()
    decoded = decode(batch_of(three_flights(), layout, codec), lambda _: layout)
    latest = KeyOffsets(1 << 20)
    newer = stamped(batch_of(three_flights(), layout, codec), base_offset=200, leader_epoch=3)
    latest.add([decoded, decode(newer, lambda _: layout)])
    (left,) = compact([decoded], latest, CleaningRule(300, now_s=0, delete_horizon_s=0, kept={100}))
    assert left is not None
    batch = check_envelope(left)
    assert batch.envelope.record_count == 0
    assert [len(found) for found in times_and_offsets(batch)] == [0, 0]
    assert read_typed(batch, layout).columns.num_rows == 0
    assert read_pruned(prune(left, layout, frozenset({3})), layout, frozenset({3})).columns.num_rows == 0


def test_an_append_time_needs_no_pass_over_the_columns() -> None:
    layout = flights()
    stamped_later = with_append_time(batch_of(three_flights(), layout), timestamp_us=NOON_US)
    found = read_typed(check_envelope(stamped_later.data), layout)
    assert found.timestamps.cast(pa.int64()).to_pylist() == [NOON_US] * 3
    assert found.columns.equals(three_flights())


def test_a_pruned_batch_with_a_buffer_at_the_end_of_all_numbers_is_refused() -> None:
    layout = flights()
    data = batch_of(three_flights(), layout).data
    table = parse_table(data)
    begin, _ = table.span(2)
    at = data.index(begin.to_bytes(8, "little"), table.message_at)  # the first buffer of delay
    lie = resealed(data[:at] + (-(1 << 63)).to_bytes(8, "little", signed=True) + data[at + 8 :])
    ids = frozenset({3})
    with pytest.raises(TidemarkError, match="outside of any body"):
        read_pruned(prune(lie, layout, ids), layout, ids)


def touch(rows: pa.RecordBatch) -> None:
    rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))


def test_a_null_in_a_column_that_is_never_null_is_refused_by_name() -> None:
    rows = three_flights()
    nulls = pa.RecordBatch.from_arrays([pa.array(["UA", None, "AA"]), *rows.columns[1:]], schema=FLIGHTS)
    with raises_code(ErrorCode.SCHEMA_MISMATCH, "column carrier has nulls"):
        build_typed_batch(nulls, flights())


def test_a_bitmap_that_hides_nulls_in_a_compressed_column_is_refused() -> None:
    """The count states 0 and the bitmap of the compressed column is there: the broker decodes nothing and refuses."""
    nullable = pa.schema([field.with_nullable(True) for field in FLIGHTS])
    layout = TypedLayout(1, nullable, flights().node_ids)
    rows = pa.RecordBatch.from_arrays([pa.array(["UA", None, "AA"]), *three_flights().columns[1:]], schema=nullable)
    data = batch_of(rows, layout, Codec.LZ4).data
    numbers_at = data.index((3).to_bytes(8, "little") + (1).to_bytes(8, "little"))  # length and null count of node 0
    lie = resealed(data[: numbers_at + 8] + bytes(8) + data[numbers_at + 16 :])
    strict = TypedLayout(1, pa.schema([FLIGHTS.field(0), *list(nullable)[1:]]), flights().node_ids)
    with pytest.raises(TidemarkError, match="column carrier has a validity bitmap and is never null"):
        check_typed(check_envelope(lie), strict)


def test_a_batch_of_another_version_is_refused() -> None:
    batch = batch_of(three_flights(), flights())
    other = TypedLayout(2, pa.schema([*FLIGHTS, pa.field("gate", pa.string())]), [*flights().node_ids, 15])
    with pytest.raises(TidemarkError):
        check_typed(batch, other)
    assert parse_table(batch.data).event_time_node != NO_NODE


@pytest.mark.parametrize("codec", CODECS)
def test_values_of_a_wider_type_than_the_columns_are_refused(codec: Codec) -> None:
    wide, narrow = (TypedLayout(7, pa.schema([pa.field("n", kind)]), [1]) for kind in (pa.int64(), pa.int32()))
    rows = pa.record_batch([pa.array(range(100), pa.int64())], schema=wide.schema)
    batch = batch_of(rows, wide, codec)
    check_typed(batch, wide)
    with pytest.raises(TidemarkError, match="bytes long, column n needs 400"):
        check_typed(batch, narrow)
