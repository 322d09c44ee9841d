# SPDX-License-Identifier: Apache-2.0
"""Columns by their paths, as readers name them: "carrier", "leg.origin", "legs.miles"."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.schemas.model import Column, ListOf, StructOf, TopicSchema, children, kept_columns
from tidemark.core.schemas.refusals import shown
from tidemark.model import ErrorCode, TidemarkError

_NAMES_SHOWN_MAX = 10


def selected(schema: TopicSchema, paths: Sequence[str] | None) -> tuple[Column, ...]:
    """The columns that the paths name, in the schema's order; structs have the named columns only.

    Below a list "element" may be omitted. A path into a map selects the map.

    Args:
        schema: version of the reader.
        paths: paths of columns; None: all columns.

    Raises:
        TidemarkError: INVALID_REQUEST: no such column.
    """
    if paths is None:
        return schema.columns
    ids = set()
    for path in paths:
        found = _find(schema.columns, path)
        if found is None:
            names = ", ".join(shown(column.name) for column in schema.columns[:_NAMES_SHOWN_MAX])
            more = ", ..." if len(schema.columns) > _NAMES_SHOWN_MAX else ""
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST,
                f"version {schema.version} of the schema has no column {shown(path)!r}; it has {names}{more}",
                {"column": shown(path), "version": str(schema.version)},
            )
        ids.add(found.id)
    return kept_columns(schema.columns, ids)


def _find(columns: Sequence[Column], path: str) -> Column | None:
    """The column that the names lead to. A name may have dots: the longest name that fits is tried first."""
    fitting = [column for column in columns if path == column.name or path.startswith(f"{column.name}.")]
    for column in sorted(fitting, key=lambda column: len(column.name), reverse=True):
        rest = path[len(column.name) + 1 :]
        found = _below(column, rest) if len(path) > len(column.name) else column
        if found is not None:
            return found
    return None


def _below(column: Column, path: str) -> Column | None:
    found = _find(children(column.type), path)
    if found is None and isinstance(column.type, ListOf):
        element = column.type.element
        if isinstance(element.type, StructOf | ListOf):
            return _below(element, path)
    return found
