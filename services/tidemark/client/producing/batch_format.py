# SPDX-License-Identifier: Apache-2.0
"""How the records of a batch become bytes: as bytes, or as the columns of a schema version (`typed_format`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from tidemark.record.checks import timestamps_us
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.payload import Headers, build_batch, from_columns, read_batch


class BatchFormat(Protocol):
    """The format of the batches of a topic."""

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
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        pending: bool = False,
    ) -> bytes:
        """The sealed batch of the rows; `timestamp_us` is that of rows without one, `pending`: of a transaction."""
        ...

    def read(self, data: bytes) -> pa.RecordBatch:
        """The rows of a sealed batch."""
        ...

    def timestamps_us(self, rows: pa.RecordBatch) -> Sequence[int]:
        """The timestamp of each row, in microseconds since 1970."""
        ...


class BytesFormat:
    """Keys and values are bytes; rows are in record.schema.SCHEMA."""

    def rows(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[Any],
        timestamps_us: list[int],
        headers: Sequence[Headers | None] | None,
        deleted: Sequence[bool] | None = None,
    ) -> pa.RecordBatch:
        """See BatchFormat."""
        some_keys = None if keys.count(None) == len(keys) else keys
        return from_columns(some_keys, values, timestamps_us, headers)

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
        """See BatchFormat."""
        return build_batch(
            rows,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            pending=pending,
        )

    def read(self, data: bytes) -> pa.RecordBatch:
        """See BatchFormat."""
        return read_batch(Batch(parse_envelope(data), data))

    def timestamps_us(self, rows: pa.RecordBatch) -> Sequence[int]:
        """See BatchFormat."""
        return timestamps_us(rows)


BYTES: Final = BytesFormat()
