# SPDX-License-Identifier: Apache-2.0
"""Columns of a file for which Iceberg gets no bounds, since pyiceberg reads the bounds as Python's dates and times.

A producer of another language may send a time outside of the years 1 to 9999. Engines read such times. The file must be
added, or the table would get no later rows either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark.client.tables.archive_files import opened_file

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

_MODE: Final = "write.metadata.metrics.column."
"""Prefix of the properties that name the statistics of a column."""


def unbounded_columns(path: Path) -> frozenset[str]:
    """Names of the columns of a file with a bound that Python lacks."""
    with opened_file(path) as opened:
        groups = [opened.metadata.row_group(index) for index in range(opened.num_row_groups)]
    columns = (group.column(index) for group in groups for index in range(group.num_columns))
    return frozenset(column.path_in_schema for column in columns if _is_unbounded(column))


def _is_unbounded(column: Any) -> bool:
    if column.physical_type not in ("INT32", "INT64") or not column.is_stats_set:
        return False
    try:
        column.statistics.min, column.statistics.max  # noqa: B018 - conversions, which may raise
    except OverflowError:
        return True
    return False


def modes(columns: Collection[str]) -> dict[str, str]:
    """Properties of a table whose files get no bounds of these columns."""
    return {_MODE + column: "counts" for column in columns}


@contextmanager
def without_bounds(transaction: Transaction, columns: Collection[str]) -> Iterator[None]:
    """Meanwhile added files get no bounds of these columns; the properties of the table stay."""
    wanted = modes(columns)
    before = {name: value for name, value in transaction.table_metadata.properties.items() if name in wanted}
    if wanted:
        transaction.set_properties(wanted)
    yield
    if wanted:
        transaction.remove_properties(*wanted)
    if before:
        transaction.set_properties(before)
