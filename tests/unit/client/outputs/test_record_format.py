# SPDX-License-Identifier: Apache-2.0
"""Records as JSON, and start positions."""

from __future__ import annotations

import pytest
from tidemark.client.outputs.record_format import Start, parse_start, record_json
from tidemark.client.records import ConsumerRecord


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("offset:0", Start(offset=0)),
        ("offset:9223372036854775807", Start(offset=2**63 - 1)),
        ("timestamp:1970-01-01T00:00:01.000001Z", Start(timestamp_us=1_000_001)),
        ("timestamp:1970-01-01T01:00:00+01:00", Start(timestamp_us=0)),
        ("timestamp:1970-01-02", Start(timestamp_us=86_400_000_000)),
        ("timestamp:1969-12-31T23:59:59.999999", Start(timestamp_us=-1)),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text", ["", "first", "earliest:", "offset", "offset:", "offset:-1", "offset:²", "offset:9223372036854775808"]
)
def test_a_malformed_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected earliest"):
        parse_start(text)


def test_a_malformed_time_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match="not a time such as"):
        parse_start("timestamp:yesterday")


def test_json_has_all_fields_and_base64_for_binary() -> None:
    record = ConsumerRecord("t", 3, 7, 1_357_016_400_000_001, b"\xff", None, (("h", b"v"),))
    assert record_json(record) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp_us": 1_357_016_400_000_001,
        "timestamp": "2013-01-01T05:00:00.000001Z",
        "key_base64": "/w==",
        "value": None,
        "headers": [{"name": "h", "value": "v"}],
    }


def test_a_time_outside_the_calendar_is_only_a_number() -> None:
    assert "timestamp" not in record_json(ConsumerRecord("t", 0, 0, 2**63 - 1, None, b"v", ()))
