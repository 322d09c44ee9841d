# SPDX-License-Identifier: Apache-2.0
"""Batches of one schema version, from single records and from tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import pyarrow as pa

from tidemark.client.producing.partitioner import hash_of
from tidemark.client.producing.table import Frame, as_batches, cast_headers, cast_timestamps, owned
from tidemark.client.typed.mismatches import MisfitError
from tidemark.client.typed.record_rows import RecordRows, Values
from tidemark.client.typed.table_columns import FIRST_US, LAST_US, check_arrays, check_years, fitted
from tidemark.core.schemas.model import Primitive, TopicSchema
from tidemark.core.schemas.refusals import naming
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.payload import Headers
from tidemark.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from tidemark.record.typed.batch import build_typed_batch, read_stored
from tidemark.record.typed.column_table import HAS_HEADERS, HAS_TIMESTAMPS, HAS_TOMBSTONES
from tidemark.record.typed.key_bytes import key_bytes
from tidemark.record.typed.layout import flags_of

TIMESTAMP: Final = "_timestamp"
_HEADERS: Final = "_headers"
_DELETED: Final = "_deleted"
_HASHES_MAX: Final = 10_000
"""Largest number of keys whose hash is remembered."""
_JOINED_BYTES_MAX: Final = (1 << 31) - 1
"""Largest column of texts in one array of Arrow."""


class TypedFormat:
    """The batches of one version of a topic's schema; a `batch_format.BatchFormat`.

    Attributes:
        topic: name of the topic.
        topic_id: id of the topic; a recreated topic has another id.
        schema: the version.
        records: checks records, and makes columns of them.
        has_event_time: the event time of a row is its timestamp; otherwise rows have a system column of timestamps.
    """

    def __init__(self, topic: str, topic_id: str, schema: TopicSchema) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.schema = schema
        self.records = RecordRows(topic, schema)
        self._layout = layout_of(schema)
        self.has_event_time = schema.event_time is not None
        self.hashes: dict[Any, int] = {}
        """Hash of the key by the values of its columns, of which equal ones have equal key bytes."""

    # -- the format of a batch -----------------------------------------------------------------------------------------

    def rows(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        deleted: Sequence[bool] | None = None,
    ) -> pa.RecordBatch:
        """Rows of checked records, with system columns; `timestamps_us` is set to their event time."""
        columns = self.records.columns(values)
        system: list[Any] = []
        flags = 0
        if not self.has_event_time:
            flags |= HAS_TIMESTAMPS
            system.append(pa.array(timestamps_us, pa.int64()).view(TIMESTAMP_TYPE))
        else:
            place = self._layout.schema.get_field_index(self._layout.event_time or "")
            timestamps_us[:] = _integers(columns[place])
        if headers is not None:
            flags |= HAS_HEADERS
            system.append(pa.array(headers, HEADERS_TYPE))
        if deleted is not None and any(deleted):
            flags |= HAS_TOMBSTONES
            system.append(pa.array(deleted, pa.bool_()))
        return pa.RecordBatch.from_arrays([*system, *columns], schema=self._layout.arrangement(flags).schema)

    def partition_of(self, values: Values, partitions: int) -> int | None:
        """The partition of a checked record by its key, from 0; None for a topic without key columns."""
        chosen = self.records.key_values(values)
        if chosen is None:
            return None
        found = self.hashes.get(chosen)
        if found is None:
            found = hash_of(self.records.key(values) or b"")
            if _is_equal_by_bytes(chosen):
                if len(self.hashes) >= _HASHES_MAX:
                    self.hashes.clear()
                self.hashes[chosen] = found
        return found % partitions

    def build(
        self,
        rows: pa.RecordBatch,
        *,
        timestamp_us: int,
        codec: Codec,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        pending: bool = False,
    ) -> bytes:
        """A sealed typed batch, as `BatchFormat.build` states.

        Without Unpack: mypyc does not see the TypedDict of another module.
        """
        return build_typed_batch(
            rows,
            self._layout,
            flags=flags_of(rows.schema.names),
            timestamp_us=timestamp_us,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            pending=pending,
        )

    def build_few(self, *_: Any, **__: Any) -> None:
        """A sealed typed batch of a few records, as `BatchFormat.build_few` states."""

    def read(self, data: bytes) -> pa.RecordBatch:
        """The rows of a sealed batch, with their system columns."""
        return read_stored(Batch(parse_envelope(data), data), self._layout).rows

    def timestamps_us(self, rows: pa.RecordBatch) -> Sequence[int]:
        """Timestamps of typed rows, as `BatchFormat.timestamps_us` states."""
        name = TIMESTAMP if TIMESTAMP in rows.schema.names else self._layout.event_time
        if name is None:
            return [0] * rows.num_rows
        times: Any = rows.column(name).cast(pa.int64())
        found: list[int] = times.to_pylist()
        return found

    # -- tables --------------------------------------------------------------------------------------------------------

    def fit_table(self, table: Frame, timestamp: str | None) -> list[pa.RecordBatch]:
        """The rows of a table as one batch, with timestamps if the argument names their column; no batch is empty.

        The chunks of a table of more than 2 GiB stay separate batches, since Arrow cannot join every such column.

        Columns `_headers` and `_deleted` of the table become the headers, and the rows that delete earlier rows of
        their key.

        Raises:
            TidemarkError: SCHEMA_MISMATCH with topic, version, column and row; INVALID_PAYLOAD: no table.
        """
        if timestamp is not None and self.has_event_time:
            raise invalid_request(f"topic {self.topic} has the event time {self._layout.event_time}: omit timestamp")
        with naming(self.topic):
            batches = as_batches(table)
        self._check_arrays(batches)
        flags = 0 if timestamp is None else HAS_TIMESTAMPS
        names = batches[0].schema.names if batches else []
        flags |= HAS_HEADERS if _HEADERS in names else 0
        flags |= HAS_TOMBSTONES if _DELETED in names else 0
        schema = self._layout.arrangement(flags).schema
        found: list[pa.RecordBatch] = []
        first_row = 0
        for rows in batches:
            system: list[Any] = [] if timestamp is None else [_timestamps(rows, timestamp, first_row)]
            if timestamp is not None and timestamp not in self._layout.schema.names:
                rows = rows.drop_columns([timestamp])
            if flags & HAS_HEADERS:
                system.append(cast_headers(rows, _HEADERS))
                rows = rows.drop_columns([_HEADERS])
            if flags & HAS_TOMBSTONES:
                system.append(self._deletions(rows))
                rows = rows.drop_columns([_DELETED])
            try:
                columns = fitted(rows, self.schema.columns)
            except MisfitError as misfit:
                raise misfit.error(self.topic, self.schema.version, first_row) from None
            found.append(pa.RecordBatch.from_arrays([*system, *columns], schema=schema))
            first_row += rows.num_rows
        if len(found) > 1 and sum(rows.nbytes for rows in found) <= _JOINED_BYTES_MAX:
            found = pa.Table.from_batches(found, schema).combine_chunks().to_batches()  # a copy
        else:
            found = list(map(owned, found))
        return [rows for rows in found if rows.num_rows]

    def _check_arrays(self, batches: list[pa.RecordBatch]) -> None:
        first_row = 0
        for rows in batches:
            try:
                check_arrays(rows)
            except MisfitError as misfit:
                raise misfit.error(self.topic, self.schema.version, first_row) from None
            first_row += rows.num_rows

    def _deletions(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        found: Any = rows.column(_DELETED)
        if not pa.types.is_boolean(found.type) or found.null_count:
            kind = "nulls" if pa.types.is_boolean(found.type) else f"the type {found.type}"
            raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"column {_DELETED} has {kind}: give true or false")
        if not self.schema.key and found.true_count:
            misfit = MisfitError("the schema has no key columns, so no row can be deleted by its key", [_DELETED])
            raise misfit.error(self.topic, self.schema.version)
        return rows.column(_DELETED)

    def time_of(self, timestamp_us: int | None) -> int | None:
        """The timestamp of a record, None: now; None for a topic with an event time. Raises INVALID_TIMESTAMP."""
        if self.has_event_time:
            return None
        if timestamp_us is None:
            return time.time_ns() // 1000
        if not FIRST_US <= timestamp_us <= LAST_US:
            sentence = f"timestamp_us is {timestamp_us}: times in topic {self.topic} are of the years 1 to 9999"
            raise TidemarkError(ErrorCode.INVALID_TIMESTAMP, sentence)
        return timestamp_us

    def keys(self, rows: pa.RecordBatch) -> pa.Array[Any] | None:
        """The key bytes of rows; None for a topic without key columns."""
        return key_bytes(rows, self._layout.key_columns)


def _is_equal_by_bytes(chosen: Any) -> bool:
    """Whether equal values of the key columns have equal key bytes. In the hour that a clock repeats, Python calls two
    instants of a time zone equal.
    """
    values = chosen if type(chosen) is tuple else (chosen,)
    return all(not isinstance(value, datetime) or isinstance(value.tzinfo, timezone) for value in values)


def _timestamps(rows: pa.RecordBatch, name: str, first_row: int) -> Any:
    found = cast_timestamps(rows, name)
    try:
        check_years(found, Primitive.TIMESTAMP)
    except MisfitError as misfit:
        sentence = f"column {name!r}, row {first_row + (misfit.row or 0)}: {misfit.sentence}"
        raise TidemarkError(ErrorCode.INVALID_TIMESTAMP, sentence) from None
    return found


def _integers(times: pa.Array[Any]) -> list[int]:
    """Microseconds since 1970 of times without a null."""
    whole: Any = pa.concat_arrays([times]) if times.offset else times
    found: list[int] = memoryview(whole.buffers()[1]).cast("q")[: len(times)].tolist()
    return found


def slices(rows: pa.RecordBatch, room_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at least one row, of at most `room_bytes` if a row is not larger, without a copy."""
    if rows.nbytes <= room_bytes or rows.num_rows <= 1:
        yield rows
        return
    step = max(1, room_bytes * rows.num_rows // rows.nbytes)
    if step == rows.num_rows:
        step = (rows.num_rows + 1) // 2
    for start in range(0, rows.num_rows, step):
        part = rows.slice(start, step)
        if part.nbytes * 4 <= room_bytes * 5:
            yield part
        else:
            yield from slices(part, room_bytes)
