# SPDX-License-Identifier: Apache-2.0
"""Rows of a topic's batches in one version of its schema, even if another version wrote them; with named columns only.

A reader may name system columns, too: `_key`, `_partition`, `_offset`, `_timestamp`, `_headers`, `_deleted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.core.schemas.arrow_types import pruned
from tidemark.core.schemas.model import TopicSchema, kept_columns
from tidemark.core.schemas.projection import Projection
from tidemark.core.schemas.refusals import naming
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.errors import SchemaError
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Batch
from tidemark.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from tidemark.record.typed.batch import TimeRange, TypedRows, is_outside, read_pruned, read_typed
from tidemark.record.typed.key_bytes import key_bytes
from tidemark.record.typed.layout import HEADERS_ID, TIMESTAMP_ID, TypedLayout

_SYSTEM: Final[dict[str, pa.Field[Any]]] = {
    "_key": pa.field("_key", pa.binary()),
    "_partition": pa.field("_partition", pa.int32(), nullable=False),
    "_offset": pa.field("_offset", pa.int64(), nullable=False),
    "_timestamp": pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False),
    "_headers": pa.field("_headers", HEADERS_TYPE),
    "_deleted": pa.field("_deleted", pa.bool_(), nullable=False),
}
ALL_TIMES: Final = TimeRange()
SYSTEM_COLUMNS: Final = tuple(_SYSTEM)
OF_RECORDS: Final = ("_key", "_offset", "_timestamp", "_headers", "_deleted")
"""The system columns that a record needs."""
_SYSTEM_IDS: Final = {"_timestamp": TIMESTAMP_ID, "_headers": HEADERS_ID}
_compute: Any = pc


class UnknownVersionError(TidemarkError):
    """A batch has a version of the schema that the reader does not know yet."""

    def __init__(self, topic: str, version: int) -> None:
        super().__init__(ErrorCode.UNKNOWN_SCHEMA_VERSION, f"version {version} of the schema of {topic} is not known")
        self.version = version


class MissingVersionError(SchemaError):
    """The reader names a version that the topic's schema does not have."""

    @property
    def retriable(self) -> bool:
        """False: a member of a group must raise this error instead of waiting for the version."""
        return False


class _Source(NamedTuple):
    """How batches of one version are read.

    Attributes:
        asked: ids of the columns to read; None: the whole batch, which is in the reader's version.
        wanted: schema of the columns that the projection takes.
    """

    layout: TypedLayout
    projection: Projection
    asked: frozenset[int] | None
    wanted: pa.Schema


