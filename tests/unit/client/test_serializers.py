# SPDX-License-Identifier: Apache-2.0
"""Values as JSON and text, settings as text, and the old name of a timeout."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tidemark.client.aio.admin.config_values import config_texts
from tidemark.client.producing import table
from tidemark.client.producing.batching import PendingBatch
from tidemark.client.serializers import deserializer_of, serializer_of, to_json
from tidemark.errors import InvalidConfigError
from tidemark.model import ErrorCode, TopicPartition

from tests.refusals import raises_code


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"name": "ä", "n": [1, 2.5, None, True]}, '{"name":"ä","n":[1,2.5,null,true]}'),
        ({"at": datetime(2026, 11, 23, tzinfo=UTC), "day": date(2026, 11, 23)}, None),
        ([b"text", b"\xff", Decimal("1.50"), timedelta(seconds=1)], '["text","/w==","1.50","0:00:01"]'),
        ([float("nan"), float("inf")], "[null,null]"),
        ([np.int64(7), np.float64(0.5), np.array([1, 2])], "[7,0.5,[1,2]]"),
    ],
)
def test_json_of_a_value_has_json_types_only(value: Any, written: str | None) -> None:
    data = to_json(value)
    assert written is None or data == written.encode()
    json.loads(data)


def test_a_value_without_a_json_form_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="a object cannot be written as JSON"):
        to_json({"a": object()})


def test_serializers_are_chosen_by_name_or_given_as_functions() -> None:
    write, read = serializer_of("value_serializer", "json"), deserializer_of("value_deserializer", "json")
    assert write is not None
    assert read is not None
    assert read(write({"a": 1}) or b"") == {"a": 1}
    text = serializer_of("value_serializer", "text")
    assert text is not None
    assert text("ä") == "ä".encode()
    assert serializer_of("value_serializer", None) is None
    with pytest.raises(TypeError, match="a bytes is not text"):
        text(b"x")
    with pytest.raises(InvalidConfigError, match='value_serializer is \'jsn\': expected "json", "text" or a function'):
        serializer_of("value_serializer", "jsn")


def test_rows_of_a_table_become_json_values() -> None:
    source = pa.table({"key": ["a", "b"], "amount": [1, None]})
    (rows,) = table.as_rows(source, key="key", value=None, timestamp=None, now_us=7)
    assert rows.column(0).to_pylist() == [b"a", b"b"]
    assert rows.column(1).to_pylist() == [b'{"key":"a","amount":1}', b'{"key":"b","amount":null}']


@pytest.mark.parametrize(
    ("value", "written"), [(86_400_000, "86400000"), (True, "true"), (False, "false"), (1e3, "1000"), (0.5, "0.5")]
)
def test_a_setting_may_be_a_number_or_a_boolean(value: Any, written: str) -> None:
    assert config_texts("configs", {"x": value, "y": "z"}) == {"x": written, "y": "z"}


@pytest.mark.parametrize("wrong", [{"x": None}, {"x": b"1"}, {"x": []}, {1: "x"}, ["x"], "x"], ids=repr)
def test_another_setting_is_a_type_error_that_names_it(wrong: Any) -> None:
    with pytest.raises(TypeError, match="configs"):
        config_texts("configs", wrong)


def test_the_old_name_of_a_timeout_is_accepted_with_a_warning() -> None:
    batch = PendingBatch(TopicPartition("t", 0), opened_s=0, deadline_s=1)
    handle = batch.add(None, b"v", 5, None)
    with (
        pytest.warns(DeprecationWarning, match="timeout is deprecated: call it timeout_s") as told,
        raises_code(ErrorCode.REQUEST_TIMED_OUT),
    ):
        handle.result(timeout=0.001)
    assert told[0].filename == __file__
    with pytest.raises(TypeError, match="timeout_s is 'x', a str, not a number"):
        handle.result("x")  # type: ignore[arg-type]
