# SPDX-License-Identifier: Apache-2.0
"""The client for records: reads of a partition without a group, in threads, each within bounds."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from tidemark.client.consuming.range_reader import Bounds, RangeReader
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.tls import Credentials
from tidemark.client.outputs.record_rows import open_sink
from tidemark.client.outputs.shape import Shape
from tidemark.client.outputs.typed_rows import reader_of
from tidemark.client.records import PartitionBatch
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.console.queries.record_scan import Limits, Scan, Search, Where
from tidemark.model import invalid_request
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven

T = TypeVar("T")

CLIENT_ID: Final = "tidemark console"
READS_AT_ONCE: Final = 4
"""Limit of the reads of all users together; further reads wait."""
SCAN_RECORDS_MAX: Final = 20_000
SCAN_BYTES_MAX: Final = 32 << 20
SCAN_S: Final = 4.0
DOWNLOAD_BYTES_MAX: Final = 2 * SCAN_BYTES_MAX
"""Larger than the read of a page, so that the range of a page fits."""
DOWNLOAD_SCANNED_MAX: Final = 100_000
DOWNLOAD_RECORDS_MAX: Final = 10_000
DOWNLOAD_S: Final = 20.0
_threads: Final = ThreadPoolExecutor(READS_AT_ONCE, "console-reads")
EVERY_RECORD: Final = Search()


class Position(NamedTuple):
    """The start of a read: "earliest", "offset" or "timestamp" (microseconds since 1970) read forward; "before" reads
    backward from an offset, "end" from the high watermark."""

    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class Asking:
    """Records that a page or a download requests.

    Attributes:
        until: end offset, exclusive; None: the high watermark.
    """

    where: Where
    position: Position
    limit: int
    search: Search = EVERY_RECORD
    until: int | None = None
    has_schema: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The records of a page, and the range that was read for them: `begin` inclusive, `end` exclusive."""

    batches: Sequence[pa.RecordBatch]
    bounds: Bounds
    begin: int
    end: int
    scanned: int
    scanned_bytes: int
    stopped: str
    asked_offset: int | None


@dataclass(frozen=True, slots=True)
class _Output:
    """The `OutputOptions` that a download needs."""

    topic: str
    shape: Shape
    named_columns: list[str] | None = None
    schema_version: int | None = None
    key_separator: str = ""
    delimiter: str = ","
    strings: bool = False


class RecordReads(Lifecycle):
    """Reads records with the rights of one user.

    Args:
        bootstrap: addresses of brokers.
        timeout_s: time limit of each lookup and fetch.
        tls: the authority of the brokers' certificates; None: plain text.
        token_file: the user's token.
    """

    def __init__(
        self, bootstrap: str, *, timeout_s: float, tls: TlsFiles | None, token_file: TokenGiven | None
    ) -> None:
        credentials = Credentials(tls, token_file)
        self._reader = RangeReader(bootstrap, deadline_s=timeout_s, tls=credentials, client_id=CLIENT_ID)

    async def start(self) -> None:
        """Has no effect: the reader connects at its first call."""

    async def close(self) -> None:
        """Close the connections."""
        self._reader.close()

    async def find(self, asking: Asking) -> Found:
        """The records of a page; raises TidemarkError."""
        return await _in_thread(lambda: find(self._reader, asking))

    async def download(self, asking: Asking, shape: Shape) -> bytes:
        """A file with the records; raises TidemarkError, INVALID_REQUEST if a bound is exceeded."""
        return await _in_thread(lambda: download(self._reader, asking, shape))

    async def record(self, where: Where, offset: int, *, has_schema: bool) -> pa.RecordBatch | None:
        """The record with this offset; None if the log has no such record."""
        return await _in_thread(lambda: record(self._reader, where, offset, has_schema=has_schema))


async def _in_thread(read: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, read)


def find(reader: RangeReader, asking: Asking, now_s: Callable[[], float] = time.monotonic) -> Found:
    """Read the records of a page. A start outside of the log becomes its nearest offset."""
    limits = Limits(asking.limit, SCAN_RECORDS_MAX, SCAN_BYTES_MAX, SCAN_S)
    scan, bounds, start = _begun(reader, asking, limits, Shape.JSON, now_s)
    if asking.position.kind in ("end", "before"):
        batches = scan.backward(bounds.earliest, start)
    else:
        batches = list(scan.forward(start, bounds.latest))
    asked = asking.position.value if asking.position.kind in ("offset", "before") else None
    return Found(
        batches, bounds, scan.begin, scan.end, scan.scanned, scan.scanned_bytes, scan.stopped, asked_offset=asked
    )


def download(reader: RangeReader, asking: Asking, shape: Shape, now_s: Callable[[], float] = time.monotonic) -> bytes:
    """Write the records to a file; never a part of them."""
    limits = Limits(asking.limit, DOWNLOAD_SCANNED_MAX, DOWNLOAD_BYTES_MAX, DOWNLOAD_S)
    output = _Output(asking.where.topic, shape)
    scan, bounds, start = _begun(reader, asking, limits, shape, now_s)
    end = bounds.latest if asking.until is None else min(asking.until, bounds.latest)
    typed = scan.typed
    file = io.BytesIO()
    sink = open_sink(file, output, None if typed is None else typed.schema)
    count = 0
    for rows in scan.forward(start, end):
        count += rows.num_rows
        sink.show(PartitionBatch(asking.where.topic, asking.where.partition, rows))
    sink.close()
    if scan.stopped or count > DOWNLOAD_RECORDS_MAX:
        raise invalid_request(
            f"a download has at most {DOWNLOAD_RECORDS_MAX} records, and reads at most {DOWNLOAD_SCANNED_MAX} records, "
            f"{DOWNLOAD_BYTES_MAX >> 20} MiB, {DOWNLOAD_S:g} s: take a smaller range, or the command tidemark consume "
            f"{asking.where.topic}"
        )
    return file.getvalue()


def record(reader: RangeReader, where: Where, offset: int, *, has_schema: bool) -> pa.RecordBatch | None:
    """Read one record of a partition."""
    asking = Asking(where, Position("offset", offset), 1, has_schema=has_schema)
    scan, bounds, start = _begun(reader, asking, Limits(1, 1, SCAN_BYTES_MAX, SCAN_S), Shape.JSON, time.monotonic)
    if start != offset or offset >= bounds.latest:
        return None
    return next(iter(scan.forward(offset, offset + 1)), None)


def _begun(
    reader: RangeReader, asking: Asking, limits: Limits, shape: Shape, now_s: Callable[[], float]
) -> tuple[Scan, Bounds, int]:
    """A scan, the bounds of the log, and the offset where the scan begins (of a backward one: its end)."""
    where = asking.where
    bounds = reader.bounds(where.topic, [where.partition])[where.partition]
    typed: BatchRows | None = None
    if asking.has_schema:
        typed = reader_of(_Output(where.topic, shape), reader.schemas(where.topic))
    scan = Scan(reader, where, limits, asking.search, typed, now_s)
    return scan, bounds, _start(reader, asking, bounds)


def _start(reader: RangeReader, asking: Asking, bounds: Bounds) -> int:
    kind, value = asking.position
    match kind:
        case "earliest":
            return bounds.earliest
        case "end":
            return bounds.latest
        case "timestamp":
            found = reader.offset_for_timestamp(asking.where.topic, asking.where.partition, value)
            return bounds.latest if found is None else found
        case _:
            return min(max(value, bounds.earliest), bounds.latest)


__all__ = ["Asking", "Found", "Position", "RecordReads", "download", "find", "record"]
