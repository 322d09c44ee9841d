# SPDX-License-Identifier: Apache-2.0
"""The layout of the batches of a schema version. Brokers and clients only: this imports pyarrow."""

from __future__ import annotations

from tidemark.core.schemas.arrow_types import arrow_schema, node_ids
from tidemark.core.schemas.model import TopicSchema
from tidemark.record.typed.layout import TypedLayout


def layout_of(schema: TopicSchema) -> TypedLayout:
    """The layout in which batches of this version are stored."""
    event_time = schema.event_time_column
    return TypedLayout(
        schema.version,
        arrow_schema(schema),
        node_ids(schema),
        key_columns=[column.name for column in schema.key_columns],
        event_time=None if event_time is None else event_time.name,
    )
