# SPDX-License-Identifier: Apache-2.0
"""The versions of a schema: the first one."""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.schemas.checks import check_draft, check_schema
from tidemark.core.schemas.model import Column, SchemaDraft, TopicSchema, children, with_children
from tidemark.core.schemas.text import to_text


class _Ids:
    """Hands out column ids, each once."""

    def __init__(self, last: int) -> None:
        self.last = last

    def next(self) -> int:
        self.last += 1
        return self.last


def first_version(draft: SchemaDraft) -> TopicSchema:
    """Version 1 of a topic's schema; `renamed_from` counts for nothing. Raises INVALID_SCHEMA."""
    check_draft(draft)
    ids = _Ids(0)
    columns = tuple(_with_new_ids(column, ids) for column in draft.columns)
    return _checked(1, columns, draft, ids)


def _checked(version: int, columns: tuple[Column, ...], draft: SchemaDraft, ids: _Ids) -> TopicSchema:
    by_name = {column.name: column.id for column in columns}
    event_time = None if draft.event_time is None else by_name[draft.event_time]
    schema = TopicSchema(version, columns, tuple(by_name[name] for name in draft.key), event_time, ids.last)
    check_schema(schema)
    to_text(schema)  # refuses a text that is too large
    return schema


def _with_new_ids(column: Column, ids: _Ids) -> Column:
    own = ids.next()
    below = [_with_new_ids(child, ids) for child in children(column.type)]
    return replace(column, id=own, type=with_children(column.type, below), renamed_from="")
