# SPDX-License-Identifier: Apache-2.0
"""Makes records of polled rows, and reads the bytes of their keys and values with the application's functions."""

from __future__ import annotations

from typing import Any

from tidemark.client.records import ConsumerRecord, PartitionBatch, records_of
from tidemark.client.serializers import Deserializer, deserializer_of
from tidemark.client.typed.records import typed_records
from tidemark.client.typed.value_classes import maker_of
from tidemark.model import ErrorCode, TidemarkError


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
        self.deserializes = key_deserializer is not None or value_deserializer is not None

    def records_in(self, batch: PartitionBatch) -> list[ConsumerRecord]:
        """The records of a polled batch, before `deserialized`."""
        if "_offset" in batch.rows.schema.names:
            return typed_records(*batch, self._make_value)
        return records_of(*batch)

    def deserialized(self, record: ConsumerRecord) -> ConsumerRecord:
        """Read key and value of a record; raises INVALID_PAYLOAD with the record's place."""
        key = _read("key", self._key_deserializer, record.key, record)
        return record._replace(key=key, value=_read("value", self._value_deserializer, record.value, record))

    def check_typed(self, topic: str) -> None:
        """Raise INVALID_REQUEST if the records of a topic with a schema would be deserialized."""
        if self.deserializes:
            sentence = f"topic {topic} has a schema: leave key_deserializer and value_deserializer out"
            raise TidemarkError(ErrorCode.INVALID_REQUEST, sentence)


def _read(part: str, read: Deserializer | None, data: Any, record: ConsumerRecord) -> Any:
    if read is None or data is None:
        return data
    try:
        return read(data)
    except Exception as error:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD,
            f"{record.topic}-{record.partition}: {part}_deserializer cannot read the {part} at offset {record.offset}: "
            f"{type(error).__name__}: {error}; seek behind this offset to skip the record",
            {"topic": record.topic, "partition": str(record.partition), "offset": str(record.offset)},
        ) from error