class BatchRows:
    """Reads the batches of one topic; any thread may call `rows`.

    Args:
        topic: name of the topic, for errors.
        versions: see `learn`.
        columns: paths in the reader's version, such as "carrier" or "leg.origin", and system columns; None: all columns
            of the version, and `system`.
        system: the system columns that come with all columns.
        dictionaries: dictionary-encode columns of type Dictionary; otherwise the columns are plain.
        version: the version to read as; None: the newest that `learn` was given.
        times: a batch without a timestamp in this range yields no rows; any other batch yields all its rows.

    Attributes:
        target: the version of the rows that come out.
        schema: their Arrow schema: columns in the order of the version, then system columns.
        times: the timestamps to ask brokers for.
        column_ids: ids of columns to fetch; empty: whole batches.

    Raises:
        TidemarkError: INVALID_REQUEST: a path names no column of the version; UNKNOWN_SCHEMA_VERSION.
    """

    def __init__(
        self,
        topic: str,
        versions: Mapping[int, TopicSchema],
        columns: Sequence[str] | None = None,
        *,
        system: Sequence[str] = OF_RECORDS,
        dictionaries: bool = True,
        version: int | None = None,
        times: TimeRange = ALL_TIMES,
    ) -> None:
        self._topic = topic
        self._columns = None if columns is None else [name for name in columns if name not in _SYSTEM]
        self._system = list(dict.fromkeys(system if columns is None else filter(_SYSTEM.__contains__, columns)))
        self._dictionaries = dictionaries
        self._version = version
        self.times = times
        self._sources: dict[int, _Source | TidemarkError] = {}
        self.learn(versions)

    def become(self, other: BatchRows) -> None:
        """Read as another reader of the topic does, from the next batch on."""
        vars(self).update(vars(other))

    def learn(self, versions: Mapping[int, TopicSchema]) -> None:
        """Set the known versions, at least one; the newest becomes the reader's version, unless the reader named a
        version.
        """
        newest = max(versions)
        if self._version is not None and self._version not in versions:
            sentence = f"topic {self._topic} has no version {self._version} of its schema; the newest is {newest}"
            facts = {"topic": self._topic, "version": str(self._version), "newest_version": str(newest)}
            raise MissingVersionError(ErrorCode.UNKNOWN_SCHEMA_VERSION, sentence, facts)
        self.target = versions[newest if self._version is None else self._version]
        projections: dict[int, Projection | TidemarkError] = {}
        own = self._projection(self.target)
        for version, schema in versions.items():
            try:
                projections[version] = own if schema is self.target else self._projection(schema)
            except TidemarkError as error:  # the error is raised for a batch of that version
                projections[version] = error
        beside = {_SYSTEM_IDS[name] for name in self._system if name in _SYSTEM_IDS}
        beside |= set(self.target.key) if "_key" in self._system else set()
        made = [one for one in projections.values() if isinstance(one, Projection)]
        pruning = self._columns is not None
        asked = frozenset(beside.union(*(one.column_ids for one in made))) if pruning else None
        sources: dict[int, _Source | TidemarkError] = {}
        for version, projection in projections.items():
            if isinstance(projection, TidemarkError):
                sources[version] = projection
                continue
            ids = asked
            if ids is None and versions[version] is not self.target:
                ids = frozenset(beside.union(projection.column_ids))
            wanted = pruned(versions[version], projection.column_ids)
            sources[version] = _Source(layout_of(versions[version]), projection, ids, wanted)
        self._sources, self._versions = sources, versions
        self.schema = pa.schema([*own.arrow_schema, *(_SYSTEM[name] for name in self._system)])
        self._none = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)
        self.column_ids: tuple[int, ...] = () if asked is None else tuple(sorted(asked))

    def _projection(self, source: TopicSchema) -> Projection:
        with naming(self._topic):
            return Projection(source, self.target, self._columns, dictionaries=self._dictionaries)

    def rows(self, batch: Batch, partition: int, start: int, end: int | None = None) -> pa.RecordBatch:
        """The rows of [start, end) of a batch, in `schema`; deleted rows only if `_deleted` is requested.

        Args:
            batch: whole, or pruned to `column_ids`, or without columns outside of `times`.
            partition: index of its partition.
            start: first offset, inclusive.
            end: end offset, exclusive; None: the end of the batch.

        Raises:
            TidemarkError: CORRUPT_BATCH and other errors of a damaged batch; INCOMPATIBLE_SCHEMA: the reader's version
                cannot read this version.
            UnknownVersionError: call `learn` with this version.
        """
        if self.times != ALL_TIMES and is_outside(batch.data, self.times):
            return self._none
        source = self._source(batch.envelope.schema_version)
        if source.asked is None:
            found = read_typed(batch, source.layout)
        else:
            found = read_pruned(batch.data, source.layout, source.asked)
        return self._projected(source, found, partition, start, end)

    def archived(self, found: TypedRows, schema: TopicSchema, partition: int, start: int, end: int) -> pa.RecordBatch:
        """The rows of [start, end) of rows that an archive has, in `schema`; raises INCOMPATIBLE_SCHEMA.

        Args:
            found: the columns that `stored_columns` names, and other columns.
            schema: version of the schema that the rows have; the reader may not know it yet.
            partition: index of their partition.
            start: first offset, inclusive.
            end: end offset, exclusive.
        """
        return self._projected(self._source_of(schema), found, partition, start, end)

    def stored_columns(self, schema: TopicSchema) -> list[str]:
        """Names of the columns of a version that hold the columns to read."""
        asked = self._source_of(schema).asked
        columns = schema.columns if asked is None else kept_columns(schema.columns, asked)
        return [column.name for column in columns]

    @property
    def has_headers(self) -> bool:
        """Whether the headers of rows are read."""
        return "_headers" in self._system

    def _source_of(self, schema: TopicSchema) -> _Source:
        if schema.version not in self._sources:
            self.learn({**self._versions, schema.version: schema})
        return self._source(schema.version)

    def _source(self, version: int) -> _Source:
        source = self._sources.get(version)
        if source is None:
            raise UnknownVersionError(self._topic, version)
        if isinstance(source, TidemarkError):
            raise source
        return source

    def _projected(
        self, source: _Source, found: TypedRows, partition: int, start: int, end: int | None
    ) -> pa.RecordBatch:
        projected = source.projection.apply(_reduced(found.columns, source.wanted))
        rows = self._with_system(projected, found, source.layout, partition)
        begin, count = _window(found, start, end)
        if count != rows.num_rows:
            rows = rows.slice(begin, count)
        if found.deleted is not None and "_deleted" not in self._system:
            rows = rows.filter(_compute.invert(found.deleted.slice(begin, count)))
        return rows

    def _with_system(
        self, projected: pa.RecordBatch, found: TypedRows, layout: TypedLayout, partition: int
    ) -> pa.RecordBatch:
        if not self._system:
            return projected
        arrays: list[Any] = [*projected.columns]
        count = projected.num_rows
        for name in self._system:
            match name:
                case "_key":
                    keys = key_bytes(found.columns, layout.key_columns)
                    arrays.append(pa.nulls(count, pa.binary()) if keys is None else keys)
                case "_partition":
                    arrays.append(pa.repeat(pa.scalar(partition, pa.int32()), count))
                case "_offset":
                    arrays.append(found.offsets)
                case "_timestamp":
                    arrays.append(found.timestamps)
                case "_headers":
                    arrays.append(found.headers)
                case _:
                    arrays.append(pa.repeat(pa.scalar(False), count) if found.deleted is None else found.deleted)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _window(found: TypedRows, start: int, end: int | None) -> tuple[int, int]:
    """Index of the first row in [start, end), and the number of rows; offsets rise."""
    count = found.columns.num_rows
    first = found.first_offset
    if first is not None:
        begin = min(count, max(0, start - first))
        return begin, (count if end is None else max(begin, min(count, end - first))) - begin
    offsets: Any = found.offsets
    begin = _compute.sum(_compute.less(offsets, start)).as_py() or 0
    stop = count if end is None else _compute.sum(_compute.less(offsets, end)).as_py() or 0
    return begin, max(0, stop - begin)


def _reduced(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The rows without the columns that only other versions and system columns need."""
    if rows.schema.equals(wanted):
        return rows
    arrays = [_reduced_array(rows.column(field.name), field.type) for field in wanted]
    if not arrays:
        return rows.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _reduced_array(array: Any, wanted: Any) -> Any:
    if array.type.equals(wanted):
        return array
    validity = array.buffers()[0]
    if pa.types.is_struct(wanted):
        names = [array.type.field(place).name for place in range(array.type.num_fields)]
        whole = array if not array.offset else pa.concat_arrays([array])
        fields = [wanted.field(place) for place in range(wanted.num_fields)]
        children = [_reduced_array(whole.field(names.index(field.name)), field.type) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=whole.is_null() if whole.null_count else None)
    offsets = array.buffers()[1]
    values = _reduced_array(array.values, wanted.value_type)
    return pa.Array.from_buffers(wanted, len(array), [validity, offsets], offset=array.offset, children=[values])
