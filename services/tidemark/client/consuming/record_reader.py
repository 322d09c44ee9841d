# SPDX-License-Identifier: Apache-2.0
"""Makes records of polled rows, and reads the bytes of their keys and values with the application's functions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa

from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.records import ConsumerRecord, PartitionBatch, records_of
from tidemark.client.serializers import Deserializer, deserializer_of
from tidemark.client.typed.records import typed_records
from tidemark.client.typed.value_classes import MakeValue, maker_of
from tidemark.model import ErrorCode, TidemarkError, invalid_request


class RecordReader:
    """Any thread may call it; see the arguments of `aio.Consumer`.

    Attributes:
        deserializes: whether records need `deserialized`.
    """

    def __init__(
        self,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        value_class: type | None = None,
    ) -> None:
        self._key_deserializer = deserializer_of("key_deserializer", key_deserializer)
        self._value_deserializer = deserializer_of("value_deserializer", value_deserializer)
        self._make_value = maker_of(value_class)
        self._reads_bytes = key_deserializer is not None or value_deserializer is not None
        self.deserializes = self._reads_bytes or value_class is not None

    def records_in(self, batch: PartitionBatch) -> list[ConsumerRecord]:
        """The records of a polled batch, before `deserialized`."""
        if "_offset" in batch.rows.schema.names:
            return typed_records(*batch)
        return records_of(*batch)

    def deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        """Read key and value of a record; raises INVALID_PAYLOAD with the record's place."""
        if self._make_value is not None and isinstance(record.value, dict):
            return record._replace(value=_made(self._make_value, record))
        key = _read("key", self._key_deserializer, record.key, record)
        return record._replace(key=key, value=_read("value", self._value_deserializer, record.value, record))

    def next_of(self, waiting: list[ConsumerRecord], most: int) -> list[ConsumerRecord]:
        """The next records, deserialized; before the first one that cannot be deserialized.

        Args:
            waiting: undelivered records, the last one first; at least one.
            most: number of records at most.

        Raises:
            TidemarkError: INVALID_PAYLOAD of the next record.
        """
        records = waiting[: -most - 1 : -1]
        if not self.deserializes:
            return records
        found = [self.deserialized(records[0])]
        with suppress(TidemarkError):
            found.extend(map(self.deserialized, records[1:]))
        return found

    def check_typed(self, topic: str) -> None:
        """Raise INVALID_REQUEST if the records of a topic with a schema would be deserialized."""
        if self._reads_bytes:
            raise invalid_request(f"topic {topic} has a schema: omit key_deserializer and value_deserializer")


class WaitingRecords:
    """The records of the first buffered batch of one partition that the application has not got yet."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._cursor: Cursor | None = None
        self._generation = 0
        self._records: list[ConsumerRecord] = []
        """The waiting records, from the last to the next."""

    @property
    def cursor(self) -> Cursor | None:
        """The partition; None: no records wait, or the application has moved or paused the partition since."""
        cursor = self._cursor
        return None if cursor is None or cursor.generation != self._generation or not cursor.gives else cursor

    def begin(self, cursor: Cursor, rows: pa.RecordBatch) -> None:
        """Keep these rows, at least one, in place of earlier rows."""
        self.forget()  # called first, so that an error leaves the rows in the cursor
        self._records = self._reader.records_in(PartitionBatch(*cursor.partition, rows))
        self._records.reverse()
        self._cursor, self._generation = cursor, cursor.generation

    def forget(self) -> None:
        """Discard the records: the position excludes all that were taken."""
        self._cursor, self._records = None, []

    def take_next(self, held: Cursor) -> ConsumerRecord | None:
        """The next record of the same batch, as `take`, which it settles. Only the position changes.

        Args:
            held: the cursor of the record that the application got last.

        Returns:
            None, without an effect, if the record was of another batch, or if `take` is needed.
        """
        cursor, records = self._cursor, self._records
        if (
            cursor is not held
            or len(records) < 2
            or cursor.generation != self._generation
            or cursor.paused
            or cursor.withheld
            or self._reader.deserializes
        ):
            return None
        cursor.settle()
        record = records.pop()
        cursor.position = record[2] + 1
        return record

    def take(self) -> ConsumerRecord:
        """The next record; the position moves past it. Raises INVALID_PAYLOAD, and keeps the record."""
        record = self._records[-1]
        if self._reader.deserializes:
            record = self._reader.deserialized(record)
        self._records.pop()
        self._taken(record)
        return record

    def take_some(self, most: int) -> list[ConsumerRecord]:
        """Like `RecordReader.next_of`; the position moves past the last record."""
        records = self._reader.next_of(self._records, most)
        del self._records[-len(records) :]
        self._taken(records[-1])
        return records

    def _taken(self, last: ConsumerRecord) -> None:
        assert self._cursor is not None
        self._cursor.advance(last.offset + 1)
        if not self._records:
            self._cursor.passed()
            self._cursor = None


def _read(part: str, read: Deserializer | None, data: Any, record: ConsumerRecord) -> Any:
    if read is None or data is None:
        return data
    try:
        return read(data)
    except Exception as error:
        raise _unreadable(f"{part}_deserializer cannot read the {part}", record, error) from error


def _made(make: MakeValue, record: ConsumerRecord) -> Any:
    try:
        return make(record.value)
    except Exception as error:
        raise _unreadable("value_class cannot be made of the row", record, error) from error


def _unreadable(problem: str, record: ConsumerRecord, error: Exception) -> TidemarkError:
    return TidemarkError(
        ErrorCode.INVALID_PAYLOAD,
        f"{record.topic}-{record.partition}: {problem} at offset {record.offset}: "
        f"{type(error).__name__}: {error}; seek to the next offset to skip the record",
        {"topic": record.topic, "partition": str(record.partition), "offset": str(record.offset)},
    )
