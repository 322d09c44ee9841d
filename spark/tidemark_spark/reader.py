# SPDX-License-Identifier: Apache-2.0
"""The batch reader: the driver plans the ranges once, and each task reads one range, or several small ones."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH
from tidemark.runtime.freed_memory import keep_freed_memory

from tidemark_spark import rows, topics
from tidemark_spark.columns import Columns, ValueFormat
from tidemark_spark.compat import arrow_schema
from tidemark_spark.filters import EVERYTHING, Comparison, Narrowing, narrow
from tidemark_spark.options import ReadOptions
from tidemark_spark.plain_errors import plain_errors
from tidemark_spark.ranges import OffsetRange, pack, plan_ranges, times_of
from tidemark_spark.topics import Assignment
from tidemark_spark.typed.topic import check_same

if TYPE_CHECKING:
    from tidemark_spark.typed.history import History
    from tidemark_spark.typed.table import TypedTable


Shape = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Function from the rows of one range to the columns that Spark expects."""


@dataclass(frozen=True)
class TidemarkInputPartition(InputPartition):
    """Input of one task; stateless, so a retried task reads the same rows."""

    ranges: tuple[Assignment, ...]


def check_schema(schema: StructType, columns: Columns) -> None:
    """Check that a read has this schema; ValueError names the column and the valid types."""
    for field in schema.fields:
        name = next((known for known in columns.all_names if known == field.name), None)
        if name is None:
            raise ValueError(f"the schema has a column {field.name!r}; this read has {', '.join(columns.all_names)}")
        wanted, found = columns.type_of(name), field.dataType.simpleString()
        if wanted is not None and found != wanted:
            hint = "; the option 'valueFormat' decodes it to other types" if name == "value" else ""
            raise ValueError(f"the schema states {found} for the column {name!r}, which is {wanted}{hint}")
    arrow = arrow_schema(schema)
    if "value" in arrow.names and columns.value_format is not ValueFormat.BYTES:
        from tidemark_spark.values import check_type

        check_type(columns.value_format, arrow.field("value").type)


def read_task(
    options: ReadOptions, schema: StructType, partition: InputPartition | None, table: TypedTable | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of one task in the order of offsets, as Arrow batches for Spark."""
    # Without a planned range, Spark still runs one task: with a bare partition, before 4.1 with None.
    if partition is None or (type(partition) is InputPartition and partition.value is None):
        return
    assert isinstance(partition, TidemarkInputPartition)
    _settle()
    with plain_errors():
        found = _columns(options, arrow_schema(schema), partition.ranges, table)
        yield from found if len(partition.ranges) == 1 else rows.merged(found)


def _columns(
    options: ReadOptions, schema: pa.Schema, ranges: Sequence[Assignment], table: TypedTable | None
) -> Iterator[pa.RecordBatch]:
    for one, found in itertools.groupby(_read(options, ranges, table), key=itemgetter(0)):
        shape = _shape(options, schema, one, table)
        of_range = map(itemgetter(1), found)
        for records in rows.merged(of_range if table is None else map(table.passing, of_range)):
            yield shape(records)


def _read(
    options: ReadOptions, ranges: Sequence[Assignment], table: TypedTable | None
) -> Iterator[tuple[Assignment, pa.RecordBatch]]:
    """Rows of a task, whose ranges are either all archived or all not."""
    if table is None or not ranges[0].archive:
        return topics.read(options, ranges, table)
    from tidemark_spark.typed.history import read_archived

    return read_archived(ranges, table)


def _shape(options: ReadOptions, schema: pa.Schema, one: Assignment, table: TypedTable | None) -> Shape:
    if table is not None:
        return table.shaper(one.offsets.partition)
    return rows.Rows(one.offsets, options.columns, schema, timestamp_type=one.timestamp_type).to_columns


@functools.cache
def _settle() -> None:
    """Once per process: keep freed memory, and exclude imported modules from the full collection after each task."""
    keep_freed_memory()
    gc.freeze()


class TidemarkReader(DataSourceReader):
    """Plans and runs a batch read.

    Args:
        options: options of the read.
        schema: columns that Spark expects.
        table: the same columns of a typed topic; None: a read of bytes.
    """

    def __init__(self, options: ReadOptions, schema: StructType, table: TypedTable | None = None) -> None:
        if table is None:
            check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._table = table

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Tasks; the ends of their ranges are the current high watermarks."""
        options = self._options
        with topics.open_reader(options) as reader:
            found = topics.find_topics(reader, options)
            if self._table is not None:
                check_same(self._table.topic, found)
            narrowing = self._narrowing()
            history = _history(options, found)  # before the bounds, which are not less than its ends then
            bounds = topics.find_bounds(reader, options, found)
            if history is not None:
                narrowing = replace(narrowing, timestamp_ms=None)  # brokers know no times of archived rows
                bounds = {name: history.bounds(held) for name, held in bounds.items()}
            by_time = topics.find_times(reader, times_of(options, bounds, narrowing))
        planned = plan_ranges(options, bounds, by_time, narrowing)
        archived, planned = history.divided(planned) if history is not None else ([], planned)
        tasks = pack(planned, options, functools.partial(topics.leader_of, found))
        return [
            *(TidemarkInputPartition((_assignment(part, found, options.history),)) for part in archived),
            *(
                TidemarkInputPartition(tuple(_assignment(part, found, behind=history) for part in task))
                for task in tasks
            ),
        ]

    def _narrowing(self) -> Narrowing:
        """Bounds of the read by the filters that the reader has."""
        return EVERYTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task."""
        return read_task(self._options, self._schema, partition, self._table)


class TidemarkFilteringReader(TidemarkReader):
    """A batch read that receives the query's filters, where Spark passes them (see `compat`)."""

    _comparisons: Sequence[Comparison] = ()

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Narrow the read by the filters that allow this; Spark applies all of them again."""
        self._comparisons = [one for one in map(_comparison, filters) if one is not None]
        if self._table is not None:
            self._table = self._table.filtered(filters)
        return filters

    def _narrowing(self) -> Narrowing:
        if self._table is None:
            return narrow(self._comparisons)
        return narrow(
            replace(one, column=_METADATA[one.column]) for one in self._comparisons if one.column in _METADATA
        )


def _comparison(pushed: Any) -> Comparison | None:
    operator = _OPERATORS.get(type(pushed).__name__)
    if operator is None or len(pushed.attribute) != 1:
        return None
    return Comparison(pushed.attribute[0], operator, pushed.value)


_METADATA: Final = {"_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}
"""Columns of a typed topic that filters narrow a read by, as columns of a read of bytes."""
_OPERATORS: Mapping[str, str] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}


def _history(options: ReadOptions, found: Mapping[str, TopicView]) -> History | None:
    """The archive of the read's only topic, if the options name an archive."""
    if not options.history:
        return None
    from tidemark_spark.typed.history import History

    view = next(iter(found.values()))
    return History(options.history, view, [where.partition for where in topics.partitions_of(options, view)])


def _assignment(
    part: OffsetRange, found: Mapping[str, TopicView], archive: str = "", *, behind: History | None = None
) -> Assignment:
    """The range with its ids; a range of the log `behind` an archive also has the leader epoch of archived rows."""
    topic = found[part.topic]
    incarnation = topic.partitions[part.partition].incarnation
    last_epoch = NO_EPOCH if behind is None else behind.epoch_before(part)
    return Assignment(part, topic.topic_id, incarnation, topics.timestamp_type(topic), last_epoch, archive)
