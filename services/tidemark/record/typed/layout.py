# SPDX-License-Identifier: Apache-2.0
"""The columns of typed batches: the system columns of the batch, then the columns of a schema version."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.record.arrow_message import MessageLayout, Template
from tidemark.record.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from tidemark.record.shapes import know_shapes, layout_of
from tidemark.record.typed.column_table import HAS_HEADERS, HAS_TIMESTAMPS, HAS_TOMBSTONES, NO_NODE

TIMESTAMP_ID: Final = -1
"""Id of the timestamps for readers that name columns; the ids of a schema's columns start at 1."""
HEADERS_ID: Final = -2
DELETED_ID: Final = -3
OFFSET_DELTA_ID: Final = -4
_ALWAYS: Final = frozenset({DELETED_ID, OFFSET_DELTA_ID})
"""System columns that a reader needs for every row."""

_SYSTEM: Final[tuple[tuple[int, int, pa.Field[Any]], ...]] = (
    (HAS_TIMESTAMPS, TIMESTAMP_ID, pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False)),
    (HAS_HEADERS, HEADERS_ID, pa.field("_headers", HEADERS_TYPE)),
    (HAS_TOMBSTONES, DELETED_ID, pa.field("_deleted", pa.bool_(), nullable=False)),
)
_OFFSET_DELTA: Final = pa.field("_offset_delta", pa.uint32(), nullable=False)
SYSTEM_NAMES: Final = frozenset({*(field.name for _, _, field in _SYSTEM), _OFFSET_DELTA.name})


def flags_of(names: Collection[str]) -> int:
    """The flags of rows with these columns: such as HAS_TIMESTAMPS."""
    return sum(flag for flag, _, field in _SYSTEM if field.name in names)


class Arrangement:
    """The Arrow schema of a payload, and values derived from the schema.

    Attributes:
        schema: system columns first.
        layout: nodes and buffers.
        node_ids: column id of each node.
        templates: heads of messages, by codec.
        schema_message: the message that opens a stream of batches with this schema.
    """

    def __init__(self, schema: pa.Schema, node_ids: Sequence[int]) -> None:
        self.schema = schema
        self.node_ids = tuple(node_ids)
        self.layout: MessageLayout = layout_of(schema, bare_validity=True)
        assert len(self.layout.nodes) == len(self.node_ids), "each node has an id"
        self.templates: dict[int, Template] = know_shapes(schema, self.layout) if len(schema) else {}
        self.schema_message: bytes = schema.serialize().to_pybytes()


class Pruning(NamedTuple):
    """The part of an arrangement that a reader of some columns gets."""

    kept: tuple[int, ...]
    """Indices of the nodes of the whole arrangement that remain."""
    arrangement: Arrangement
    """The arrangement of the columns that remain."""


