# SPDX-License-Identifier: Apache-2.0
"""Values of records as instances of an application's classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

import pydantic
import pytest
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.client.typed.records import typed_records
from tidemark.client.typed.value_classes import maker_of
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Batch

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
    by_gate: Optional[dict[str, Leg]] = None  # noqa: UP045 - as applications have it
    others: Sequence[Leg | None] = ()
    next: Flight | None = None
    late: bool = dataclasses.field(init=False, default=False)


class Model(pydantic.BaseModel):
    carrier: str
    delay: int | None


def made(value_class: type, row: dict[str, Any]) -> Any:
    make = maker_of(value_class)
    assert make is not None
    return make(row)


def test_nested_dataclasses_are_made_where_their_types_say_so() -> None:
    leg = {"origin": "EWR", "miles": 7}
    row = {"carrier": "UA", "legs": [leg, leg], "first": leg, "by_gate": {"A": leg}, "others": [leg, None], "x": 1}
    wanted = Leg("EWR", 7)
    flight = Flight("UA", [wanted, wanted], wanted, {"A": wanted}, [wanted, None])
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


def test_a_row_that_makes_no_instance_is_an_error_with_its_place() -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    stored: Batch = sealed(typed, from_records(typed, [ROW]))
    rows = BatchRows("flights", {1: FLIGHTS}).rows(stored, 3, 0)
    with pytest.raises(
        TidemarkError, match="flights-3: value_class cannot be made of the row at offset 100"
    ) as refused:
        typed_records("flights", 3, rows, maker_of(range))
    assert refused.value.code is ErrorCode.INVALID_PAYLOAD
