# SPDX-License-Identifier: Apache-2.0
"""Bounds of partition, offset and time that a Polars predicate states, so that a scan fetches less.

Polars' JSON of an expression has no fixed format. A part that cannot be translated sets no bound. Polars applies the
whole predicate to the rows, so the bounds may be too wide, but never too narrow.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.client.tables.table_scan import PartitionBounds
from tidemark.model import INT64_MAX, microseconds_of
from tidemark.record.typed.batch import TimeRange

if TYPE_CHECKING:
    import polars as pl

_PARTITION: Final = "_partition"
_OFFSET: Final = "_offset"
_MIRRORED: Final = {"Gt": "Lt", "GtEq": "LtEq", "Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq"}
_CLOSED: Final = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}


class Planned(NamedTuple):
    """The range that a scan fetches for a predicate."""

    bounds: PartitionBounds
    times: TimeRange


ANY: Final = Planned(PartitionBounds(), TimeRange())


class _Comparison(NamedTuple):
    """A comparison of a column with a constant; all comparisons of a predicate must hold. `op` is "In" for a
    collection.
    """

    column: str
    op: str
    value: Any


def planned_of(predicate: pl.Expr, time_columns: Collection[str]) -> Planned:
    """The bounds that a predicate states.

    Args:
        predicate: expression on the columns of a scan.
        time_columns: names of the columns that hold the timestamp of a row.
    """
    try:
        found = _comparisons(json.loads(predicate.meta.serialize(format="json")))
    except Exception:  # noqa: BLE001 - another version of Polars, or an expression without JSON
        return ANY
    partitions, offsets, times = _Bounds(), _Bounds(), _Bounds()
    for column, op, value in found:
        if column == _PARTITION:
            partitions.add(op, value)
        elif column == _OFFSET:
            offsets.add(op, value)
        elif column in time_columns and isinstance(value, datetime) and value.tzinfo is not None:
            times.add(op, microseconds_of(value), slack=1)  # a constant may have nanoseconds
    return Planned(
        PartitionBounds(partitions.indexes(), max(0, offsets.start), offsets.end),
        TimeRange(None if times.start == -INT64_MAX else times.start, times.end),
    )


class _Bounds:
    """Bounds of integers: from `start`, inclusive, to `end`, exclusive; None: without an end."""

    def __init__(self) -> None:
        self.start = -INT64_MAX
        self.end: int | None = None
        self._listed: frozenset[int] | None = None

    def add(self, op: str, value: Any, slack: int = 0) -> None:
        """Add a comparison with a constant that may be off by `slack`."""
        if op == "In":
            found = frozenset(one for one in value if type(one) is int)
            self._listed = found if self._listed is None else found & self._listed
            return
        if type(value) is not int or abs(value) >= INT64_MAX:
            return
        if op in ("Gt", "GtEq", "Eq"):
            self.start = max(self.start, value + (op == "Gt") - slack)
        if op in ("Lt", "LtEq", "Eq"):
            end = value + (op != "Lt") + slack
            self.end = end if self.end is None else min(self.end, end)

    def indexes(self) -> frozenset[int] | None:
        """The integers as a set; None: too many, or without bounds."""
        if self._listed is not None:
            return frozenset(one for one in self._listed if one >= self.start and (self.end is None or one < self.end))
        if self.end is None and self.start <= 0:
            return None
        return frozenset(range(max(0, self.start), min(self.end or _PARTITIONS_MAX, _PARTITIONS_MAX)))


_PARTITIONS_MAX: Final = 1 << 20


def _comparisons(node: Any) -> list[_Comparison]:
    """The comparisons that hold for each row of which the predicate is true; [] for a node that is not understood."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            return [*_comparisons(left), *_comparisons(right)]
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": right}} if op in _MIRRORED:
            return _with_constant(name, op, right)
        case {"BinaryExpr": {"left": left, "op": str(op), "right": {"Column": str(name)}}} if op in _MIRRORED:
            return _with_constant(name, _MIRRORED[op], left)
        case {
            "Function": {
                "input": [{"Column": str(name)}, low, high],
                "function": {"Boolean": {"IsBetween": {"closed": str(closed)}}},
            }
        } if closed in _CLOSED:
            low_op, high_op = _CLOSED[closed]
            return [*_with_constant(name, low_op, low), *_with_constant(name, high_op, high)]
        case {"Function": {"input": [{"Column": str(name)}, listed], "function": {"Boolean": {"IsIn": {}}}}} if (
            name == _PARTITION
        ):
            return _with_constant(name, "In", listed, list)
    return []


def _with_constant(
    column: str, op: str, node: Any, convert: Callable[[Any], Any] = lambda value: value
) -> list[_Comparison]:
    """The comparison, if the node is a constant: Polars evaluates it."""
    import polars as pl

    text = json.dumps(node)
    if '"Column"' in text:
        return []
    try:
        value = pl.select(pl.Expr.deserialize(io.StringIO(text), format="json")).item()
        return [_Comparison(column, op, convert(value))]
    except Exception:  # noqa: BLE001 - not a single constant value
        return []
