# SPDX-License-Identifier: Apache-2.0
"""The batch reader: the driver plans the ranges once, and each task reads one range, or several small ones."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidemark.core.cluster_view import TopicView
from tidemark.runtime.freed_memory import keep_freed_memory

from tidemark_spark import rows, topics
from tidemark_spark.columns import Columns
from tidemark_spark.compat import arrow_schema
from tidemark_spark.filters import EVERYTHING, Comparison, narrow
from tidemark_spark.options import ReadOptions
from tidemark_spark.plain_errors import plain_errors
from tidemark_spark.ranges import OffsetRange, pack, plan_ranges, times_of
from tidemark_spark.topics import Assignment
from tidemark_spark.values import check_type


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
            raise ValueError(f"the schema says {found} for the column {name!r}, which is {wanted}{hint}")
    arrow = arrow_schema(schema)
    if "value" in arrow.names:
        check_type(columns.value_format, arrow.field("value").type)


def read_task(options: ReadOptions, schema: StructType, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Rows of one task in the order of offsets, as Arrow batches for Spark."""
    # Without a planned range, Spark runs one task all the same: with a bare partition, before 4.1 with None.
    if partition is None or (type(partition) is InputPartition and partition.value is None):
        return
    assert isinstance(partition, TidemarkInputPartition)
    _settle()
    with plain_errors():
        found = _columns(options, arrow_schema(schema), partition.ranges)
        yield from found if len(partition.ranges) == 1 else rows.merged(found)


def _columns(options: ReadOptions, schema: pa.Schema, ranges: Sequence[Assignment]) -> Iterator[pa.RecordBatch]:
    for one, found in itertools.groupby(topics.read(options, ranges), key=itemgetter(0)):
        shaped = rows.Rows(one.offsets, options.columns, schema, timestamp_type=one.timestamp_type)
        for records in rows.merged(map(itemgetter(1), found)):
            yield shaped.to_columns(records)


@functools.cache
def _settle() -> None:
    """Once per process: keep freed memory, and exclude imported modules from the full collection after each task."""
    keep_freed_memory()
    gc.freeze()


class TidemarkReader(DataSourceReader):
    """A batch read.

    Args:
        options: options of the read.
        schema: columns that Spark expects.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._narrowing = EVERYTHING

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Tasks; the ends of their ranges are the current high watermarks."""
        options = self._options
        with topics.open_reader(options) as reader:
            found = topics.find_topics(reader, options)
            bounds = topics.find_bounds(reader, options, found)
            by_time = topics.find_times(reader, times_of(options, bounds, self._narrowing))
        planned = plan_ranges(options, bounds, by_time, self._narrowing)
        tasks = pack(planned, options, functools.partial(topics.leader_of, found))
        return [TidemarkInputPartition(tuple(_assignment(part, found) for part in task)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task."""
        return read_task(self._options, self._schema, partition)


class TidemarkFilteringReader(TidemarkReader):
    """A batch read that receives the query's filters, where Spark passes them (see `compat`)."""

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Narrow the read by the filters that allow this; Spark applies all of them again."""
        self._narrowing = narrow(one for one in map(_comparison, filters) if one is not None)
        return filters


def _comparison(pushed: Any) -> Comparison | None:
    operator = _OPERATORS.get(type(pushed).__name__)
    if operator is None or len(pushed.attribute) != 1:
        return None
    return Comparison(pushed.attribute[0], operator, pushed.value)


_OPERATORS: Mapping[str, str] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}


def _assignment(part: OffsetRange, found: Mapping[str, TopicView]) -> Assignment:
    topic = found[part.topic]
    incarnation = topic.partitions[part.partition].incarnation
    return Assignment(part, topic.topic_id, incarnation, topics.timestamp_type(topic))
