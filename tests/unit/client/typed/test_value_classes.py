# SPDX-License-Identifier: Apache-2.0
"""Values of records as instances of an application's classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Optional

import pyarrow as pa
import pydantic
import pytest
from pydantic.alias_generators import to_camel
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.record_reader import RecordReader, WaitingRecords
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.records import PartitionBatch
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.client.typed.value_classes import maker_of
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch
from tidemark.record.typed.column_table import HAS_TIMESTAMPS

from tests.refusals import raises_code
from tests.unit.client.typed.samples import FLIGHTS, from_records, sealed
from tests.unit.client.typed.test_refusals import ROW


@dataclasses.dataclass
class Leg:
    origin: str
    miles: int | None = None


@dataclasses.dataclass
class Flight:
    carrier: str
    legs: list[Leg]
    first: Leg | None = None
    by_gate: Optional[dict[str, Leg]] = None  # noqa: UP045 - applications write this form
    others: Sequence[Leg | None] = ()
    stops: tuple[Leg, ...] = ()
    next: Flight | None = None
    late: bool = dataclasses.field(init=False, default=False)


class Model(pydantic.BaseModel):
    carrier: str
    delay: int | None


class Stop(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel)

    air_port: str
    gate_name: str = "?"
    next_stop: Stop | None = None


def made(value_class: type, row: dict[str, Any]) -> Any:
    make = maker_of(value_class)
    assert make is not None
    return make(row)


def test_nested_dataclasses_are_made_where_their_types_say_so() -> None:
    leg = {"origin": "EWR", "miles": 7}
    row = {"carrier": "UA", "legs": [leg, leg], "first": leg, "by_gate": {"A": leg}, "others": [leg, None], "x": 1}
    row["stops"] = [leg]
    wanted = Leg("EWR", 7)
    flight = Flight("UA", [wanted, wanted], wanted, {"A": wanted}, [wanted, None], (wanted,))
    assert made(Flight, row | {"next": row, "late": True}) == dataclasses.replace(flight, next=flight)
    assert made(Flight, {"carrier": "UA", "legs": [], "first": None}) == Flight("UA", [])


def test_a_class_of_a_function_keeps_nested_dicts() -> None:
    @dataclasses.dataclass
    class Inner:
        origin: str

    @dataclasses.dataclass
    class Outer:
        leg: Inner

    assert made(Outer, {"leg": {"origin": "A"}}).leg == {"origin": "A"}


def test_models_and_other_classes_get_the_columns() -> None:
    assert made(Model, {"carrier": "UA", "delay": 3, "x": 1}) == Model(carrier="UA", delay=3)
    assert made(dict, {"carrier": "UA"}) == {"carrier": "UA"}
    assert maker_of(None) is None
    with pytest.raises(TypeError, match="value_class is 7, not a class"):
        maker_of(7)  # type: ignore[arg-type]


def test_a_model_with_aliases_gets_columns_of_its_names_and_of_its_aliases() -> None:
    """A schema that is made of the model, and records that are its instances, have the names."""
    row = {"air_port": "EWR", "gate_name": "A1", "next_stop": {"air_port": "JFK", "gate_name": "B2"}}
    aliased = {"airPort": "EWR", "gateName": "A1", "nextStop": {"airPort": "JFK", "gateName": "B2"}}
    assert made(Stop, row) == made(Stop, aliased) == Stop.model_validate(aliased)


class Crossed(pydantic.BaseModel):
    gate: int = pydantic.Field(alias="stand")
    stand: int = pydantic.Field(alias="spot")
    place: int = pydantic.Field(default=0, validation_alias=pydantic.AliasChoices("here", "there"))
    inner: Optional[list[Crossed]] = None  # noqa: UP045 - applications write this form


class Swapped(pydantic.BaseModel):
    gate: int = pydantic.Field(alias="stand")
    stand: int = pydantic.Field(alias="gate")


class CrossedByChoices(pydantic.BaseModel):
    gate: Optional[int] = pydantic.Field(None, alias="stand")  # noqa: UP045
    stand: int = pydantic.Field(validation_alias=pydantic.AliasChoices("spot", pydantic.AliasPath("spots", 0)))


class Choosing(pydantic.BaseModel):
    gate: int = pydantic.Field(validation_alias=pydantic.AliasChoices("stand", "spot"))
    stand: int = 0


class AroundCrossed(pydantic.BaseModel):
    inner: list[Crossed]


def test_a_column_with_the_name_of_a_field_is_not_taken_for_the_alias_of_another_field() -> None:
    row = {"gate": 1, "stand": 2}
    crossed, swapped = Crossed(stand=1, spot=2), Swapped(stand=1, gate=2)
    assert made(Crossed, row | {"x": 3}) == crossed
    assert made(Crossed, row | {"inner": [row]}) == crossed.model_copy(update={"inner": [crossed]})
    assert made(AroundCrossed, {"inner": [row]}) == AroundCrossed.model_construct(inner=[crossed])
    assert made(AroundCrossed, {"inner": [{"stand": 1, "spot": 2}]}) == AroundCrossed.model_construct(inner=[crossed])
    assert made(Swapped, row) == swapped
    assert made(Crossed, {"stand": 1, "spot": 2}) == crossed, "a column that is an alias only"
    by_choices = CrossedByChoices(stand=1, spot=2)
    for columns in (row, {"stand": 1, "spot": 2}, {"stand": 1, "spots": [2]}):
        assert made(CrossedByChoices, columns) == by_choices
    assert made(Choosing, row) == Choosing(spot=1).model_copy(update={"stand": 2})


def test_a_row_that_makes_no_instance_is_an_error_with_its_place() -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    stored: Batch = sealed(typed, from_records(typed, [ROW]))
    reader = RecordReader(value_class=range)
    (record,) = reader.records_in(PartitionBatch("flights", 3, BatchRows("flights", {1: FLIGHTS}).rows(stored, 3, 0)))
    with raises_code(ErrorCode.INVALID_PAYLOAD, "flights-3: value_class cannot be made of the row at offset 100"):
        reader.deserialized(record)
    reader.check_typed("flights")


class Even(pydantic.BaseModel):
    n: Annotated[int, pydantic.Field(multiple_of=2)]


def numbers(*found: int) -> Cursor:
    """A cursor with one batch, at offset 0."""
    typed = TypedFormat("t", "id", first_version(draft_from_ddl("n INT")))
    batch = sealed(typed, from_records(typed, [{"n": number} for number in found]), base_offset=0)
    cursor = Cursor(TopicPartition("t", 0), 0, topic_id="id", incarnation="i", typed=BatchRows("t", {1: typed.schema}))
    cursor.take(batch.data)
    return cursor


def test_a_record_that_makes_no_instance_stays_the_next_one() -> None:
    cursor = numbers(2, 4, 5, 6)
    rows = cursor.next_rows()
    assert rows is not None
    waiting = WaitingRecords(RecordReader(value_class=Even))
    waiting.begin(cursor, rows)
    assert [record.value.n for record in waiting.take_some(10)] == [2, 4]
    for _ in range(2):
        with pytest.raises(TidemarkError, match="at offset 2: ValidationError"):
            waiting.take()
        assert (cursor.position, waiting.cursor) == (2, cursor)


def test_rows_that_make_no_records_stay_in_the_cursor() -> None:
    typed = TypedFormat("t", "id", first_version(draft_from_ddl("d DATE")))
    schema = layout_of(typed.schema).arrangement(HAS_TIMESTAMPS).schema
    columns = [pa.array([7], pa.timestamp("us", "UTC")), pa.array([2**30], pa.int32()).cast(pa.date32())]
    cursor = Cursor(TopicPartition("t", 0), 0, topic_id="id", incarnation="i", typed=BatchRows("t", {1: typed.schema}))
    cursor.take(sealed(typed, pa.RecordBatch.from_arrays(columns, schema=schema), base_offset=0).data)
    waiting = WaitingRecords(RecordReader())
    for _ in range(2):
        rows = cursor.next_rows()
        assert rows is not None
        with pytest.raises(TidemarkError, match="t-0: a row from offset 0 on has a value that Python lacks"):
            waiting.begin(cursor, rows)
        assert (cursor.position, waiting.cursor) == (0, None)
