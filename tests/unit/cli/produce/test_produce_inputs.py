# SPDX-License-Identifier: Apache-2.0
"""Lines, JSON lines, CSV and Parquet become rows; malformed input is refused, with its line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tidemark.cli.produce.inputs import Columns, csv_chunks, json_chunks, line_blocks, parquet_chunks, text_chunks
from tidemark.client.outputs.record_format import record_json, record_text
from tidemark.client.records import ConsumerRecord
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code

Row = tuple[bytes | None, bytes | None, int | None]


def of(chunks: Iterator[pa.RecordBatch]) -> tuple[list[Row], str]:
    """The rows, and the refusal after them."""
    rows: list[Row] = []
    try:
        for chunk in chunks:
            stamps = chunk.column("timestamp").cast(pa.int64()).to_pylist()
            rows += zip(chunk.column("key").to_pylist(), chunk.column("value").to_pylist(), stamps, strict=True)
    except TidemarkError as error:
        return rows, error.message if error.code is ErrorCode.INVALID_REQUEST else repr(error)
    return rows, ""


def text(content: bytes, separator: str = "") -> tuple[list[Row], str]:
    return of(text_chunks(io.BytesIO(content), separator))


def from_json(content: str | bytes, columns: Columns = Columns()) -> tuple[list[Row], str]:  # noqa: B008 - a value
    return of(json_chunks(io.BytesIO(content.encode() if isinstance(content, str) else content), columns))


def from_csv(content: str, columns: Columns = Columns(), **layout: Any) -> tuple[list[Row], str]:  # noqa: B008
    layout = {"delimiter": ",", "strings": False, **layout}
    return of(csv_chunks(io.BytesIO(content.encode()), columns, **layout))


def test_each_line_is_a_record_also_the_last() -> None:
    assert text(b"a\n\nb\r\nc") == ([(None, value, None) for value in (b"a", b"", b"b\r", b"c")], "")
    assert text(b"") == ([], "")


def test_the_key_ends_at_the_first_separator() -> None:
    assert text(b"AA=1=2\n=x", "=")[0] == [(b"AA", b"1=2", None), (b"", b"x", None)]


def test_a_line_without_the_separator_is_refused_after_the_lines_before_it() -> None:
    rows, refusal = text(b"k:v\noops\nk:w\n", ":")
    assert rows == [(b"k", b"v", None)]
    assert refusal.startswith("line 2 has no key separator ':'")


@given(content=st.binary(max_size=200), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_lines_do_not_depend_on_the_chunks_of_a_pipe(content: bytes, sizes: list[int]) -> None:
    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            sizes.append(sizes.pop(0))
            return self.read(sizes[-1])

    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line for block in line_blocks(Pipe(content)) for line in block] == expected


def test_a_line_too_long_for_a_record_is_refused_before_it_is_read_completely() -> None:
    rows, refusal = text(b"a\n" + b"x" * (17 << 20))
    assert len(rows) == 1
    assert refusal.startswith("line 2 has more than 16 MiB")


@given(key=st.binary().filter(lambda key: b"\t" not in key and b"\n" not in key), value=st.binary(min_size=1))
def test_text_output_of_consume_can_be_produced_again(key: bytes, value: bytes) -> None:
    value = value.replace(b"\n", b" ")
    record = ConsumerRecord("t", 0, 0, 0, key, value, ())
    assert text(record_text(record, "\t"), "\t")[0] == [(key, value, None)]


@given(key=st.none() | st.binary(), value=st.none() | st.binary(), header=st.none() | st.binary())
def test_json_output_of_consume_can_be_produced_again(
    key: bytes | None, value: bytes | None, header: bytes | None
) -> None:
    line = json.dumps(record_json(ConsumerRecord("t", 0, 5, 123, key, value, (("h", header),))))
    columns = Columns(key="key", value="value", timestamp="timestamp_us")
    assert from_json(line, columns) == ([(key, value, 123)], "")
    (chunk,) = json_chunks(io.BytesIO(line.encode()), columns)
    assert chunk.column("headers").to_pylist() == [[("h", header)]]


def test_a_json_line_is_sent_unchanged_unless_a_member_is_named() -> None:
    content = '{"a": 1, "b": {"c": [2]}}\n\n {"a": null, "b": "text"} \n'
    assert [row[1] for row in from_json(content)[0]] == [b'{"a": 1, "b": {"c": [2]}}', b'{"a": null, "b": "text"}']
    rows, _ = from_json(content, Columns(key="a", value="b"))
    assert rows == [(b"1", b'{"c":[2]}', None), (None, b"text", None)]


@pytest.mark.parametrize(
    ("value", "unit", "stamp_us"),
    [
        ('"2013-01-01T05:00:00Z"', "us", 1_357_016_400_000_000),
        ('"1970-01-01T01:00:00+01:00"', "us", 0),
        ("5", "us", 5),
        ("1.5", "s", 1_500_000),
        ("7", "ms", 7_000),
    ],
)
def test_times_are_iso_or_numbers_in_a_unit(value: str, unit: str, stamp_us: int) -> None:
    rows, refusal = from_json(f'{{"t": {value}}}', Columns(timestamp="t", timestamp_unit=unit))
    assert (rows[0][2], refusal) == (stamp_us, "")


@pytest.mark.parametrize(
    ("line", "columns", "refusal"),
    [
        ("{oops", Columns(), "line 2: not JSON: "),
        (b"\xff", Columns(), "line 2: not JSON: "),
        ("[" * 100_000 + "]" * 100_000, Columns(), "line 2: not JSON that can be read: nested too deeply"),
        ("[1]", Columns(key="k"), "line 2: not a JSON object with 'k'"),
        ('{"a": 1}', Columns(key="k"), "line 2: no member 'k', only a"),
        ('{"k": 1, "t": "noon"}', Columns(timestamp="t"), "line 2: t is 'noon', not a time such as"),
        ('{"k": 1, "t": null}', Columns(timestamp="t"), "line 2: 't' is missing"),
        (
            '{"t": 99999999999999999999}',
            Columns(timestamp="t"),
            "line 2: 't' is a number outside of the range",
        ),
        (
            '{"t": -9223372036854775809}',
            Columns(timestamp="t"),
            "line 2: 't' is a number outside of the range",
        ),
        ('{"t": 1e300}', Columns(timestamp="t"), "line 2: 't' is a number outside of the range"),
        ('{"t": NaN}', Columns(timestamp="t"), "line 2: 't' is a number outside of the range"),
        ('{"t": -Infinity}', Columns(timestamp="t"), "line 2: 't' is a number outside of the range"),
        ('{"k": 1, "v_base64": "?"}', Columns(value="v"), "line 2: v_base64 is not base64"),
    ],
)
def test_a_malformed_json_line_is_refused_with_its_number(line: str | bytes, columns: Columns, refusal: str) -> None:
    bad = line.encode() if isinstance(line, str) else line
    first = b'{"k": "1", "v": "2", "t": 3}\n'
    rows, printed = from_json(first + bad, columns)
    assert len(rows) == 1
    assert printed.startswith(refusal)


def test_a_csv_row_is_sent_as_json_with_its_numbers_and_times() -> None:
    rows, refusal = from_csv('n,x,when,name\n1,1.5,2013-01-01T05:00:00Z,"a,\n""b"""\n2,,,\n', Columns(key="n"))
    assert refusal == ""
    assert [row[0] for row in rows] == [b"1", b"2"]
    first, second = (json.loads(row[1] or b"") for row in rows)
    assert first == {"n": "1", "x": 1.5, "when": "2013-01-01T05:00:00+00:00", "name": 'a,\n"b"'}
    assert second == {"n": "2", "x": None, "when": None, "name": ""}


