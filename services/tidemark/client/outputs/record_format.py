# SPDX-License-Identifier: Apache-2.0
"""Text and JSON of a record, as commands and the console show them; and the start position of `consume`. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.model import INT64_MAX, number_up_to

if TYPE_CHECKING:
    from tidemark.client.records import ConsumerRecord

_MICROSECONDS = 1_000_000
_FORMATS: Final = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC; formatting is faster without a zone


@dataclass(frozen=True, slots=True)
class Start:
    """Start position: `position` "earliest" or "latest", or an offset, or a time in microseconds since 1970."""

    position: str = ""
    offset: int | None = None
    timestamp_us: int | None = None


def parse_start(text: str) -> Start:
    """Parse earliest, latest, offset:N or timestamp:ISO (UTC if the time has no zone); ValueError for anything else."""
    kind, colon, value = text.partition(":")
    if kind in {"earliest", "latest"} and not colon:
        return Start(position=kind)
    if kind == "offset" and (offset := number_up_to(INT64_MAX, value)) is not None:
        return Start(offset=offset)
    if kind == "timestamp" and value:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a time such as 2013-01-01T05:00:00Z") from None
        return Start(timestamp_us=microseconds(moment))
    raise ValueError(f"{text!r}: expected earliest, latest, offset:N or timestamp:2013-01-01T05:00:00Z")


def format_of(file: Path | None) -> str:
    """Format of a file by its extension: "json", "csv" or "parquet"; otherwise, and without a file, "text"."""
    return "text" if file is None else _FORMATS.get(file.suffix.lower(), "text")


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970; a time without a zone is in UTC."""
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
    return since // timedelta(microseconds=1)


def record_text(record: ConsumerRecord, key_separator: str) -> bytes:
    """The value unchanged, after key and separator if a separator is given; a null key or value is empty."""
    value = record.value or b""
    return b"".join(((record.key or b""), key_separator.encode(), value)) if key_separator else value


def record_json(record: ConsumerRecord) -> Mapping[str, object]:
    """A record as JSON; bytes that are not UTF-8 are in base64, under NAME_base64."""
    when = moment(record.timestamp_us)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        **({} if when is None else {"timestamp": when}),
        **named_bytes("key", record.key),
        **named_bytes("value", record.value),
        "headers": named_headers(record.headers),
    }


def named_bytes(name: str, content: bytes | None) -> Mapping[str, str | None]:
    """A member of a JSON document: NAME with text or null, or NAME_base64 for bytes that are not UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def named_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> list[dict[str, str | None]]:
    """The headers of a record for a JSON document; a typed record without headers has None."""
    return [{"name": name, **named_bytes("value", content)} for name, content in headers or ()]


def moment(timestamp_us: int) -> str | None:
    """The time in ISO 8601; None for a time outside the years 1 to 9999."""
    seconds, microseconds = divmod(timestamp_us, _MICROSECONDS)
    try:
        found = _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError:
        return None
    return f"{found.isoformat()}Z"


def shown_bytes_of(content: bytes | None) -> str:
    """Quoted text with unprintable characters escaped; `null` for None."""
    if content is None:
        return "null"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return repr(content)
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else json.dumps(text).replace("\x7f", "\\u007f")
