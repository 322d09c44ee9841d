# SPDX-License-Identifier: Apache-2.0
"""Records of a partition, from an offset, a time or the end; searched within bounds; as files. Nothing is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

import pyarrow as pa

from tidemark.client.outputs.record_format import parse_start
from tidemark.client.outputs.shape import Shape
from tidemark.client.outputs.typed_json import columns_of, encode_json, json_rows
from tidemark.console.page import NEED_S, Asked, Download, Refused, View
from tidemark.console.pages.paging import one_of, whole
from tidemark.console.pages.record_rows import record_rows
from tidemark.console.pages.record_text import FORMS
from tidemark.console.pages.topic import topic_of
from tidemark.console.queries.record_scan import SEARCH_FIELDS, Search, Where
from tidemark.console.queries.records import DOWNLOAD_RECORDS_MAX, DOWNLOAD_S, Asking, Found, Position, RecordReads
from tidemark.core.cluster_view import TopicView

LIMIT: Final = 50
LIMIT_MAX: Final = 200
SEARCH_CHARACTERS_MAX: Final = 200
_OFFSET_MAX: Final = 2**63 - 1
_FILES: Final[Mapping[str, tuple[Shape, str, str]]] = {
    "jsonl": (Shape.JSON, "application/x-ndjson", "jsonl"),
    "csv": (Shape.CSV, "text/csv; charset=utf-8", "csv"),
    "parquet": (Shape.PARQUET, "application/vnd.apache.parquet", "parquet"),
}
_BYTES: Final = "application/octet-stream"


class _Place(NamedTuple):
    view: TopicView
    where: Where


async def load(asked: Asked) -> View:
    """The page `/topics/{topic}/records?partition=P&from=WHERE&limit=N&q=TEXT&field=FIELD&as=FORM&follow=yes`."""
    place = await _place(asked, asked.query.get("partition", ""))
    follow = one_of(asked.query, "follow", ("no", "yes")) == "yes"
    text = "end" if follow else (asked.query.get("from") or "end").strip()
    asking = _asking(asked, place, position_of(text), LIMIT, LIMIT_MAX)
    form = one_of(asked.query, "as", FORMS)
    found = await asked.read("records", lambda reads: reads.find(asking), RecordReads, patience_s=NEED_S)
    topic, partition = asking.where.topic, asking.where.partition
    rows, columns = record_rows(found.batches, form)
    data = {
        "topic": topic,
        "partition": partition,
        "partitions": len(place.view.partitions),
        "from": text,
        "limit": asking.limit,
        "q": asking.search.text,
        "field": asking.search.field,
        "fields": list(SEARCH_FIELDS),
        "as": form,
        "forms": list(FORMS),
        "follow": follow,
        "columns": columns,
        "records": rows[::-1] if follow else rows,
        **_range(found),
        **_addresses(asked, found, follow=follow),
    }
    command = f"tidemark consume {topic} --partition {partition} --from offset:{found.begin} --until-end --output json"
    return View(f"Records of {topic}:{partition}", command, data, live=follow)


async def download(asked: Asked) -> Download:
    """The file `/topics/{topic}/records/download?format=FORMAT&partition=P&from=WHERE&until=OFFSET&limit=N`."""
    place = await _place(asked, asked.query.get("partition", ""))
    shape, media_type, ending = _FILES[one_of(asked.query, "format", tuple(_FILES))]
    position = position_of((asked.query.get("from") or "earliest").strip())
    if position.kind in ("end", "before"):
        raise Refused(400, "from: expected earliest, offset:N or timestamp:2013-01-01T05:00:00Z for a download.")
    until = asked.query.get("until")
    asking = _asking(
        asked,
        place,
        position,
        DOWNLOAD_RECORDS_MAX + 1,  # one too many is refused
        DOWNLOAD_RECORDS_MAX,
        until=None if until is None else whole(until, "until"),
    )
    content = await asked.read(
        "download", lambda reads: reads.download(asking, shape), RecordReads, patience_s=DOWNLOAD_S + NEED_S
    )
    topic, partition = asking.where.topic, asking.where.partition
    return Download(f"{topic}-{partition}-from-{position.value or position.kind}.{ending}", media_type, content)


async def value(asked: Asked) -> Download:
    """The bytes `/topics/{topic}/{partition}/{offset}/{part}`; of a value with a schema, its JSON."""
    part = asked.path["part"]
    if part not in ("key", "value"):
        raise Refused(404, f"A record has no part {part[:40]!r}: expected key or value.")
    offset = whole(asked.path["offset"], "the offset")
    place = await _place(asked, asked.path["partition"])
    typed = bool(place.view.schema_version)
    rows = await asked.read(
        "record",
        lambda reads: reads.record(place.where, offset, has_schema=typed),
        RecordReads,
        patience_s=NEED_S,
    )
    name = f"{place.where.topic}-{place.where.partition}-{offset}-{part}"
    if rows is None:
        raise Refused(404, f"{place.where.topic}:{place.where.partition} has no record with offset {offset}.")
    content = _part(rows, part)
    if content is None:
        raise Refused(404, f"The {part} of offset {offset} is null.")
    return Download(f"{name}.{'json' if typed and part == 'value' else 'bin'}", _BYTES, content)


def position_of(text: str) -> Position:
    """The position at which an address begins to read; raises `Refused`."""
    if text == "end":
        return Position("end")
    kind, _, number = text.partition(":")
    if kind == "before" or not kind.strip("0123456789"):
        return Position("before" if kind == "before" else "offset", whole(number or kind, "from"))
    try:
        start = parse_start(text)
    except ValueError:
        start = None
    if start is None or start.position == "latest":
        choices = "end, earliest, offset:N, before:N or timestamp:2013-01-01T05:00:00Z"
        raise Refused(400, f"from is {text[:40]!r}: expected {choices}.")
    if start.timestamp_us is not None:
        return Position("timestamp", start.timestamp_us)
    return Position("earliest") if start.offset is None else Position("offset", min(start.offset, _OFFSET_MAX))


async def _place(asked: Asked, text: str) -> _Place:
    """The topic and the partition; the first one if `text` is empty. Raises `Refused`."""
    view = await topic_of(asked)
    index = min(view.partitions, default=0) if not text else whole(text, "the partition")
    one = view.partitions.get(index)
    if one is None:
        raise Refused(404, f"Topic {view.topic} has no partition {index}: it has {len(view.partitions)} partitions.")
    return _Place(view, Where(view.topic, index, view.topic_id, one.incarnation))


def _asking(
    asked: Asked, place: _Place, position: Position, limit: int, limit_max: int, *, until: int | None = None
) -> Asking:
    text = asked.query.get("q", "")
    if len(text) > SEARCH_CHARACTERS_MAX:
        raise Refused(400, f"q has {len(text)} characters: expected at most {SEARCH_CHARACTERS_MAX}.")
    given = asked.query.get("limit")
    wanted = whole(given, "limit", smallest=1) if given else limit
    if given and wanted > limit_max:
        raise Refused(400, f"limit is {wanted}: expected at most {limit_max}.")
    search = Search(text, one_of(asked.query, "field", SEARCH_FIELDS))
    return Asking(place.where, position, wanted, search, until, has_schema=bool(place.view.schema_version))


def _range(found: Found) -> dict[str, object]:
    """Numbers of the read: the range, and the bound at which it ended."""
    asked = found.asked_offset
    return {
        "log_start_offset": found.bounds.earliest,
        "high_watermark": found.bounds.latest,
        "begin": found.begin,
        "end": found.end,
        "scanned": found.scanned,
        "scanned_bytes": found.scanned_bytes,
        "stopped": found.stopped,
        "deleted_before": asked is not None and asked < found.bounds.earliest,
        "beyond_end": asked is not None and asked > found.bounds.latest,
    }


def _addresses(asked: Asked, found: Found, *, follow: bool) -> dict[str, object]:
    """Query parts of the neighbouring ranges, "" for none, and of the files with the shown range."""
    kept = {name: text for name, text in asked.query.items() if name not in ("follow", "from")}
    exact = {"from": f"offset:{found.begin}", "until": str(found.end)}
    chosen = {name: text for name, text in kept.items() if name in ("partition", "q", "field")}
    files = {name: "?" + urlencode({**chosen, **exact, "format": name}) for name in _FILES}
    return {
        "previous": _with_from(kept, f"before:{found.begin}") if found.begin > found.bounds.earliest else "",
        "next": _with_from(kept, f"offset:{found.end}") if found.end < found.bounds.latest and not follow else "",
        "newest": _with_from(kept, "end"),
        "following": "?" + urlencode({**kept, "follow": "yes"}),
        "files": files,
    }


def _with_from(kept: Mapping[str, str], text: str) -> str:
    return "?" + urlencode({**kept, "from": text})


def _part(rows: pa.RecordBatch, part: str) -> bytes | None:
    """The bytes of a record's key or value."""
    is_typed = "_offset" in rows.schema.names
    if part == "key" or not is_typed:
        content: bytes | None = rows.column("_key" if is_typed else part)[0].as_py()
        return content
    if rows.column("_deleted")[0].as_py():
        return None
    return encode_json(json_rows(rows, columns_of(rows.schema))[0]).encode()
