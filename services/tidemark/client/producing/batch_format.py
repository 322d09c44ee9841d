# SPDX-License-Identifier: Apache-2.0
"""How the records of a batch become bytes: as bytes, or as the columns of a schema version (`typed_format`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict, Unpack

import pyarrow as pa

from tidemark.record.checks import timestamps_us
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.few_rows import FEW
from tidemark.record.payload import Headers, build_batch, build_few, from_columns, read_batch


class Sealing(TypedDict):
    """Fields of a batch's envelope: the producer's fields, and whether the batch belongs to a transaction."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    pending: bool


class BatchFormat(Protocol):
    """The format of the batches of a topic.

    Attributes:
        topic_id: id of the topic whose rows the batches have; "": they fit any topic without a schema.
    """

    topic_id: str

    def rows(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        deleted: Sequence[bool] | None = None,
    ) -> pa.RecordBatch:
        """The Arrow rows of records that were sent one by one; the arguments are attributes of `PendingBatch`."""
        ...

    def build(
        self,
        rows: pa.RecordBatch,
        *,
        timestamp_us: int,
        codec: Codec,
        **sealing: Unpack[Sealing],
    ) -> bytes:
        """The sealed batch of the rows; `timestamp_us` is for rows without a timestamp."""
        ...

    def build_few(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        *,
        codec: Codec,
        **sealing: Unpack[Sealing],
    ) -> bytes | None:
        """Like `build` of `rows`, but faster; None for records that this method does not take."""
        ...

    def read(self, data: bytes) -> pa.RecordBatch:
        """The rows of a sealed batch."""
        ...

    def timestamps_us(self, rows: pa.RecordBatch) -> Sequence[int]:
        """The timestamp of each row, in microseconds since 1970."""
        ...


class BytesFormat:
    """Keys and values are bytes; rows are in record.schema.SCHEMA."""

    topic_id: str = ""

    def rows(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        deleted: Sequence[bool] | None = None,
    ) -> pa.RecordBatch:
        """Rows in SCHEMA, as `BatchFormat.rows` states."""
        some_keys = None if keys.count(None) == len(keys) else keys
        return from_columns(some_keys, values, timestamps_us, headers)

    def build(
        self,
        rows: pa.RecordBatch,
        *,
        timestamp_us: int,
        codec: Codec,
        **sealing: Unpack[Sealing],
    ) -> bytes:
        """A sealed batch of bytes, as `BatchFormat.build` states."""
        return build_batch(rows, codec=codec, **sealing)

    def build_few(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        *,
        codec: Codec,
        **sealing: Unpack[Sealing],
    ) -> bytes | None:
        """A sealed batch of a few records, as `BatchFormat.build_few` states."""
        if codec or headers is not None or len(values) > FEW:
            return None
        try:
            return build_few(keys, values, timestamps_us, **sealing)
        except (TypeError, struct.error):
            return None  # `rows` raises the error for the application

    def read(self, data: bytes) -> pa.RecordBatch:
        """Rows in SCHEMA of a sealed batch, as `BatchFormat.read` states."""
        return read_batch(Batch(parse_envelope(data), data))

    def timestamps_us(self, rows: pa.RecordBatch) -> Sequence[int]:
        """Timestamps of rows in SCHEMA, as `BatchFormat.timestamps_us` states."""
        return timestamps_us(rows)


BYTES: Final = BytesFormat()
