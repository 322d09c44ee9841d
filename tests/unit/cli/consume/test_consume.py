# SPDX-License-Identifier: Apache-2.0
"""End conditions and output of `consume`."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.cli.consume.run import Reading, copy
from tidemark.cli.consume.run import run as consume
from tidemark.client.outputs.record_rows import open_sink
from tidemark.client.outputs.shape import Shape
from tidemark.client.outputs.typed_rows import reader_of
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.records import PartitionBatch
from tidemark.model import UNIX_EPOCH, ErrorCode
from tidemark.record.schema import OFFSET_SCHEMA

from tests.refusals import raises_code
from tests.unit.client.typed.samples import FLIGHTS, from_checked, sealed


def batch(
    offsets: Sequence[int], values: Sequence[bytes | None] | None = None, keys: Sequence[bytes | None] | None = None
) -> PartitionBatch:
    """Rows of partition 3; the record at an offset has that timestamp."""
    count = len(offsets)
    columns = [
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(values or [b"v"] * count, pa.binary()),
        pa.array(offsets, pa.int64()).cast(OFFSET_SCHEMA.field("timestamp").type),
        pa.array([[("h", b"1")]] + [None] * (count - 1), OFFSET_SCHEMA.field("headers").type),
        pa.array(offsets, pa.int64()),
    ]
    return PartitionBatch("t", 3, pa.RecordBatch.from_arrays(columns, schema=OFFSET_SCHEMA))


class Topic:
    """Batches that arrive after a time each; time passes only in polls."""

    def __init__(self, *batches: tuple[float, list[int]], ends: bool = False) -> None:
        self.time_s = 0.0
        self.lag = 0
        self.written: list[int] = []
        self._batches = list(batches)
        self._ends = ends

    @property
    def finished(self) -> bool:
        return self._ends and not self._batches

    def now_s(self) -> float:
        return self.time_s

    def poll(self, timeout_s: float) -> list[PartitionBatch]:
        if not self._batches:
            self.time_s += timeout_s
            return []
        after_s, offsets = self._batches[0]
        waited_s = min(after_s, timeout_s)
        self.time_s += waited_s
        if waited_s < after_s:
            self._batches[0] = (after_s - waited_s, offsets)
            return []
        return [batch(self._batches.pop(0)[1])]

    def wrote(self, batch: PartitionBatch) -> None:
        self.written += [offset.as_py() for offset in batch.rows.column("offset")]

    def commit_if_due(self) -> None:
        return


class Screen:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.seen: list[int] = []

    def show(self, batch: PartitionBatch) -> None:
        self.offsets += [offset.as_py() for offset in batch.rows.column("offset")]

    def flush(self) -> None:
        self.seen = list(self.offsets)

    def close(self) -> None:
        self.flush()


options = partial(ConsumeOptions, "t")


def run(topic: Topic, screen: Screen, ends: ConsumeOptions) -> int:
    return copy(topic, screen, ends, reading=Reading(show=False), now_s=topic.now_s)


def test_consume_ends_after_the_count_also_within_a_batch() -> None:
    topic, screen = Topic((0.0, [0, 1, 2, 3, 4]), (0.0, [5, 6, 7, 8, 9])), Screen()
    assert run(topic, screen, options(count=7)) == 7
    assert screen.seen == topic.written == list(range(7))


def test_a_timeout_without_records_ends_it_and_each_record_restarts_the_timeout() -> None:
    topic, screen = Topic((1.5, [0]), (1.5, [1]), (2.5, [2])), Screen()
    assert run(topic, screen, options(timeout_s=2.0)) == 2
    assert screen.seen == [0, 1]
    assert topic.time_s == pytest.approx(5.0)


def test_a_timeout_before_the_count_is_an_error_with_the_number_of_records() -> None:
    topic, screen = Topic((0.0, [0, 1, 2])), Screen()
    with raises_code(ErrorCode.REQUEST_TIMED_OUT, "3 of 5 records"):
        run(topic, screen, options(count=5, timeout_s=0.5))
    assert screen.seen == [0, 1, 2]


def test_a_timeout_of_zero_reads_available_records() -> None:
    topic, screen = Topic((0.0, [0, 1])), Screen()
    assert run(topic, screen, options(timeout_s=0.0)) == 2


def test_consume_ends_at_the_ends_of_the_partitions_without_a_wait() -> None:
    topic, screen = Topic((0.0, [0, 1]), (0.5, [2]), ends=True), Screen()
    assert run(topic, screen, options(until_end=True)) == 3
    assert topic.time_s == pytest.approx(0.5)


def test_a_batch_interrupted_while_it_is_written_is_not_reported_as_written() -> None:
    class Interrupted(Screen):
        def show(self, batch: PartitionBatch) -> None:
            super().show(batch)
            if 2 in self.offsets:
                raise KeyboardInterrupt

    topic, screen = Topic((0.0, [0, 1]), (0.0, [2, 3])), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(topic, screen, options())
    assert (screen.offsets, topic.written) == ([0, 1, 2, 3], [0, 1])


def test_a_batch_that_is_not_flushed_is_not_reported_as_written() -> None:
    class Broken(Screen):
        def flush(self) -> None:
            raise BrokenPipeError

    topic = Topic((0.0, [0, 1]))
    with pytest.raises(BrokenPipeError):
        run(topic, Broken(), options())
    assert topic.written == []


def written(shape: str, *batches: PartitionBatch, strings: bool = False, key_separator: str = "") -> bytes:
    file = io.BytesIO()
    options = ConsumeOptions("t", key_separator=key_separator, delimiter=";", strings=strings, output=Shape(shape))
    sink = open_sink(file, options)
    for one in batches:
        sink.show(one)
    sink.close()
    return file.getvalue()


BATCH = batch([7, 8], [b'a;"b"', None], [b"k", None])


def test_text_has_one_line_per_record_with_the_key_if_a_separator_is_given() -> None:
    assert written("text", BATCH) == b'a;"b"\n\n'
    assert written("text", BATCH, key_separator="=") == b'k=a;"b"\n=\n'


def test_json_has_one_document_per_line() -> None:
    first, second = map(json.loads, written("json", BATCH).splitlines())
    assert (first["offset"], first["key"], first["headers"]) == (7, "k", [{"name": "h", "value": "1"}])
    assert (second["partition"], second["value"]) == (3, None)


def test_csv_has_a_header_row_and_quotes() -> None:
    names, first, second = written("csv", BATCH).decode().splitlines()
    assert names == '"partition";"offset";"timestamp";"key";"value"'
    assert first == '3;7;1970-01-01 00:00:00.000007Z;"k";"a;""b"""'
    assert second.startswith("3;8;")


