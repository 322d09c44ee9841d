# SPDX-License-Identifier: Apache-2.0
"""Records as rows of a page: keys, values and headers cut to a size; records of a typed topic with its columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from tidemark.client.outputs.record_format import moment
from tidemark.client.outputs.typed_json import columns_of, encode_json, json_rows
from tidemark.console.pages.record_text import shown, visible

KEY_BYTES_MAX: Final = 256
VALUE_BYTES_MAX: Final = 4096
HEADERS_MAX: Final = 20
HEADER_BYTES_MAX: Final = 256
CELL_CHARACTERS_MAX: Final = 200


def record_rows(batches: Sequence[pa.RecordBatch], form: str) -> tuple[list[dict[str, object]], list[str]]:
    """Rows for a page, and the names of a typed topic's columns.

    Args:
        batches: rows of one topic, with or without a schema.
        form: form of keys and values, from record_text.FORMS.
    """
    rows: list[dict[str, object]] = []
    columns: list[str] = []
    for batch in batches:
        if "_offset" in batch.schema.names:
            columns = columns_of(batch.schema)
            rows += _typed(batch, columns, form)
        else:
            rows += _plain(batch, form)
    return rows, columns


def _plain(batch: pa.RecordBatch, form: str) -> Iterable[dict[str, object]]:
    for facts, one in zip(_common(batch, "", form), batch.column("value").to_pylist(), strict=True):
        yield {**facts, "value": shown(one, form, VALUE_BYTES_MAX)}


def _typed(batch: pa.RecordBatch, columns: list[str], form: str) -> Iterable[dict[str, object]]:
    values = json_rows(batch, columns)
    deleted: list[Any] = batch.column("_deleted").to_pylist()
    for facts, row, gone in zip(_common(batch, "_", form), values, deleted, strict=True):
        yield {**facts, "deleted": bool(gone), "cells": None if gone else [_cell(row[name]) for name in columns]}


def _common(batch: pa.RecordBatch, prefix: str, form: str) -> Iterable[dict[str, object]]:
    """Offset, time, key and headers of each row."""
    names = ("offset", "timestamp", "key", "headers")
    columns: list[Any] = [batch.column(prefix + name) for name in names]
    columns[1] = columns[1].cast(pa.int64())
    for offset, timestamp_us, key, headers in zip(*(one.to_pylist() for one in columns), strict=True):
        found = headers or ()
        yield {
            "offset": offset,
            "timestamp_us": timestamp_us,
            "timestamp": moment(timestamp_us),
            "key": shown(key, form, KEY_BYTES_MAX),
            "headers": [_header(name, content, form) for name, content in found[:HEADERS_MAX]],
            "header_count": len(found),
        }


def _header(name: str, content: bytes | None, form: str) -> dict[str, object]:
    return {"name": visible(name[:HEADER_BYTES_MAX]), "value": shown(content, form, HEADER_BYTES_MAX)}


def _cell(value: Any) -> dict[str, object]:
    """A value of a column: a text unchanged, other values as JSON."""
    text = value if isinstance(value, str) else encode_json(value)
    cut = len(text) > CELL_CHARACTERS_MAX
    return {"text": visible(text[:CELL_CHARACTERS_MAX]), "cut": cut, "null": value is None}
