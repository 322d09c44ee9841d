# SPDX-License-Identifier: Apache-2.0
"""Input formats of `produce` for a typed topic: JSON lines, CSV and Parquet, as rows of the topic's columns.

Columns are matched by name. Names of system columns, which `consume` writes, are omitted; but timestamps of a topic
without an event time, headers and deletions are kept. Rows are checked here: an error names the line of the input.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.cli.produce.inputs import BYTE_ORDER_MARK, LINE_BYTES_MAX, headers_of, line_blocks, parquet_batches
from tidemark.cli.produce.rejects import Rejects, refusal
from tidemark.cli.produce.typed_values import converted, json_reader, parse_json, parse_shown, text_reader
from tidemark.client.outputs.typed_json import json_rows
from tidemark.client.typed.batch_rows import SYSTEM_COLUMNS
from tidemark.client.typed.mismatches import MisfitError
from tidemark.client.typed.record_rows import RecordRows, Values
from tidemark.client.typed.record_values import checked, superfluous
from tidemark.client.typed.table_columns import fitted, schema_fields
from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import INT_BITS, Column, ColumnType, Decimal, Primitive, TopicSchema, plain_type, walk
from tidemark.model import TidemarkError, invalid_request, microseconds_of
from tidemark.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE

TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
DELETED: Final = "_deleted"
_OF_RECORD: Final = frozenset(("offset", "timestamp_us", "value", "headers"))
"""Members of each record in the JSON that `consume` and `log dump` write."""
DELETION: Final = "deleted"
"""Member of a record of `log dump` that deletes the rows of a key: its key columns and event time."""
_FLOATS: Final = (Primitive.FLOAT32, Primitive.FLOAT64)
_CAST: Final = (
    *INT_BITS,
    *_FLOATS,
    Primitive.TIMESTAMP,
    Primitive.TIMESTAMP_NTZ,
    Primitive.BOOL,
    Primitive.DATE,
    Primitive.STRING,
)
"""Types of columns whose texts Arrow can cast to values."""
_EMPTY: Final[dict[ColumnType, Any]] = {Primitive.STRING: "", Primitive.BINARY: b""}
"""The values that an empty cell has in a column that is never null."""
_compute: Any = pc
Given = TypeVar("Given")


class _Row(NamedTuple):
    """A row of the input: its columns, timestamp, headers, and whether it deletes earlier rows."""

    columns: Mapping[str, Any]
    timestamp: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    deleted: bool = False


class TypedInput:
    """Makes rows of one input.

    Args:
        topic: name of the topic.
        schema: the version to write.
        rejects: takes the rows that do not fit.
        timestamp: column of the timestamps; only for a topic without an event time.
        unit: of numbers in columns of times, since 1970: a key of UNITS_US.
    """

    def __init__(
        self, topic: str, schema: TopicSchema, rejects: Rejects, *, timestamp: str = TIMESTAMP, unit: str = "us"
    ) -> None:
        self._columns = {column.name: column for column in schema.columns}
        self._schema = schema
        self._rows = RecordRows(topic, schema)
        self._rejects = rejects
        self._has_event_time = schema.event_time is not None
        self._timestamp = Column(0, timestamp, Primitive.TIMESTAMP)
        of_json = {name: json_reader(column.type, unit) for name, column in self._columns.items()}
        self._of_json = {name: convert for name, convert in of_json.items() if convert is not None}
        self._of_text = {name: text_reader(column.type, unit) for name, column in self._columns.items()}
        self._stamp = text_reader(Primitive.TIMESTAMP, unit)
        self._stamp_of_json = json_reader(Primitive.TIMESTAMP, unit)
        self._exact = any(isinstance(plain_type(column.type), Decimal) for _, column in walk(schema.columns))
        self._takes_records = _OF_RECORD.isdisjoint(self._columns.keys() - {"value"})

    # -- JSON lines ----------------------------------------------------------------------------------------------------

    def json_batches(self, file: BinaryIO) -> Iterator[pa.RecordBatch]:
        """Rows of JSON objects, one a line, or of records as `consume` and `log dump` write them.

        Raises:
            TidemarkError: SCHEMA_MISMATCH for a row that does not fit, after the rows before it.
        """
        number = 0
        for lines in line_blocks(file):
            chunk = [(at, line) for at, line in enumerate(lines, number + 1) if line.strip()]
            number += len(lines)
            yield from self._checked(chunk, self._of_line, _shown_line)

    def _of_line(self, line: bytes) -> _Row:
        document = parse_json(line, exact=self._exact)
        if not isinstance(document, dict):
            raise MisfitError("not a JSON object with the topic's columns")
        stamp = document.get(self._timestamp.name)
        if self._takes_records and document.keys() >= _OF_RECORD:
            return self._of_record(document)
        deleted = document.get(DELETED) or False
        if not isinstance(deleted, bool):
            raise MisfitError("expected true or false: whether the row deletes the rows of its key", [DELETED])
        row = self._keys_of(document) if deleted else document
        return _Row(self._converted(row), converted(self._timestamp.name, stamp, self._stamp_of_json), (), deleted)

    def _keys_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The used columns of a row that deletes earlier rows: the key, and the event time unless it is null."""
        names = [column.name for column in self._schema.key_columns]
        event_time = self._schema.event_time_column
        if event_time is not None and row.get(event_time.name) not in (None, ""):
            names.append(event_time.name)
        return {name: value for name, value in row.items() if name in names}

    def _of_record(self, record: Mapping[str, Any]) -> _Row:
        """A row of a record as `consume` and `log dump` write it."""
        stamp_us, deleted = record["timestamp_us"], record["value"] is None and DELETION in record
        row = record[DELETION] if deleted else record["value"]
        if not isinstance(row, dict):
            raise MisfitError("the record has no row: its value is null, or not of a typed topic")
        try:
            stamp = converted("timestamp_us", stamp_us, json_reader(Primitive.TIMESTAMP, "us"))
            headers = headers_of(record)
        except MisfitError:
            raise
        except ValueError as error:
            raise MisfitError(str(error), ["headers"]) from None
        return _Row(self._converted(self._keys_of(row) if deleted else row), stamp, headers, deleted)

    def _converted(self, document: Mapping[str, Any]) -> dict[str, Any]:
        of_json = self._of_json
        return {
            name: value if name not in of_json else converted(name, value, of_json[name])
            for name, value in document.items()
            if not self._is_beside(name)
        }

    def _is_beside(self, name: str) -> bool:
        """Whether a column of the input is a system column or the timestamp, and no column of the topic."""
        return name in SYSTEM_COLUMNS or (name == self._timestamp.name and name not in self._columns)

    # -- CSV -----------------------------------------------------------------------------------------------------------

    def csv_batches(self, file: BinaryIO, delimiter: str) -> Iterator[pa.RecordBatch]:
        """Rows of CSV; the first line names the columns. An empty cell is null, or empty if never null.

        Raises:
            TidemarkError: SCHEMA_MISMATCH for a row that does not fit, after the rows before it, and for a column that
                the topic lacks. INVALID_REQUEST for text that is not CSV.
        """
        csv.field_size_limit(LINE_BYTES_MAX)
        chunks = _csv_chunks(file, delimiter)
        names = next(chunks, [(1, [])])[0][1]
        if not names:
            return
        self._check_names(names)
        for chunk in chunks:
            whole = self._by_column(names, chunk)
            if whole is not None:
                yield whole
            else:
                yield from self._checked(
                    chunk, lambda cells: self._of_cells(names, cells), lambda cells: _shown_cells(names, cells)
                )

    def _check_names(self, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise refusal("line 1", MisfitError("two columns have this name", [twice]))
        given = {name: None for name in names if not self._is_beside(name)}
        if given.keys() - self._columns.keys():
            raise refusal("line 1", superfluous(given, tuple(self._columns.values())))
        for name, column in self._columns.items():
            if name not in given and column.default is None and not column.nullable:
                raise refusal("line 1", MisfitError("the header lacks the column, which is never null", [name]))

    def _of_cells(self, names: Sequence[str], cells: Sequence[str]) -> _Row:
        if len(cells) != len(names):
            raise MisfitError(f"the row has {len(cells)} cells, and the first line names {len(names)} columns")
        found: dict[str, Any] = {}
        stamp = None
        given = dict(zip(names, cells, strict=True))
        deleted = _is_true(given.get(DELETED, ""))
        if deleted:
            given = self._keys_of(given)
        for name, cell in given.items():
            if name in self._columns:
                found[name] = self._of_cell(self._columns[name], cell)
            if name == self._timestamp.name and cell:
                stamp = converted(name, cell, self._stamp)
        return _Row(found, stamp, (), deleted)

    def _of_cell(self, column: Column, cell: str) -> Any:
        if not cell:
            return None if column.nullable else _EMPTY.get(plain_type(column.type))
        if not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell):
            raise MisfitError("not UTF-8", [column.name])
        return converted(column.name, cell, self._of_text[column.name])

    def _by_column(self, names: Sequence[str], chunk: Sequence[tuple[int, list[str]]]) -> pa.RecordBatch | None:
        """The rows, cast column by column; None if a cell needs a check by itself."""
        if any(len(cells) != len(names) for _, cells in chunk):
            return None
        if DELETED in names and any(cells[names.index(DELETED)] for _, cells in chunk):
            return None
        columns = dict(zip(names, zip(*(cells for _, cells in chunk), strict=True), strict=True))
        arrays: dict[str, Any] = {}
        try:
            for name, column in self._columns.items():
                if name in columns:
                    arrays[name] = self._cast(column, columns[name])
            if not self._has_event_time and self._timestamp.name in columns:
                arrays[TIMESTAMP] = _cast_texts(pa.array(columns[self._timestamp.name], pa.string()), TIMESTAMP_TYPE)
                if arrays[TIMESTAMP].null_count:
                    return None
            rows = pa.RecordBatch.from_pydict({name: one for name, one in arrays.items() if name != TIMESTAMP})
            fitted_columns = fitted(rows, tuple(self._columns.values()))
        except (pa.ArrowException, ValueError):  # ValueError: a MisfitError, or bytes that are not UTF-8
            return None
        return self._with_system(fitted_columns, arrays.get(TIMESTAMP), None)

    def _cast(self, column: Column, cells: Sequence[str]) -> Any:
        plain = plain_type(column.type)
        if plain in _CAST or isinstance(plain, Decimal):
            texts: Any = pa.array(cells, pa.string())
            if plain is Primitive.STRING and not column.nullable:
                return texts
            return _cast_texts(texts, pa.float64() if plain in _FLOATS else arrow_type(plain))
        values = [checked(self._of_cell(column, cell), column) for cell in cells]
        return pa.array(values, arrow_type(column.type))

    # -- Parquet -------------------------------------------------------------------------------------------------------

    def parquet_batches(self, file: BinaryIO) -> Iterator[pa.RecordBatch]:
        """Rows of a Parquet file. A time without a zone is UTC in a column that is an instant.

        Raises:
            TidemarkError: SCHEMA_MISMATCH for a row that does not fit, after the rows before it, and for a column of
                another type. INVALID_REQUEST for a file that is not Parquet.
        """
        number = 1
        for batch in parquet_batches(file):
            found = self._with_zones(batch)
            pieces: list[pa.RecordBatch] = []
            try:
                self._by_halves(found, number, pieces)
            except TidemarkError:
                yield from pieces
                raise
            yield from pieces
            number += batch.num_rows

    def _by_halves(self, rows: pa.RecordBatch, number: int, found: list[pa.RecordBatch]) -> None:
        """Add the rows that fit to `found`, in order; `number` is the number of the first row."""
        of_topic = rows.select([name for name in rows.schema.names if not self._is_beside(name)])
        try:
            columns = fitted(of_topic, tuple(self._columns.values()))
            found.append(self._with_system(columns, *self._beside(rows)))
        except MisfitError as misfit:
            if misfit.row is None:
                raise refusal("the Parquet file", misfit) from None
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                self._by_halves(rows.slice(0, half), number, found)
                self._by_halves(rows.slice(half), number + half, found)
            else:
                self._rejects.take(number, misfit, json_rows(of_topic, of_topic.schema.names)[0])

    def _with_zones(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for place, field in enumerate(rows.schema):
            column = self._timestamp if field.name == self._timestamp.name else self._columns.get(field.name)
            found: Any = field.type
            if column is None or column.type is not Primitive.TIMESTAMP:
                continue
            if pa.types.is_timestamp(found) and found.tz is None:
                instants = rows.column(place).cast(pa.timestamp(found.unit, "UTC"))
                rows = rows.set_column(place, pa.field(field.name, instants.type), instants)
        return rows

    def _beside(self, rows: pa.RecordBatch) -> tuple[Any, Any, Any]:
        """Timestamps, headers and deletions of the rows; None: the table has none."""
        names = rows.schema.names
        stamps: Any = rows.column(self._timestamp.name) if self._timestamp.name in names else None
        if stamps is not None and not pa.types.is_timestamp(stamps.type):
            found = f"the file has the type {stamps.type}; expected a timestamp"
            raise refusal("the Parquet file", MisfitError(found, [self._timestamp.name]))
        headers: Any = rows.column(HEADERS) if HEADERS in names else None
        if headers is not None and not pa.types.is_map(headers.type):
            headers = None
        deleted: Any = rows.column(DELETED) if DELETED in names else None
        if deleted is not None and not (pa.types.is_boolean(deleted.type) and deleted.true_count):
            deleted = None
        return stamps, headers, deleted

    # -- batches -------------------------------------------------------------------------------------------------------

    def _checked(
        self,
        chunk: Iterable[tuple[int, Given]],
        read: Callable[[Given], _Row],
        shown: Callable[[Given], object],
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk before the first invalid row, as one batch; then the error of that row, if any."""
        values, stamps, headers, deleted = [], [], [], []
        now_us = time.time_ns() // 1000
        refused: TidemarkError | None = None
        for number, given in chunk:
            try:
                row = read(given)
                values.append(self._fit(row, now_us))
            except MisfitError as misfit:
                try:
                    self._rejects.take(number, misfit, shown(given))
                except TidemarkError as error:
                    refused = error
                    break
                continue
            stamps.append(row.timestamp)
            headers.append(row.headers)
            deleted.append(row.deleted)
        if values:
            times = pa.array(stamps, TIMESTAMP_TYPE) if any(stamp is not None for stamp in stamps) else None
            yield self._with_system(
                self._rows.columns(list(chain.from_iterable(values))),
                times,
                pa.array(headers, HEADERS_TYPE) if any(headers) else None,
                pa.array(deleted) if any(deleted) else None,
            )
        if refused is not None:
            raise refused

    def _fit(self, row: _Row, now_us: int) -> Values:
        """The checked values of a row; raises MisfitError."""
        if not row.deleted:
            return self._rows.fit(row.columns)[0]
        keys, stamp_us = dict(row.columns), now_us
        event_time = self._schema.event_time_column
        if event_time is not None and event_time.id not in self._schema.key and event_time.name in keys:
            try:
                stamp_us = microseconds_of(checked(keys.pop(event_time.name), event_time))
            except MisfitError as misfit:
                raise misfit.below(event_time.name) from None
        return self._rows.fit_deletion(keys, stamp_us)[0]

    def _with_system(self, columns: Sequence[Any], times: Any, headers: Any, deleted: Any = None) -> pa.RecordBatch:
        """A batch for `send_table`, with `_timestamp`, `_headers` and `_deleted` if the rows have them."""
        fields = list(schema_fields(tuple(self._columns.values())))
        arrays = list(columns)
        if times is not None and not self._has_event_time:
            if times.null_count:
                now = pc.cast(pa.array([time.time_ns() // 1000], pa.int64()), TIMESTAMP_TYPE)[0]
                times = pc.fill_null(times, now)
            fields.append(pa.field(TIMESTAMP, times.type))
            arrays.append(times)
        if headers is not None:
            fields.append(pa.field(HEADERS, headers.type))
            arrays.append(headers)
        if deleted is not None:
            fields.append(pa.field(DELETED, deleted.type))
            arrays.append(deleted)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _csv_chunks(file: BinaryIO, delimiter: str) -> Iterator[list[tuple[int, list[str]]]]:
    """Rows with the number of their first line, a chunk for each read; the first chunk is the header alone."""
    is_end = False

    def texts() -> Iterator[str]:
        nonlocal is_end
        first = True
        for lines in line_blocks(file):
            for at, line in enumerate(lines, 1):
                is_end = at == len(lines)
                content = line.removeprefix(BYTE_ORDER_MARK) if first else line
                first = False
                yield content.decode(errors="surrogateescape") + "\n"

    reader = csv.reader(texts(), delimiter=delimiter)
    chunk: list[tuple[int, list[str]]] = []
    begin, has_header = 1, False
    try:
        for cells in reader:
            if cells:
                chunk.append((begin, cells))
            begin = reader.line_num + 1
            if chunk and (is_end or not has_header):
                yield chunk
                chunk, has_header = [], True
    except csv.Error as error:
        if chunk:
            yield chunk
        raise invalid_request(f"line {reader.line_num}: the text is not CSV: {error}") from None
    if chunk:
        yield chunk


def _is_true(cell: str) -> bool:
    """Whether a cell of `_deleted` is true; raises MisfitError."""
    found = {"": False, "false": False, "true": True}.get(cell.lower())
    if found is None:
        raise MisfitError("expected true or false: whether the row deletes the rows of its key", [DELETED])
    return found


def _cast_texts(texts: Any, wanted: Any) -> Any:
    """Texts as values, empty ones as null; raises ArrowInvalid for a text that needs a check by itself."""
    texts = _compute.if_else(_compute.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if pa.types.is_string(wanted):
        return texts
    # Arrow takes 0x10 as an integer, and crashes at the decimal 1e-999999999
    risky = "x" if pa.types.is_integer(wanted) else "e" if pa.types.is_decimal(wanted) else None
    if risky and _compute.any(_compute.match_substring(texts, risky, ignore_case=True)).as_py():
        raise pa.ArrowInvalid("the text may be no number")
    if not pa.types.is_timestamp(wanted) or wanted.tz is None:
        cast = texts.cast(wanted)
        if pa.types.is_floating(wanted) and _compute.any(_compute.is_inf(cast)).as_py():
            raise pa.ArrowInvalid("it may be a number that is too large")
        return cast
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp("us")).cast(wanted)  # a text without a zone is in UTC


def _shown_line(line: bytes) -> object:
    try:
        return parse_shown(line)
    except (ValueError, RecursionError):
        return line.decode(errors="backslashreplace")


def _shown_cells(names: Sequence[str], cells: Sequence[str]) -> object:
    shown = [cell.encode(errors="surrogateescape").decode(errors="backslashreplace") for cell in cells]
    return dict(zip(names, shown, strict=True)) if len(names) == len(shown) else shown