def test_parquet_has_all_fields_and_is_read_back_equal() -> None:
    table = parquet.read_table(io.BytesIO(written("parquet", BATCH, batch([9]))))
    assert table.column("offset").to_pylist() == [7, 8, 9]
    assert table.column("value").to_pylist() == [b'a;"b"', None, b"v"]
    assert table.column("headers").to_pylist() == [[("h", b"1")], None, [("h", b"1")]]
    texts = parquet.read_table(io.BytesIO(written("parquet", BATCH, strings=True)))
    assert texts.column("key").to_pylist() == ["k", None]
    assert parquet.read_table(io.BytesIO(written("parquet"))).num_rows == 0


@pytest.mark.parametrize("shape", ["csv", "parquet"])
def test_binary_is_refused_where_text_is_wanted(shape: str) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "t-3: a value from offset 4 on is not UTF-8"):
        written(shape, batch([4], [b"\xff"]), strings=True)


def test_a_deleted_row_is_null_and_no_row_of_a_table() -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    row = {"carrier": "UA", "price": Decimal("1.5"), "scheduled_at": UNIX_EPOCH, "tags": {"a": 1}}
    values = [typed.records.check(row)[0], typed.records.deletion("UA", 7)[0]]
    stored = sealed(typed, from_checked(typed, values))
    shown = {}
    for shape in Shape:
        reader = reader_of(options(output=shape), {1: FLIGHTS})
        assert reader is not None
        out = io.BytesIO()
        sink = open_sink(out, options(output=shape), reader.schema)
        sink.show(PartitionBatch("flights", 0, reader.rows(stored, 0, 0)))
        sink.close()
        shown[shape] = out.getvalue()
    text = shown[Shape.TEXT].splitlines()
    assert (json.loads(text[0])["tags"], text[1]) == ({"a": 1}, b"null")
    kept, deleted = (json.loads(line) for line in shown[Shape.JSON].splitlines())
    assert (kept["offset"], kept["value"]["price"]) == (100, "1.50")
    assert (deleted["offset"], deleted["key"], deleted["value"]) == (101, "UA", None)
    assert len(shown[Shape.CSV].splitlines()) == 2
    assert parquet.read_table(io.BytesIO(shown[Shape.PARQUET])).column("_offset").to_pylist() == [100]


class InterruptedFile(io.FileIO):
    """Each write of records is interrupted, as by Ctrl-C and a SIGTERM."""

    has_records = False

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.has_records:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        return written


class InterruptedPath(type(Path())):  # type: ignore[misc]
    def open(self, *_: Any, **__: Any) -> Any:
        return InterruptedFile(self, "wb")


class InterruptedBuffer(type(Path())):  # type: ignore[misc]
    def open(self, *_: Any, **__: Any) -> Any:
        return io.BufferedWriter(InterruptedFile(self, "wb"))


@pytest.mark.parametrize("path_type", [InterruptedPath, InterruptedBuffer], ids=["writes", "flushes"])
@pytest.mark.parametrize("shape", [Shape.PARQUET, Shape.CSV, Shape.JSON])
def test_a_file_is_complete_after_interrupts_within_its_writes(
    tmp_path: Path, shape: Shape, path_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records in the file are those that a group commits."""
    monkeypatch.setattr("tidemark.client.outputs.sink._GROUP_BYTES", 1)
    path = tmp_path / "records"
    topic: Any = Topic((0.0, [0, 1]), (0.0, [2, 3]), ends=True)
    topic.typed = None
    poll = topic.poll

    def polled(timeout_s: float) -> Any:
        monkeypatch.setattr(InterruptedFile, "has_records", True)
        return poll(timeout_s)

    topic.poll = polled
    consume(lambda: contextlib.nullcontext(topic), ConsumeOptions("t", file=path_type(path), output=shape))
    match shape:
        case Shape.PARQUET:
            found = parquet.read_table(path).column("offset").to_pylist()
        case Shape.CSV:
            found = [int(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]
        case _:
            found = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    is_held = (shape, path_type) == (Shape.PARQUET, InterruptedBuffer)  # until the file is closed
    assert found == topic.written == ([0, 1, 2, 3] if is_held else [0, 1])