def test_csv_columns_are_sent_unchanged() -> None:
    columns = Columns(key="k", value="v", timestamp="t", timestamp_unit="s")
    assert from_csv("k;v;t\n007;1.50;3\n", columns, delimiter=";") == ([(b"007", b"1.50", 3_000_000)], "")
    assert from_csv("\ufeffk,v\n", Columns(key="k")) == ([], "")
    assert json.loads(from_csv("a,b\n007,x\n", strings=True)[0][0][1] or b"") == {"a": "007", "b": "x"}


@pytest.mark.parametrize(
    ("content", "columns", "words"),
    [
        ("a,b\n1,2\n", Columns(key="c"), "there is no column 'c', only a, b"),
        ("a,a,b\n1,2,3\n", Columns(), "there are 2 columns 'a'"),
        ("a,a,b\n1,2,3\n", Columns(key="a", value="b"), "there are 2 columns 'a'"),
        ("a,b\n1,2\n1,2,3\n", Columns(), "Expected 2 columns, got 3"),
        ("t,b\nnoon,2\n", Columns(timestamp="t"), "column 't' has no timestamps"),
        (
            "t,b\n99999999999999999999,2\n",
            Columns(timestamp="t"),
            "'t' has a number outside of the range of times",
        ),
        ("t,b\n9e18,2\n", Columns(timestamp="t", timestamp_unit="s"), "a number outside of the range of times"),
        ("t,b\n99999999999999999,2\n", Columns(timestamp="t", timestamp_unit="s"), "outside of the range of times"),
        ("t,b\ninf,2\n", Columns(timestamp="t"), "'t' has a number outside of the range of times"),
        ("t,b\n,2\n1,3\n", Columns(timestamp="t"), "column 't' has 1 empty cells"),
    ],
)
def test_a_csv_that_does_not_fit_is_refused(content: str, columns: Columns, words: str) -> None:
    assert words in from_csv(content, columns)[1]


