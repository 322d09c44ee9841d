# SPDX-License-Identifier: Apache-2.0
"""Proposes a draft for rows that have no schema, such as JSON whose fields change.

The rows are a sample, so all columns are nullable, and a note states each doubt.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from tidemark.core.schemas.checks import check_draft, name_refusal
from tidemark.core.schemas.model import (
    COLUMNS_MAX,
    DEPTH_MAX,
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    PRECISION_MAX,
    Column,
    ColumnType,
    Decimal,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
    walk,
)
from tidemark.core.schemas.refusals import invalid, path_text, shown
from tidemark.core.schemas.type_names import type_name

MAP_NAMES_MIN: Final = 50
"""Objects with at least this number of different names, and values of one type, become maps."""
_EXACT_DIGITS: Final = 15
"""Digits of a whole number that float64 never rounds."""
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATETIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?(?P<zone>Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_SHOWN_NAMES_MAX: Final = 5
_PLAIN_KINDS: Final = (
    (type(None), "null"),
    (bool, "bool"),
    (float, "float"),
    (str, "text"),
    (bytes, "bytes"),
    (datetime.date, "date"),
)


class Inference(NamedTuple):
    """A proposed schema, with the doubts about it.

    Attributes:
        draft: the proposed draft, without key and event time.
        notes: doubts, one sentence for each column concerned.
        row_count: number of rows that were read.
    """

    draft: SchemaDraft
    notes: tuple[str, ...]
    row_count: int


def infer_draft(rows: Iterable[Mapping[str, object]]) -> Inference:
    """A draft that each of the rows fits.

    Args:
        rows: values of JSON, or Python's bytes, dates, datetimes and decimals.

    Raises:
        TidemarkError: INVALID_SCHEMA: no rows, no values, or more columns than a schema has.
    """
    seen = _Seen()
    for row in rows:
        seen.add(row, 0)
    if not seen.fields:
        raise invalid("the rows have no values; a schema cannot be proposed")
    notes: list[str] = []
    columns = tuple(_columns(seen, (), notes))
    count = sum(1 for _ in walk(columns))
    if count > COLUMNS_MAX:
        raise invalid(f"the rows have {count} columns, a schema has at most {COLUMNS_MAX}; state the schema manually")
    return Inference(check_draft(SchemaDraft(columns)), tuple(notes), sum(seen.kinds.values()))


class _Seen:
    """Statistics of the values of one column."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.forms: Counter[Primitive] = Counter()
        """Forms of the texts that are dates or times."""
        self.fields: dict[str, _Seen] = {}
        self.element: _Seen | None = None
        self.whole_digits = 0
        self.scale = 0
        self.fits_int64 = True

    def add(self, value: object, depth: int) -> None:
        """Count one value; lists and objects below DEPTH_MAX count as texts."""
        match value:
            case int() if not isinstance(value, bool):
                self._add_int(value)
            case decimal.Decimal():
                self._add_decimal(value)
            case Mapping() if depth < DEPTH_MAX:
                self.kinds["object"] += 1
                for name, below in value.items():
                    self.fields.setdefault(str(name), _Seen()).add(below, depth + 1)
            case list() | tuple() if depth < DEPTH_MAX:
                self.kinds["list"] += 1
                self.element = self.element or _Seen()
                for below in value:
                    self.element.add(below, depth + 1)
            case _:
                self._add_plain(value)

    def _add_plain(self, value: object) -> None:
        if isinstance(value, datetime.datetime):
            self.kinds["timestamp_ntz" if value.tzinfo is None else "timestamp"] += 1
            return
        self.kinds[next((kind for cls, kind in _PLAIN_KINDS if isinstance(value, cls)), "other")] += 1
        form = _form(value) if isinstance(value, str) else None
        if form is not None:
            self.forms[form] += 1

    def _add_int(self, value: int) -> None:
        self.kinds["int"] += 1
        if not -(2**63) <= value < 2**63:
            self.fits_int64 = False
        bits = value.bit_length()
        digits = len(str(abs(value))) if bits < 256 else bits  # no type has as many digits
        self.whole_digits = max(self.whole_digits, digits)

    def _add_decimal(self, value: decimal.Decimal) -> None:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            self.kinds["float"] += 1  # infinity, or not a number
            return
        self.kinds["decimal"] += 1
        self.scale = max(self.scale, -exponent)
        self.whole_digits = max(self.whole_digits, value.adjusted() + 1)


