# SPDX-License-Identifier: Apache-2.0
"""Changes of a round's schema, including changes that its policy refuses. No two columns ever have the same name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.checks.typed_history import LIST, STRUCT, Change, ColumnSpec, Fate, every_column

FIRST: Final = Change(
    "first",
    0,
    (
        ColumnSpec("sender", "string", False, None, "sender"),
        ColumnSpec("number", "int64", False, None, "number"),
        ColumnSpec("delay", "int32", True, None, "delay"),
        ColumnSpec("gate", "string", False, "?", "gate"),
        ColumnSpec(
            "trip",
            STRUCT,
            True,
            None,
            "trip",
            (ColumnSpec("from", "string", False, None, "trip from"), ColumnSpec("miles", "int32", True, None, "miles")),
        ),
    ),
    fate=Fate.MADE,
    version=1,
)
_FIXED: Final = 2
"""The number of columns at the front that name the row, and do not change."""
_COLUMNS_MAX: Final = 9
_FIELDS_MAX: Final = 4
_DEFAULTS: Final[dict[str, Any]] = {"int32": 7, "string": "?", "float64": 0.5}
_WIDER: Final = {"int32": ("int64", "float64")}
_Columns = tuple[ColumnSpec, ...]


def document_of(change: Change, before: Sequence[ColumnSpec] = ()) -> dict[str, Any]:
    """The schema document of the version; the tag is the doc text of the second column."""
    names = {column.origin: column.name for column in every_column(before)}
    return {"columns": [_facts(column, change.tag, names) for column in change.columns]}


def _facts(column: ColumnSpec, tag: str, names: dict[str, str]) -> dict[str, Any]:
    facts = {"name": column.name, "type": column.type, "nullable": column.nullable}
    if column.fields:
        struct = {STRUCT: [_facts(field, tag, names) for field in column.fields]}
        facts["type"] = {LIST: {"type": struct, "nullable": False}} if column.type == LIST else struct
    if column.default is not None:
        facts["default"] = column.default
    if column.origin == "number":
        facts["doc"] = tag
    if names.get(column.origin, column.name) != column.name:
        facts["renamed_from"] = names[column.origin]
    return facts


def allowed_change(chance: random.Random, tag: str, follows: int, columns: _Columns) -> Change:
    """One change that `schema.compatibility=backward` allows."""
    return Change(tag, follows, _changed(chance, tag, columns, _FIXED, _COLUMNS_MAX))


def _changed(chance: random.Random, tag: str, columns: _Columns, fixed: int, most: int) -> _Columns:
    """The columns with one of them changed, or one of their fields."""
    nested = [at for at, column in enumerate(columns) if column.fields]
    if nested and chance.random() < 0.4:
        at = chance.choice(nested)
        return _with(columns, at, fields=_changed(chance, tag, columns[at].fields, 0, _FIELDS_MAX))
    wider = [at for at, column in enumerate(columns) if column.type in _WIDER]
    filled = [at for at, column in enumerate(columns) if column.default is not None]
    kinds = ["rename"] if len(columns) > fixed else []
    kinds += ["add"] if len(columns) < most else []
    kinds += ["drop"] if len(columns) > fixed + 2 else []
    kinds += ["widen"] if wider else []
    kinds += ["another default"] if filled else []
    at = chance.randrange(fixed, len(columns)) if len(columns) > fixed else 0
    match chance.choice(kinds):
        case "add":
            return (*columns, _added(chance, tag, may_nest=fixed > 0))
        case "drop":
            return (*columns[:at], *columns[at + 1 :])
        case "widen":
            at = chance.choice(wider)
            return _with(columns, at, type=chance.choice(_WIDER[columns[at].type]))
        case "another default":
            at = chance.choice(filled)
            number = chance.randrange(100)
            return _with(columns, at, default=f"d{number}" if columns[at].type == "string" else number)
        case _:
            return _with(columns, at, name=f"r_{tag}")


def _with(columns: _Columns, at: int, **facts: Any) -> _Columns:
    return (*columns[:at], columns[at]._replace(**facts), *columns[at + 1 :])


def _added(chance: random.Random, tag: str, *, may_nest: bool) -> ColumnSpec:
    """A column of a new name, nullable or with a default."""
    if may_nest and chance.random() < 0.4:
        fields = (
            _added(chance, f"{tag}_a", may_nest=False),
            ColumnSpec(f"c_{tag}_b", "int32", False, None, f"{tag}_b"),
        )
        return ColumnSpec(f"c_{tag}", chance.choice((STRUCT, LIST)), True, None, tag, fields)
    kind, filled = chance.choice(sorted(_DEFAULTS)), chance.random() < 0.5
    return ColumnSpec(f"c_{tag}", kind, not filled, _DEFAULTS[kind] if filled else None, tag)


def incompatible_change(chance: random.Random, tag: str, follows: int, columns: _Columns) -> Change:
    """One change that `schema.compatibility=backward` refuses."""
    nested = [at for at, column in enumerate(columns) if column.fields]
    without_default = ColumnSpec(f"n_{tag}", "int32", False, None, tag)
    if nested and chance.random() < 0.4:
        at = chance.choice(nested)
        changed = _with(columns, at, fields=(*columns[at].fields, without_default))
    elif chance.random() < 0.5:
        changed = (*columns, without_default)
    else:
        at = next(at for at, column in enumerate(columns) if column.origin == "number")
        changed = _with(columns, at, type=chance.choice(("int32", "string")))
    return Change(tag, follows, changed, allowed=False)


def lacks(column: ColumnSpec, number: int) -> bool:
    """Whether the row or table of this number lacks the column, so that its default is read."""
    return (column.nullable or column.default is not None) and (number + len(column.origin)) % 4 == 0


def value_of(column: ColumnSpec, number: int, sending: int) -> Any:
    """A value of the column; None for some rows, if null is allowed. A wide value may not fit an earlier version.

    Args:
        column: the column.
        number: number of the row.
        sending: number of the row or table that is sent; fields that it lacks are missing.
    """
    seed = number + sum(map(ord, column.origin))
    if column.nullable and seed % 5 == 0:
        return None
    match column.type:
        case "struct":
            return {it.name: value_of(it, number, sending) for it in column.fields if not lacks(it, sending)}
        case "list":
            return [value_of(column._replace(type=STRUCT, nullable=False), one, sending) for one in range(seed % 3)]
        case "string":
            return f"{column.origin}-{number}"
        case "float64":
            return seed / 2
        case "int64":
            return seed << 30
        case _:
            return seed