def test_a_csv_of_bytes_is_refused_in_words() -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "line 1 does not name the columns: not UTF-8$"):
        next(csv_chunks(io.BufferedReader(io.BytesIO(b"\xff\xfe\x00\n")), Columns(), delimiter=",", strings=False))


class Endless(io.RawIOBase):
    """A file without a newline, such as a disk image; counts the bytes that were read."""

    read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.read_bytes += len(buffer)
        buffer[:] = bytes(len(buffer))
        assert self.read_bytes < 100 << 20, "the reader takes a file of any size into memory"
        return len(buffer)


def test_a_csv_without_a_newline_is_refused_before_its_end() -> None:
    with pytest.raises(TidemarkError, match="line 1 has more than 16 MiB"):
        next(csv_chunks(io.BufferedReader(Endless(), 1 << 20), Columns(), delimiter=",", strings=False))


def parquet_file(**columns: Any) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    file.seek(0)
    return file


def test_a_parquet_row_is_sent_as_json_or_by_its_columns() -> None:
    columns: dict[str, Any] = {
        "k": ["a", None],
        "v": pa.array([b"\xff", b"x"]),
        "t": pa.array([1, 2], pa.timestamp("ms")),
        "f": [1.5, float("nan")],
        "l": [[1, 2], None],
    }
    rows, refusal = of(parquet_chunks(parquet_file(**columns), Columns(key="k", value="v", timestamp="t")))
    assert (rows, refusal) == ([(b"a", b"\xff", 1000), (None, b"x", 2000)], "")
    rows, _ = of(parquet_chunks(parquet_file(**columns), Columns()))
    assert json.loads(rows[1][1] or b"") == {
        "k": None,
        "v": "x",
        "t": "1970-01-01T00:00:00.002000",
        "f": None,
        "l": None,
    }
    assert json.loads(rows[0][1] or b"")["l"] == [1, 2]
    assert of(parquet_chunks(parquet_file(**columns), Columns(value="l")))[0][0][1] == b"[1,2]"


def test_parquet_is_read_from_a_pipe() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    content = parquet_file(v=["a"] * 3).getvalue()
    assert len(of(parquet_chunks(Pipe(content), Columns(value="v")))[0]) == 3


def test_a_file_that_is_not_parquet_is_refused() -> None:
    assert "cannot be read" in of(parquet_chunks(io.BytesIO(b"no parquet at all"), Columns()))[1]
    assert "no column 'x'" in of(parquet_chunks(parquet_file(v=["a"]), Columns(value="x")))[1]
