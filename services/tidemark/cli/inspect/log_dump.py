# SPDX-License-Identifier: Apache-2.0
"""Output of `tidemark log dump`: batches or records of a log, or the rows of a small file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.cli.common.output import Output, print_json, print_line, print_table, print_warning
from tidemark.cli.common.process import NO_SPACE, give_up_output
from tidemark.cli.common.schema_source import saved_schema
from tidemark.client.outputs.record_format import moment, named_bytes, named_headers, shown_bytes_of
from tidemark.client.outputs.typed_json import columns_of, encode_json, json_rows
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import NO_PRODUCER, ErrorCode, TidemarkError, invalid_request
from tidemark.record.envelope import KNOWN_ATTRIBUTES, Attributes, Batch, Codec, Envelope
from tidemark.record.markers import EndMarker, read_marker
from tidemark.record.payload import with_offsets
from tidemark.storage.directories.log_directory import META_FILE
from tidemark.storage.inspect.committed import committed_part
from tidemark.storage.inspect.documents import Document, read_document
from tidemark.storage.inspect.inspection import (
    Bad,
    Good,
    is_held,
    is_segment,
    is_special,
    read_log,
    read_segment,
    replica_paths,
    special_files,
)

_HEADINGS = (
    f"{'position':>12} {'offsets':>25} {'epoch':>6} {'records':>8} {'bytes':>9} codec "
    f"{'newest timestamp':<27} producer:epoch:sequence"
)

_UNREAD: Final = "  (rows are read with --schema FILE)"

_TABLE_ROWS_MAX = 500
"""A longer table is printed row by row, without aligned columns."""


class Wanted(NamedTuple):
    """The part of a log to print: offsets from `start` to `end`, both inclusive.

    `readers` has the known versions of a typed topic's schema, and `committed` omits other records.
    """

    start: int
    end: int
    records: bool
    verify: bool
    readers: Mapping[int, BatchRows] = {}
    committed: bool = False


class Tally:
    """Damage found so far: the number of damaged places, and the torn tail of a log that a broker has open."""

    def __init__(self) -> None:
        self.wrong = 0
        self.torn: Bad | None = None


def readers_of(files: Sequence[Path]) -> dict[int, BatchRows]:
    """Readers of the versions of a schema in these files; raises INVALID_SCHEMA, INVALID_REQUEST."""
    schemas = [saved_schema(file) for file in files]
    return {one.version: BatchRows("the log", {one.version: one}, dictionaries=False) for one in schemas}


def run(path: Path, replica: str, wanted: Wanted, shape: Output) -> None:
    """Print the file or replica.

    Raises:
        TidemarkError: INVALID_REQUEST, STORAGE_ERROR or CORRUPT_BATCH.
        OSError: stdout has no space.
    """
    try:
        _dump(_which(path, replica), wanted, shape)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has closed the pipe
        give_up_output()
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        sentence = f"{error.filename or path} cannot be read: {error.strerror or error}"
        raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence) from error


def _which(path: Path, replica: str) -> Path:
    """The file or replica directory that the arguments name."""
    found = _named(path, replica)
    for special in [found] if is_special(found) else special_files(found) if found.is_dir() else []:
        raise TidemarkError(ErrorCode.STORAGE_ERROR, f"{special} cannot be read: it is not a regular file")
    return found


def _named(path: Path, replica: str) -> Path:
    if replica:
        found = [one.path for one in replica_paths(path) if one.path.name == replica]
        if not found:
            raise invalid_request(f"{path} has no replica {replica}: see `ls {path}`")
        return found[0]
    if path.is_dir() and (path / META_FILE).exists():
        names = ", ".join(one.path.name for one in replica_paths(path)[:5])
        raise invalid_request(
            f"{path} is a log directory: name a replica, or a file{f' ({names}, ...)' if names else ''}"
        )
    if not path.exists():
        raise invalid_request(f"there is no file or directory {path}")
    if path.is_dir() and not any(map(is_segment, path.iterdir())):
        raise invalid_request(f"{path} has no segment: name the directory of a replica, such as data/flights-0")
    return path


def _dump(path: Path, wanted: Wanted, shape: Output) -> None:
    pieces: Iterable[tuple[Path, Good | Bad]]
    if wanted.committed:
        wanted, pieces = _committed(path, wanted)
    elif path.is_dir():
        pieces = read_log(path, from_offset=wanted.start)
    elif is_segment(path):
        pieces = ((path, piece) for piece in read_segment(path))
    else:
        document = read_document(path)
        if document is None:
            raise invalid_request(f"{path.name} is not the name of a log's file")
        _show_document(path, document, shape)
        return
    live = is_held((path if path.is_dir() else path.parent).parent) is True
    tally = Tally()
    for line in _lines(pieces, wanted, shape, tally, live=live):
        print_line(line) if isinstance(line, str) else print_json(line)
    if tally.torn is not None:
        torn_bytes = tally.torn.end - tally.torn.position
        sys.stderr.write(f"the last {torn_bytes} bytes are an incomplete batch: an append is in flight\n")
    if tally.wrong and wanted.verify:
        raise TidemarkError(
            ErrorCode.CORRUPT_BATCH,
            f"{tally.wrong} of the places shown are damaged; `tidemark log verify` names the next step for each",
        )


def _committed(path: Path, wanted: Wanted) -> tuple[Wanted, Iterable[tuple[Path, Good | Bad]]]:
    """The batches with committed records, and damaged places; the bounds lie within the log."""
    if not path.is_dir():
        sentence = f"{path} is a file, and another file may have the end of a transaction: name the replica's directory"
        raise invalid_request(sentence)
    part = committed_part(path)
    for producer_id, first in part.open.items():
        print_warning(
            f"the transaction of producer {producer_id} from offset {first} on has no end in this log, and its records "
            "are omitted; its coordinator may have committed it, as the records of __transaction_state show"
        )
    bounded = wanted._replace(start=max(wanted.start, part.start), end=min(wanted.end, part.end - 1))
    found = read_log(path, from_offset=bounded.start)
    return bounded, ((file, one) for file, one in found if isinstance(one, Bad) or part.has(one.batch.envelope))


def _lines(
    pieces: Iterable[tuple[Path, Good | Bad]], wanted: Wanted, shape: Output, tally: Tally, *, live: bool
) -> Iterator[str | Mapping[str, object]]:
    file: Path | None = None
    for path, piece in pieces:
        if isinstance(piece, Good) and piece.batch.envelope.next_offset <= wanted.start:
            continue
        if isinstance(piece, Good) and piece.batch.envelope.base_offset > wanted.end:
            return
        if path != file and shape is Output.TEXT and not wanted.records:
            file = path
            yield str(path)
            yield _HEADINGS
        if isinstance(piece, Bad):
            if piece.is_tail and live:
                tally.torn = piece
                continue
            tally.wrong += 1
            yield _bad_json(path, piece) if shape is Output.JSON else _bad_text(piece)
            continue
        yield from _good(path, piece, wanted, shape, tally)


def _good(path: Path, good: Good, wanted: Wanted, shape: Output, tally: Tally) -> Iterator[str | Mapping[str, object]]:
    rows: pa.RecordBatch | None = None
    wrong = ""
    envelope = good.batch.envelope
    if wanted.records or wanted.verify:
        try:
            if not envelope.is_typed:
                rows = with_offsets(good.batch)
            elif envelope.schema_version in wanted.readers:
                rows = wanted.readers[envelope.schema_version].rows(good.batch, 0, wanted.start)
        except TidemarkError as error:
            wrong = error.message
            tally.wrong += 1
    if rows is None:
        if shape is Output.JSON:
            facts = {**_marker_json(good.batch), "crc_ok": True, **({"error": wrong} if wrong else {})}
            yield {**_batch_json(path, good.position, envelope), **facts}
        else:
            unread = _UNREAD if wanted.records and envelope.is_typed else ""
            yield (
                _batch_text(good.position, envelope)
                + _marker_text(good.batch)
                + (f"  BAD payload: {wrong}" if wrong else unread)
            )
    elif wanted.records and envelope.is_typed:
        yield from _typed_records(good.batch, rows, wanted, shape)
    elif wanted.records:
        yield from _records(good.batch, rows, wanted, shape)


def _headers_text(headers: Iterable[tuple[str, bytes | None]] | None) -> str:
    shown = " ".join(f"{name}={shown_bytes_of(content)}" for name, content in headers or ())
    return f" headers: {shown}" if shown else ""


def _records(batch: Batch, rows: pa.RecordBatch, wanted: Wanted, shape: Output) -> Iterator[str | Mapping[str, object]]:
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [rows.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
    for timestamp_us, offset, key, value, headers in zip(times, *columns, strict=True):
        if not wanted.start <= offset <= wanted.end:
            continue
        if shape is Output.JSON:
            yield {
                "offset": offset,
                "timestamp_us": timestamp_us,
                "leader_epoch": batch.envelope.leader_epoch,
                **({"control": True} if batch.envelope.is_control else {}),
                **_marker_json(batch),
                **named_bytes("key", key),
                **named_bytes("value", value),
                "headers": named_headers(headers),
            }
        else:
            yield (
                f"{offset} {moment(timestamp_us) or timestamp_us} key={shown_bytes_of(key)} "
                f"value={shown_bytes_of(value)}{_headers_text(headers)}{_marker_text(batch)}"
            )


def _typed_records(
    batch: Batch, rows: pa.RecordBatch, wanted: Wanted, shape: Output
) -> Iterator[str | Mapping[str, object]]:
    times: list[Any] = rows.column("_timestamp").cast(pa.int64()).to_pylist()
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in ("_offset", "_key", "_headers", "_deleted")]
    values = json_rows(rows, columns_of(rows.schema))
    of_deletions = _columns_of_deletions(wanted.readers[batch.envelope.schema_version].target)
    for timestamp_us, offset, key, headers, deleted, value in zip(times, *columns, values, strict=True):
        if not wanted.start <= offset <= wanted.end:
            continue
        if shape is Output.JSON:
            yield {
                "offset": offset,
                "timestamp_us": timestamp_us,
                "leader_epoch": batch.envelope.leader_epoch,
                "schema_version": batch.envelope.schema_version,
                **named_bytes("key", key),
                "value": None if deleted else value,
                **({"deleted": {name: value[name] for name in of_deletions}} if deleted else {}),
                "headers": named_headers(headers),
            }
        else:
            yield (
                f"{offset} {moment(timestamp_us) or timestamp_us} key={shown_bytes_of(key)} "
                f"value={'null' if deleted else encode_json(value)}{_headers_text(headers)}"
            )


def _columns_of_deletions(schema: TopicSchema) -> list[str]:
    """Columns of a row that deletes the earlier rows of its key: the key columns, and the event time."""
    event_time = schema.event_time_column
    found = [*schema.key_columns, *([] if event_time is None else [event_time])]
    return list(dict.fromkeys(column.name for column in found))


def _batch_text(position: int, envelope: Envelope) -> str:
    last = envelope.next_offset - 1
    producer = (
        f"{envelope.producer_id}:{envelope.producer_epoch}:{envelope.base_sequence}"
        if envelope.producer_id != NO_PRODUCER
        else "-"
    )
    version = f" schema-version:{envelope.schema_version}" if envelope.is_typed else ""
    marks = version + "".join(f" {name}" for name in _attributes(envelope))
    offsets = f"{envelope.base_offset}-{last}"
    return (
        f"{position:>12} {offsets:>25} {envelope.leader_epoch:>6} {envelope.record_count:>8} "
        f"{envelope.batch_length:>9} {Codec(envelope.codec).name.lower():<5} "
        f"{moment(envelope.max_timestamp_us) or envelope.max_timestamp_us!s:<27} {producer}{marks}"
    )


def _batch_json(path: Path, position: int, envelope: Envelope) -> Mapping[str, object]:
    return {
        "file": str(path),
        "position": position,
        "base_offset": envelope.base_offset,
        "last_offset": envelope.next_offset - 1,
        "leader_epoch": envelope.leader_epoch,
        "record_count": envelope.record_count,
        "size_bytes": envelope.batch_length,
        "codec": Codec(envelope.codec).name.lower(),
        "max_timestamp_us": envelope.max_timestamp_us,
        "producer_id": envelope.producer_id,
        "producer_epoch": envelope.producer_epoch,
        "base_sequence": envelope.base_sequence,
        "attributes": list(_attributes(envelope)),
        "schema_version": envelope.schema_version or None,
        "delete_horizon_s": envelope.delete_horizon_s if envelope.has_delete_horizon else None,
        "crc": f"{envelope.crc:08x}",
    }


def _marker_of(batch: Batch) -> EndMarker | None:
    """The content of a marker; None for other batches, and for a damaged one, which is shown as such."""
    try:
        return read_marker(batch)
    except TidemarkError:
        return None


def _marker_text(batch: Batch) -> str:
    marker = _marker_of(batch)
    if marker is None:
        return ""
    return f"  {'commit' if marker.commit else 'abort'} by coordinator epoch {marker.coordinator_epoch}"


def _marker_json(batch: Batch) -> Mapping[str, object]:
    marker = _marker_of(batch)
    if marker is None:
        return {}
    return {"marker": "commit" if marker.commit else "abort", "coordinator_epoch": marker.coordinator_epoch}


def _attributes(envelope: Envelope) -> Iterator[str]:
    return (
        bit.name.lower().replace("_", "-") for bit in Attributes(envelope.attributes & KNOWN_ATTRIBUTES) if bit.name
    )


def _bad_text(bad: Bad) -> str:
    offset = f" offset {bad.envelope.base_offset}" if bad.envelope is not None else ""
    return f"{bad.position:>12} BAD{offset}: {bad.reason}; {bad.end - bad.position} bytes"


def _bad_json(path: Path, bad: Bad) -> Mapping[str, object]:
    envelope = {} if bad.envelope is None else _batch_json(path, bad.position, bad.envelope)
    return {
        **envelope,
        "file": str(path),
        "position": bad.position,
        "size_bytes": bad.end - bad.position,
        "crc_ok": False,
        "error": bad.reason,
    }


def _show_document(path: Path, document: Document, shape: Output) -> None:
    if shape is Output.JSON:
        for row in document.rows:
            print_json(dict(zip(document.columns, row, strict=True)))
    elif len(document.rows) > _TABLE_ROWS_MAX:
        print_line("  ".join(document.columns))
        for row in document.rows:
            print_line("  ".join("-" if cell is None else str(cell) for cell in row))
    else:
        print_table(document.columns, [["-" if cell is None else cell for cell in row] for row in document.rows])
    if document.damage:
        raise TidemarkError(ErrorCode.STORAGE_ERROR, f"{path}: {document.damage}")
