"""Lines to records, records to lines, and where to start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.cli.records import KeyedValue, Start, parse_start, read_records, record_json, record_text
from tidemark.client.records import ConsumerRecord
from tidemark.model import ErrorCode, TidemarkError


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
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want earliest"):
        parse_start(text)


def test_what_is_no_time_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match="no time like"):
        parse_start("timestamp:yesterday")


def test_each_line_is_a_record_the_last_one_too() -> None:
    assert list(read_records([b"a\n", b"\n", b"b\r\n", b"c"], "")) == [
        KeyedValue(None, b"a"),
        KeyedValue(None, b""),
        KeyedValue(None, b"b\r"),
        KeyedValue(None, b"c"),
    ]


def test_the_key_ends_at_the_first_separator() -> None:
    assert list(read_records([b"AA=1=2\n", b"=x"], "=")) == [KeyedValue(b"AA", b"1=2"), KeyedValue(b"", b"x")]


def test_a_line_without_the_separator_is_refused_by_its_number() -> None:
    records = read_records([b"k:v\n", b"oops\n"], ":")
    assert next(records) == KeyedValue(b"k", b"v")
    with pytest.raises(TidemarkError, match="line 2") as refused:
        next(records)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@given(key=st.binary().filter(lambda key: b"\t" not in key and b"\n" not in key), value=st.binary())
def test_what_is_printed_with_a_separator_can_be_produced_again(key: bytes, value: bytes) -> None:
    record = ConsumerRecord("t", 0, 0, 0, key, value, ())
    assert list(read_records([record_text(record, "\t")], "\t")) == [KeyedValue(key, value.removesuffix(b"\n"))]


def test_json_names_everything_and_shows_bytes_that_are_no_text_in_base64() -> None:
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


def test_a_time_beyond_the_calendar_is_shown_as_a_number_alone() -> None:
    assert "timestamp" not in record_json(ConsumerRecord("t", 0, 0, 2**63 - 1, None, b"v", ()))
