# SPDX-License-Identifier: Apache-2.0
"""Dataclasses and pydantic models to drafts."""

import datetime
import enum
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional

import pydantic
import pytest
from tidemark.core.schemas.ddl import ddl_of
from tidemark.core.schemas.python_types import draft_from_class
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code

Code = NewType("Code", str)


class State(enum.Enum):
    EARLY = "early"
    LATE = "late"


@dataclass
class Leg:
    origin: str
    miles: Annotated[int, "int32"] | None = None


@dataclass
class Flight:
    kinds: ClassVar[int] = 5
    carrier: Code = field(metadata={"doc": "IATA code"})
    at: datetime.datetime
    leg: Leg
    delay: Annotated[int, "int32"] = 0
    price: Annotated[Decimal, "decimal(10,2)"] | None = Decimal("1.5")
    day: Optional[datetime.date] = None  # noqa: UP045
    legs: list[Leg | None] = field(default_factory=list)
    fares: dict[str, float] = field(default_factory=dict)
    stamps: Sequence[Annotated[datetime.datetime, "timestamp_ntz"]] = ()
    state: State = State.EARLY
    kind: Literal["A", "B"] = "A"
    id: uuid.UUID | None = None
    raw: bytes = b"x"
    pair: tuple[bool, ...] = ()
    made: int = field(default_factory=lambda: 5)


FLIGHT = (
    "carrier STRING NOT NULL COMMENT 'IATA code', at TIMESTAMP NOT NULL, "
    "leg STRUCT<origin: STRING NOT NULL, miles: INT> NOT NULL, delay INT NOT NULL DEFAULT 0, "
    "price DECIMAL(10,2) DEFAULT 1.50, day DATE, legs ARRAY<STRUCT<origin: STRING NOT NULL, miles: INT>> NOT NULL "
    "DEFAULT ARRAY(), fares MAP<STRING, DOUBLE NOT NULL> NOT NULL DEFAULT MAP(), "
    "stamps ARRAY<TIMESTAMP_NTZ NOT NULL> NOT NULL DEFAULT ARRAY(), state STRING NOT NULL DEFAULT 'early', "
    "kind STRING NOT NULL DEFAULT 'A', id STRING, raw BINARY NOT NULL DEFAULT X'78', "
    "pair ARRAY<BOOLEAN NOT NULL> NOT NULL DEFAULT ARRAY(), made BIGINT NOT NULL, "
    "PRIMARY KEY (carrier), EVENT_TIME (at)"
)


class Origin(pydantic.BaseModel):
    code: str


class Model(pydantic.BaseModel):
    carrier: str = pydantic.Field(description="IATA code")
    delay: Annotated[int, "int32"] = 0
    price: Decimal = pydantic.Field(max_digits=10, decimal_places=2)
    origin: Origin | None = None
    leg: Leg
    tags: list[str] = pydantic.Field(default_factory=list)


def one(annotation: object, **facts: Any) -> type:
    return make_dataclass("One", [("a", annotation, field(**facts))])


def refusal(cls: type) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        draft_from_class(cls)
    return raised.value.message


def test_the_draft_of_a_dataclass() -> None:
    assert ddl_of(draft_from_class(Flight, ["carrier"], "at")) == FLIGHT


def test_the_draft_of_a_pydantic_model() -> None:
    assert ddl_of(draft_from_class(Model)) == (
        "carrier STRING NOT NULL COMMENT 'IATA code', delay INT NOT NULL DEFAULT 0, price DECIMAL(10,2) NOT NULL, "
        "origin STRUCT<code: STRING NOT NULL>, leg STRUCT<origin: STRING NOT NULL, miles: INT> NOT NULL, "
        "tags ARRAY<STRING NOT NULL> NOT NULL DEFAULT ARRAY()"
    )


def test_pydantic_is_not_imported() -> None:
    code = "import sys, tidemark.core.schemas.python_types; print('pydantic' in sys.modules, 'pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "False False\n"


@dataclass
class Tree:
    left: Optional["Tree"]


@dataclass
class Unresolved:
    a: "Nothing"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (int, "int is neither a dataclass nor a pydantic model"),
        (one(Any), 'column a: no type of a topic for Any; state one: Annotated[..., "string"]'),
        (one(Decimal), 'state its digits: Annotated[Decimal, "decimal(10,2)"]'),
        (one(datetime.time), "microseconds of the day"),
        (one(datetime.timedelta), "int64 with the unit"),
        (one(None), "drop the column"),
        (one(int | str), "a union of 2 types; use a struct"),
        (one(Annotated[int, "int33"]), "there is no type 'int33'"),
        (one(tuple[int, str]), "a tuple with a type for each place"),
        (one(list), "no type of a topic for list"),
        (one(dict), "no type of a topic for dict"),
        (one(Literal[1, "a"]), "of several types"),
        (one(enum.Enum("Empty", [])), "of several types"),
        (one(object), "no type of a topic for object"),
        (one(Annotated[int, "int8"], default=128), "column a: the default is outside of int8"),
        (one(datetime.datetime, default=datetime.datetime.fromisoformat("2026-11-24")), "needs a time zone"),
        (one(list[list[dict[str, complex]]]), "column a.element.element.value: no type of a topic for complex"),
        (one(dict[Leg, int]), "keys of a map"),
        (Tree, "nest at most 16 deep"),
        (Unresolved, "the types of Unresolved do not resolve: name 'Nothing'"),
        (make_dataclass("Empty", []), "at least one column"),
        (make_dataclass("Wide", [(f"c{index}", int) for index in range(1001)]), "at most 1000 columns"),
        (make_dataclass("Ours", [("_offset", int)]), "column _offset: names with a leading _"),
    ],
)
def test_a_class_of_no_topic_is_refused(cls: type, words: str) -> None:
    assert words in refusal(cls)


def test_a_key_that_is_no_field_is_refused() -> None:
    with pytest.raises(TidemarkError, match="there is no column 'b'"):
        draft_from_class(Leg, ["b"])


def test_mappings_and_aliases_are_followed() -> None:
    cls = one(Optional[Annotated[NewType("Codes", Mapping[str, Code]), "ignored" and 5]])  # noqa: UP045
    assert ddl_of(draft_from_class(cls)) == "a MAP<STRING, STRING NOT NULL>"
