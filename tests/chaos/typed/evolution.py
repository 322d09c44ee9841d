# SPDX-License-Identifier: Apache-2.0
"""Changes of a round's schema, those that its policy refuses included. No name is ever used for a second column."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.checks.typed_history import Change, ColumnSpec, Fate

FIRST: Final = Change(
    "first",
    0,
    (
        ColumnSpec("sender", "string", False, None, "sender"),
        ColumnSpec("number", "int64", False, None, "number"),
        ColumnSpec("delay", "int32", True, None, "delay"),
        ColumnSpec("gate", "string", False, "?", "gate"),
    ),
    fate=Fate.MADE,
    version=1,
)
_FIXED: Final = 2
"""So many columns at the front name the row, and do not change."""
_COLUMNS_MAX: Final = 9
_DEFAULTS: Final[dict[str, Any]] = {"int32": 7, "string": "?", "float64": 0.5}
_WIDER: Final = {"int32": ("int64", "float64")}


def document_of(change: Change, before: Sequence[ColumnSpec] = ()) -> dict[str, Any]:
    """The document that states the version; the tag is the doc text of the second column."""
    names = {column.origin: column.name for column in before}
    return {"columns": [_facts(column, change.tag, names) for column in change.columns]}


def _facts(column: ColumnSpec, tag: str, names: dict[str, str]) -> dict[str, Any]:
    facts = {"name": column.name, "type": column.type, "nullable": column.nullable}
    if column.default is not None:
        facts["default"] = column.default
    if column.origin == "number":
        facts["doc"] = tag
    if names.get(column.origin, column.name) != column.name:
        facts["renamed_from"] = names[column.origin]
    return facts


def allowed_change(chance: random.Random, tag: str, follows: int, columns: tuple[ColumnSpec, ...]) -> Change:
    """One change that `schema.compatibility=backward` allows."""
    wider = [at for at, column in enumerate(columns) if column.type in _WIDER]
    kinds = ["rename"] if len(columns) > _FIXED else []
    kinds += ["add"] if len(columns) < _COLUMNS_MAX else []
    kinds += ["drop"] if len(columns) > _FIXED + 2 else []
    kinds += ["widen"] if wider else []
    changed = list(columns)
    at = chance.randrange(_FIXED, len(columns)) if len(columns) > _FIXED else 0
    match chance.choice(kinds):
        case "add":
            kind, filled = chance.choice(sorted(_DEFAULTS)), chance.random() < 0.5
            default = _DEFAULTS[kind] if filled else None
            changed.append(ColumnSpec(f"c_{tag}", kind, not filled, default, tag))
        case "drop":
            del changed[at]
        case "widen":
            at = chance.choice(wider)
            changed[at] = columns[at]._replace(type=chance.choice(_WIDER[columns[at].type]))
        case _:
            changed[at] = columns[at]._replace(name=f"r_{tag}")
    return Change(tag, follows, tuple(changed))


def incompatible_change(chance: random.Random, tag: str, follows: int, columns: tuple[ColumnSpec, ...]) -> Change:
    """One change that `schema.compatibility=backward` refuses."""
    if chance.random() < 0.5:
        changed = (*columns, ColumnSpec(f"n_{tag}", "int32", False, None, tag))
    else:
        at = next(at for at, column in enumerate(columns) if column.origin == "number")
        narrow = columns[at]._replace(type=chance.choice(("int32", "string")))
        changed = (*columns[:at], narrow, *columns[at + 1 :])
    return Change(tag, follows, changed, allowed=False)


def value_of(column: ColumnSpec, number: int) -> Any:
    """A value of the column; None for some rows, if null is allowed. A wide one may not fit an earlier version."""
    seed = number + sum(map(ord, column.origin))
    if column.nullable and seed % 5 == 0:
        return None
    match column.type:
        case "string":
            return f"{column.origin}-{number}"
        case "float64":
            return seed / 2
        case "int64":
            return seed << 30
        case _:
            return seed
