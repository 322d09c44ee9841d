# SPDX-License-Identifier: Apache-2.0
"""Schemas as an application states them for a new topic."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pydantic
import pytest
from tidemark.client.schemas import SchemaGiven, schema_text
from tidemark.model import ErrorCode

from tests.refusals import raises_code


@dataclass
class Flight:
    carrier: str | None
    at: datetime | None


class Model(pydantic.BaseModel):
    carrier: str | None
    at: datetime | None


ARROW = pa.schema([("carrier", pa.string()), ("at", pa.timestamp("us", "UTC"))])
COLUMNS = [
    {"name": "carrier", "type": "string", "nullable": False},
    {"name": "at", "type": "timestamp", "nullable": False},
]


@pytest.mark.parametrize("given", [Flight, Model, ARROW, "carrier STRING, at TIMESTAMP"])
def test_key_and_event_time_stand_beside_a_schema_that_states_neither(given: SchemaGiven) -> None:
    stated = json.loads(schema_text(given, ["carrier"], "at"))
    assert stated == {"columns": COLUMNS, "key": ["carrier"], "event_time": "at"}


@pytest.mark.parametrize(("key", "event_time"), [(["carrier"], None), ([], "at")])
def test_key_and_event_time_without_a_schema_are_refused(key: list[str], event_time: str | None) -> None:
    assert schema_text(None, [], None) == ""
    with raises_code(ErrorCode.INVALID_REQUEST):
        schema_text(None, key, event_time)
