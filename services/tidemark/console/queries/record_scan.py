# SPDX-License-Identifier: Apache-2.0
"""Reads a bounded part of a partition: forward from an offset, or backward from an end; all records, or matching ones.

Nothing is committed. A scan ends at its number of records, or at one of its bounds; its result states which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.outputs.typed_json import columns_of, encode_json, json_rows
from tidemark.client.records import offsets_of
from tidemark.client.typed.batch_rows import BatchRows

SEARCH_FIELDS: Final = ("any", "key", "value", "headers")
_FIRST_WINDOW: Final = 16
"""Offsets of the first read of a backward scan: the size of the records is not known yet."""
_WINDOW_BYTES: Final = 8 << 20
_GROWTH: Final = 4


class Search(NamedTuple):
    """A text that records must contain, in any case; "": all records. `field`: one of SEARCH_FIELDS."""

    text: str = ""
    field: str = "any"


class Where(NamedTuple):
    """A partition; a recreated one has another id or incarnation, and is not read by mistake."""

    topic: str
    partition: int
    topic_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that end a scan.

    Attributes:
        records: largest number of records to return.
        scanned: largest number of records to read.
        data_bytes: bytes to read; a scan may exceed this number by one read.
        seconds: duration of the scan.
    """

    records: int
    scanned: int
    data_bytes: int
    seconds: float


class Scan:
    """One scan of a part of a partition.

    Attributes:
        scanned: records read.
        scanned_bytes: their size.
        begin: first offset of the scanned range, inclusive.
        end: end of the scanned range, exclusive.
        typed: makes the rows of a topic with a schema; None: the topic has no schema.
        stopped: bound at which the scan ended before its number of records: "records", "bytes", "time"; "": none.
    """

    def __init__(
        self,
        reader: RangeReader,
        where: Where,
        limits: Limits,
        search: Search,
        typed: BatchRows | None,
        now_s: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._where = where
        self._limits = limits
        self._matches = _matcher(search)
        self.typed = typed
        self._now_s = now_s
        self._until_s = now_s() + limits.seconds
        self.scanned = 0
        self.scanned_bytes = 0
        self.begin = self.end = 0
        self.stopped = ""

    def forward(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the first matching rows of [start, end)."""
        self.begin = self.end = start
        left = self._limits.records
        for rows in self._read(start, end):
            found = self._matches(rows)
            if found.num_rows >= left:
                found = found.slice(0, left)
                self.end = _last(found) + 1
                yield found
                return
            left -= found.num_rows
            self.end = _last(rows) + 1
            if found.num_rows:
                yield found
            if self.end < end and self._is_spent():
                return
        self.end = end

    def backward(self, first: int, end: int) -> list[pa.RecordBatch]:
        """The last matching rows of [first, end), in order."""
        self.begin = self.end = end
        parts: list[pa.RecordBatch] = []
        left, window = self._limits.records, min(_FIRST_WINDOW, self._limits.records)
        while left > 0 and self.begin > first and not (self.begin < end and self._is_spent()):
            low = max(first, self.begin - window)
            found = [rows for rows in map(self._matches, self._read(low, self.begin)) if rows.num_rows]
            parts = found + parts
            left -= sum(rows.num_rows for rows in found)
            self.begin = low
            window = self._next_window(window)
        while left < 0:
            surplus = min(-left, parts[0].num_rows)
            left += surplus
            parts[0] = parts[0].slice(surplus)
            if not parts[0].num_rows:
                del parts[0]
            self.begin = offsets_of(parts[0])[0].as_py()
        return parts

    def _read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        name, partition, topic_id, incarnation = self._where
        rows_of = self._reader.read(
            name, partition, start, end, topic_id=topic_id, incarnation=incarnation, typed=self.typed
        )
        for rows in rows_of if start < end else ():
            self.scanned += rows.num_rows
            self.scanned_bytes += rows.nbytes
            yield rows

    def _is_spent(self) -> bool:
        if self.scanned >= self._limits.scanned:
            self.stopped = "records"
        elif self.scanned_bytes >= self._limits.data_bytes:
            self.stopped = "bytes"
        elif self._now_s() >= self._until_s:
            self.stopped = "time"
        return bool(self.stopped)

    def _next_window(self, window: int) -> int:
        record_bytes = max(1, self.scanned_bytes // max(1, self.scanned))
        return max(1, min(window * _GROWTH, _WINDOW_BYTES // record_bytes, self._limits.scanned))


def _last(rows: pa.RecordBatch) -> int:
    offset: int = offsets_of(rows)[rows.num_rows - 1].as_py()
    return offset


def _matcher(search: Search) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    if not search.text:
        return lambda rows: rows
    text = search.text.lower()

    def matches(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.array(_hits(rows, text, search.field), pa.bool_()))

    return matches


def _hits(rows: pa.RecordBatch, text: str, field: str) -> list[bool]:
    """Whether each row contains the text, which is in lower case."""
    typed = "_offset" in rows.schema.names
    prefix = "_" if typed else ""
    hits = [False] * rows.num_rows
    if field in ("any", "key"):
        hits = _either(hits, [_in_bytes(text, key) for key in rows.column(f"{prefix}key").to_pylist()])
    if field in ("any", "value") and typed:
        lines = map(encode_json, json_rows(rows, columns_of(rows.schema)))
        hits = _either(hits, [text in line.lower() for line in lines])
    elif field in ("any", "value"):
        hits = _either(hits, [_in_bytes(text, value) for value in rows.column("value").to_pylist()])
    headers: Any = rows.column(f"{prefix}headers")
    if field in ("any", "headers") and headers.null_count < len(headers):
        hits = _either(hits, [_in_headers(text, some or ()) for some in headers.to_pylist()])
    return hits


def _either(one: list[bool], other: list[bool]) -> list[bool]:
    return [first or second for first, second in zip(one, other, strict=True)]


def _in_bytes(text: str, content: bytes | None) -> bool:
    return content is not None and text in content.decode(errors="replace").lower()


def _in_headers(text: str, headers: Iterable[tuple[str, bytes | None]]) -> bool:
    return any(text in name.lower() or _in_bytes(text, value) for name, value in headers)
