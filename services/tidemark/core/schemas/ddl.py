# SPDX-License-Identifier: Apache-2.0
"""DDL, as Spark has it, to a draft and back.

    carrier STRING NOT NULL COMMENT 'IATA code', delay INT DEFAULT 0, price DECIMAL(10,2), scheduled_at TIMESTAMP,
    legs ARRAY<STRUCT<origin: STRING>>, PRIMARY KEY (carrier), EVENT_TIME (scheduled_at)

The last two clauses are not Spark's. `type_parser` has more clauses that Spark lacks.
"""

from __future__ import annotations

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.model import Column, SchemaDraft, TopicSchema, draft_of
from tidemark.core.schemas.refusals import ColumnBudget, invalid
from tidemark.core.schemas.type_names import SPARK, column_text, quoted_name
from tidemark.core.schemas.type_parser import TypeParser


def draft_from_ddl(text: str) -> SchemaDraft:
    """The draft that a DDL states; columns of the key and of the event time are not null. Raises INVALID_SCHEMA."""
    parser = TypeParser(text, ColumnBudget())
    columns: list[Column] = []
    key: tuple[str, ...] = ()
    event_time: str | None = None
    if parser.at_end():
        raise invalid("the DDL is empty; give columns such as: carrier STRING NOT NULL, delay INT")
    while True:
        if parser.accept_words("primary", "key", sign="("):
            key = parser.names(())
        elif parser.accept_words("event_time", sign="("):
            event_time, *more = parser.names(())
            if more:
                raise invalid("only one column can have the event time")
        else:
            columns.append(parser.column(()))
        if not parser.accept_comma():
            break
    parser.expect_end(())
    return check_draft(SchemaDraft(tuple(columns)).keyed(key, event_time))


def ddl_of(schema: TopicSchema | SchemaDraft) -> str:
    """The DDL that states a schema."""
    draft = draft_of(schema) if isinstance(schema, TopicSchema) else schema
    parts = [column_text(column, SPARK) for column in draft.columns]
    if draft.key:
        parts.append(f"PRIMARY KEY ({', '.join(quoted_name(name) for name in draft.key)})")
    if draft.event_time is not None:
        parts.append(f"EVENT_TIME ({quoted_name(draft.event_time)})")
    return ", ".join(parts)
