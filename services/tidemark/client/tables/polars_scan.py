# SPDX-License-Identifier: Apache-2.0
"""A typed topic as a Polars lazy frame: Polars names the columns, and brokers send only these."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.tables.predicates import ANY, planned_of
from tidemark.client.tables.read_ahead import grouped
from tidemark.client.tables.table_scan import Place, TableScan

if TYPE_CHECKING:
    import polars as pl


def scan(
    bootstrap: Bootstrap | None,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Sequence[int] | None = None,
    history: str | os.PathLike[str] | None = None,
    version: int | None = None,
    **options: Any,
) -> pl.LazyFrame:
    """A lazy frame over a topic with a schema; needs polars.

    Brokers send only the columns that a query uses. Comparisons of `_partition` and `_offset` with constants choose the
    rows that are fetched. Comparisons of the event time and `_timestamp` skip the columns of batches without such a
    time. All filters run on the rows as they arrive, and `head` ends the read early. Each `collect` reads the ends
    of the partitions again; the version of the schema stays.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        topic: name of the topic.
        columns: see `read_table`; None: all columns of the schema.
        start: see `read_table`.
        end: see `read_table`.
        partitions: indexes of partitions; None: all.
        history: see `read_table`.
        version: see `read_table`.
        options: see `read_table`.

    Raises:
        ImportError: polars is not installed.
        TidemarkError: the errors of `read_table`; also from `collect`.

    Example: `scan("127.0.0.1:9192", "flights").group_by("carrier").agg(pl.col("delay").mean()).collect()`
    """
    from polars.io.plugins import register_io_source

    rows_of: dict[str, Any] = {"start": start, "end": end, "partitions": partitions, "history": history}
    are_all = rows_of == {"start": "earliest", "end": "latest", "partitions": None, "history": None}

    def opened(columns_only: bool = False) -> TableScan:
        return TableScan(bootstrap, topic, **rows_of, **options, columns_only=columns_only)

    with opened(columns_only=are_all) as first:  # other rows are looked up, too, to raise their errors
        typed = first.rows(columns, dictionaries=False, version=version)
        schema, target = typed.schema, typed.target
        event_time = target.event_time_column
    time_columns = {"_timestamp", *([] if event_time is None else [event_time.name])}
    empty = _frame(pa.Table.from_batches([], schema))
    all_columns = schema.names

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted = all_columns if with_columns is None else with_columns
        needed = [*wanted, *(predicate.meta.root_names() if predicate is not None else ())]
        named = _paths(list(dict.fromkeys(needed)), columns)
        # Polars passes a limit with a predicate only for head() before filter(): the limit counts all rows.
        planned = ANY if predicate is None or n_rows is not None else planned_of(predicate, time_columns)
        with opened() as scan_now:
            scan_now.narrow(planned.bounds)
            typed = scan_now.rows(named, dictionaries=False, version=target.version, times=planned.times)
            for group in grouped(scan_now.batches(typed)):
                frame = _frame(pa.Table.from_batches(group))
                if n_rows is not None:
                    frame = frame.head(n_rows)
                    n_rows -= len(frame)
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame.select(wanted)
                if n_rows == 0:
                    return

    return register_io_source(read, schema=empty.schema, validate_schema=False, is_pure=False)


def _paths(needed: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The paths of the needed columns: the paths below them that the caller named, or the columns themselves."""
    if columns is None:
        return list(needed)
    return [path for path in columns if any(path == name or path.startswith(f"{name}.") for name in needed)]


def _frame(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found