class TypedLayout:
    """The columns of one version of a topic's schema.

    Attributes:
        version: schema version, from 1.
        schema: the columns of the version.
        node_ids: column id of each field node of the schema, depth first.
        key_columns: names of the key columns.
        event_time: name of the column with the event time; None: records have separate timestamps.
        event_time_id: column id of the event time.
    """

    def __init__(
        self,
        version: int,
        schema: pa.Schema,
        node_ids: Sequence[int],
        *,
        key_columns: Sequence[str] = (),
        event_time: str | None = None,
    ) -> None:
        self._arrangements: dict[tuple[int, bool], Arrangement] = {}
        self._event_time_nodes: dict[tuple[int, bool], int] = {}
        self._pruned = lru_cache(maxsize=128)(self._prune)
        self._ids = _ALWAYS | {TIMESTAMP_ID, HEADERS_ID, *node_ids}
        self.version = version
        self.schema = schema
        self.node_ids = tuple(node_ids)
        self.key_columns = tuple(key_columns)
        self.event_time = event_time
        node = self.event_time_node(0)
        self.event_time_id = None if node == NO_NODE else self.node_ids[node]

    def arrangement(self, flags: int, *, compacted: bool = False) -> Arrangement:
        """The columns of a batch with these flags."""
        known = self._arrangements.get((flags, compacted))
        if known is None:
            system = [(number, field) for flag, number, field in _SYSTEM if flags & flag]
            if compacted:
                system.append((OFFSET_DELTA_ID, _OFFSET_DELTA))
            fields: list[pa.Field[Any]] = [field for _, field in system]
            ids = [number for number, field in system for _ in range(_node_count(field.type))]
            known = Arrangement(pa.schema([*fields, *self.schema]), [*ids, *self.node_ids])
            self._arrangements[flags, compacted] = known
        return known

    def event_time_node(self, flags: int, *, compacted: bool = False) -> int:
        """Node of the event time in a batch with these flags; NO_NODE: no event time."""
        if self.event_time is None:
            return NO_NODE
        node = self._event_time_nodes.get((flags, compacted))
        if node is None:
            schema = self.arrangement(flags, compacted=compacted).schema
            index = schema.get_field_index(self.event_time)
            node = sum(_node_count(schema.field(before).type) for before in range(index))
            self._event_time_nodes[flags, compacted] = node
        return node

    def known_ids(self, column_ids: frozenset[int]) -> frozenset[int]:
        """The ids that name a column, so that readers of the same columns share the layouts that are computed for
        them."""
        return column_ids & self._ids

    def kept(self, flags: int, column_ids: frozenset[int], *, compacted: bool = False) -> tuple[int, ...]:
        """The nodes of a batch with these flags that a reader of these columns gets.

        A node remains if its id, or the id of a node above or below it, is named; a map remains complete.
        """
        return _kept(self, flags, column_ids, compacted)

    def pruned(self, flags: int, column_ids: frozenset[int], *, compacted: bool = False) -> Pruning:
        """These nodes and their layout, for a reader. A broker needs only `kept`: an arrangement of a wide schema
        costs a megabyte, and clients choose the columns.
        """
        return self._pruned(flags, column_ids, compacted)

    def _prune(self, flags: int, column_ids: frozenset[int], compacted: bool) -> Pruning:
        kept, fields = self.remains(flags, column_ids, compacted)
        ids = self.arrangement(flags, compacted=compacted).node_ids
        return Pruning(kept, Arrangement(pa.schema(fields), [ids[node] for node in kept]))

    def remains(
        self, flags: int, column_ids: frozenset[int], compacted: bool
    ) -> tuple[tuple[int, ...], list[pa.Field[Any]]]:
        """The nodes and fields that remain; each call computes them."""
        whole = self.arrangement(flags, compacted=compacted)
        wanted = column_ids | _ALWAYS
        if TIMESTAMP_ID in wanted and self.event_time is not None:
            wanted |= {whole.node_ids[self.event_time_node(flags, compacted=compacted)]}
        kept: list[int] = []
        fields: list[pa.Field[Any]] = []
        node = 0
        for field in whole.schema:
            remains = _remains(field, node, whole.node_ids, wanted, kept)
            node += _node_count(field.type)
            if remains is not None:
                fields.append(remains)
        return tuple(kept), fields


@lru_cache(maxsize=128)
def _kept(layout: TypedLayout, flags: int, column_ids: frozenset[int], compacted: bool) -> tuple[int, ...]:
    """One cache for all layouts: clients choose the columns, so the number of entries has to have a bound."""
    return layout.remains(flags, column_ids, compacted)[0]


def _remains(
    field: pa.Field[Any], node: int, ids: Sequence[int], wanted: frozenset[int], kept: list[int]
) -> pa.Field[Any] | None:
    """The field without unwanted parts, None if no part remains; adds the remaining nodes to `kept`."""
    data_type: Any = field.type
    count = _node_count(data_type)
    if ids[node] in wanted or (pa.types.is_map(data_type) and not wanted.isdisjoint(ids[node : node + count])):
        kept.extend(range(node, node + count))
        return field
    before = len(kept)
    kept.append(node)
    below = node + 1
    parts: list[pa.Field[Any]] = []
    for child in _children(data_type):
        part = _remains(child, below, ids, wanted, kept)
        below += _node_count(child.type)
        if part is not None:
            parts.append(part)
    if not parts or pa.types.is_map(data_type):
        del kept[before:]
        return None
    return field.with_type(pa.list_(parts[0]) if pa.types.is_list(data_type) else pa.struct(parts))


def _children(data_type: Any) -> list[pa.Field[Any]]:
    return [data_type.field(index) for index in range(data_type.num_fields)]


def _node_count(data_type: Any) -> int:
    return 1 + sum(_node_count(child.type) for child in _children(data_type))
