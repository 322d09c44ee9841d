# SPDX-License-Identifier: Apache-2.0
"""Rows from which `tidemark schema infer` proposes a schema: of a file, or of the newest records of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark.model import ErrorCode, TidemarkError, invalid_request

if TYPE_CHECKING:
    from tidemark.core.schemas.infer import Inference

CLIENT_ID: Final = "tidemark schema infer"
_DEADLINE_S: Final = 30.0
_BLOCK_BYTES: Final = 16 << 20
"""Size of the part of a CSV file whose cells decide the types of its columns."""
TABLES: Final = (".csv", ".tsv")
LINES: Final = (".json", ".jsonl", ".ndjson")


def of_file(path: Path, rows_max: int) -> Inference:
    """A proposal from the first rows of a CSV file or of JSON lines.

    Raises:
        TidemarkError: INVALID_SCHEMA; INVALID_REQUEST for a file that cannot be read.
    """
    from tidemark.core.schemas.infer import infer_draft

    suffix = path.suffix.lower()
    try:
        rows = _rows_of_table(path, rows_max) if suffix in TABLES else _rows_of_lines(path)
        return infer_draft(islice(rows, rows_max))
    except OSError as error:
        raise invalid_request(f"cannot read {path}: {error.strerror}") from error


def of_topic(bootstrap: str, topic: str, rows_max: int) -> Inference:
    """A proposal from the newest records of a topic, whose values are JSON objects; other records are counted in a
    note.

    Raises:
        TidemarkError: UNKNOWN_TOPIC; INVALID_SCHEMA if no value is a JSON object, and for a topic that has a schema.
    """
    from tidemark.core.schemas.infer import Inference, infer_draft

    others = _Others()
    found = infer_draft(others.objects_in(_values(bootstrap, topic, rows_max), topic))
    notes = (*found.notes, others.note) if others.count else found.notes
    return Inference(found.draft, notes, found.row_count)


class _Others:
    """Counts values that are not JSON objects."""

    def __init__(self) -> None:
        self.count = 0
        self.seen = 0

    def objects_in(self, values: Iterable[bytes | None], topic: str) -> Iterator[Mapping[str, Any]]:
        for value in values:
            self.seen += 1
            row = _object(value)
            if row is None:
                self.count += 1
            else:
                yield row
        if self.count == self.seen:
            raise TidemarkError(
                ErrorCode.INVALID_SCHEMA,
                f"none of the {self.seen} newest records of {topic} has a JSON object as its value",
                {"topic": topic},
            )

    @property
    def note(self) -> str:
        return f"{self.count} of {self.seen} values are not JSON objects, and were omitted"


def _object(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        row = None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _values(bootstrap: str, topic: str, rows_max: int) -> Iterator[bytes | None]:
    """Values of about the newest `rows_max` committed records, an equal part of each partition."""
    from tidemark.client.consuming.range_reader import RangeReader
    from tidemark.client.metadata.cluster import CONNECT_TIMEOUT_S

    with RangeReader(
        bootstrap, deadline_s=_DEADLINE_S, connect_timeout_s=CONNECT_TIMEOUT_S, client_id=CLIENT_ID
    ) as reader:
        view = reader.topics([topic])[topic]
        if view.schema_version:
            raise TidemarkError(
                ErrorCode.INVALID_SCHEMA, f"{topic} has a schema: `tidemark schema show {topic}`", {"topic": topic}
            )
        each = max(1, rows_max // len(view.partitions))
        for index, bounds in reader.bounds(topic, sorted(view.partitions)).items():
            start = max(bounds.earliest, bounds.latest - each)
            for rows in reader.read(topic, index, start, bounds.latest, topic_id=view.topic_id):
                yield from rows.column("value").to_pylist()


def _rows_of_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = _object(line)
            if row is None:
                raise TidemarkError(
                    ErrorCode.INVALID_SCHEMA, f"{path}, line {number}: expected one JSON object in each line"
                )
            yield row


def _rows_of_table(path: Path, rows_max: int) -> Iterator[Mapping[str, Any]]:
    """Rows with the types that pyarrow finds in the first block of the file. Nanoseconds, which Python lacks, are
    texts.
    """
    import pyarrow as pa
    from pyarrow import csv

    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    read, parse = csv.ReadOptions(block_size=_BLOCK_BYTES), csv.ParseOptions(delimiter=delimiter)
    try:
        with csv.open_csv(path, read_options=read, parse_options=parse) as reader:
            taken = 0
            types = [pa.string() if str(one).startswith("timestamp[ns") else one for one in reader.schema.types]
            plain = pa.schema(list(zip(reader.schema.names, types, strict=True)))
            for batch in reader:
                rows = batch.slice(0, rows_max - taken)
                yield from rows.cast(plain).to_pylist()
                taken += rows.num_rows
                if taken >= rows_max:
                    return
    except pa.ArrowInvalid as error:
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, f"{path}: {error}") from error