def _form(text: str) -> Primitive | None:
    """Whether a text is a date, an instant or a local time, as `Default` texts are."""
    found = _DATETIME.fullmatch(text)
    if found is None and not _DATE.fullmatch(text):
        return None
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if found is None:
        return Primitive.DATE
    return Primitive.TIMESTAMP if found["zone"] else Primitive.TIMESTAMP_NTZ


def _columns(seen: _Seen, above: Path, notes: list[str]) -> list[Column]:
    columns: list[Column] = []
    taken: dict[str, str] = {}
    for name, below in seen.fields.items():
        path = (*above, name)
        refusal = name_refusal(path)
        other = taken.get(name.lower())
        if refusal is not None:
            notes.append(f"column {path_text(path)} is omitted: {refusal}")
        elif other is not None:
            notes.append(
                f"column {path_text(path)} is omitted: there is {shown(other)}; Spark ignores the case of names"
            )
        elif not below.kinds.total() - below.kinds["null"]:
            notes.append(f"column {path_text(path)} is omitted: all its values are null")
        else:
            taken[name.lower()] = name
            columns.append(Column(NO_ID, name, _type(below, path, notes)))
    return columns


def _type(seen: _Seen, path: Path, notes: list[str]) -> ColumnType:
    kinds = {kind for kind in seen.kinds if kind != "null"}
    if not kinds:
        notes.append(f"column {path_text(path)}: no value is known; string is proposed")
        return Primitive.STRING
    if kinds == {"object"}:
        return _object_type(seen, path, notes)
    if kinds == {"list"}:
        element = seen.element or _Seen()
        below = (*path, ELEMENT)
        return ListOf(Column(NO_ID, ELEMENT, _type(element, below, notes)))
    if kinds <= {"int", "float", "decimal"}:
        return _number_type(seen, kinds, path, notes)
    if kinds == {"text"}:
        return _text_type(seen, path, notes)
    if len(kinds) == 1 and (kind := kinds.pop()) in _KINDS:
        return _KINDS[kind]
    counts = ", ".join(f"{count} {kind}" for kind, count in seen.kinds.most_common(_SHOWN_NAMES_MAX))
    notes.append(f"column {path_text(path)}: values of several kinds ({counts}); string is proposed, with JSON")
    return Primitive.STRING


_KINDS: Final = {
    "bool": Primitive.BOOL,
    "bytes": Primitive.BINARY,
    "date": Primitive.DATE,
    "timestamp": Primitive.TIMESTAMP,
    "timestamp_ntz": Primitive.TIMESTAMP_NTZ,
}


def _number_type(seen: _Seen, kinds: set[str], path: Path, notes: list[str]) -> ColumnType:
    digits = max(seen.whole_digits, 0)
    if kinds == {"int"} and seen.fits_int64:
        return Primitive.INT64
    if "float" not in kinds and max(digits, 1) + seen.scale <= PRECISION_MAX:
        return Decimal(max(digits, 1) + seen.scale, seen.scale)
    if kinds != {"float"} and digits > _EXACT_DIGITS:
        notes.append(f"column {path_text(path)}: numbers of {digits} digits; float64 is proposed, which rounds them")
    return Primitive.FLOAT64


def _text_type(seen: _Seen, path: Path, notes: list[str]) -> Primitive:
    texts = seen.kinds["text"]
    for form, count in seen.forms.items():
        if count == texts:
            notes.append(f"column {path_text(path)}: each text is a {form}, which is proposed")
            return form
    if seen.forms.total() > texts // 2:
        notes.append(
            f"column {path_text(path)}: {seen.forms.total()} of {texts} texts are dates or times; string is proposed"
        )
    return Primitive.STRING


def _object_type(seen: _Seen, path: Path, notes: list[str]) -> ColumnType:
    notes_below: list[str] = []
    columns = _columns(seen, path, notes_below)
    if len(seen.fields) >= MAP_NAMES_MIN and len({column.type for column in columns}) == 1:
        value = columns[0].type
        notes.append(
            f"column {path_text(path)}: {len(seen.fields)} names; a map of {shown(type_name(value))} is proposed"
        )
        key = Column(NO_ID, MAP_KEY, Primitive.STRING, nullable=False)
        return MapOf(key, replace(columns[0], name=MAP_VALUE))
    notes.extend(notes_below)
    if columns:
        return StructOf(tuple(columns))
    notes.append(f"column {path_text(path)}: objects without values; string is proposed, with JSON")
    return Primitive.STRING
