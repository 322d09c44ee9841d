# SPDX-License-Identifier: Apache-2.0
"""The forms in which a caller may state a schema, and the JSON that the admin service gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.document import document_of, draft_from_document
from tidemark.core.schemas.model import SchemaDraft, TopicSchema
from tidemark.model import invalid_request

if TYPE_CHECKING:
    import pyarrow as pa

SchemaGiven: TypeAlias = "str | Mapping[str, Any] | SchemaDraft | TopicSchema | pa.Schema | type"
"""A DDL such as "carrier STRING NOT NULL, delay INT, PRIMARY KEY (carrier)"; the mapping of a schema file
(docs/schemas.md); a `pyarrow.Schema`. Or a dataclass, a pydantic model, or a schema of another topic."""


def draft_of(given: SchemaGiven) -> SchemaDraft:
    """The draft that a caller states.

    Raises:
        TidemarkError: INVALID_SCHEMA, and INVALID_REQUEST for a value that states no schema.
    """
    if isinstance(given, SchemaDraft):
        return given
    if isinstance(given, TopicSchema):
        return draft_from_document(document_of(given))
    if isinstance(given, str):
        return draft_from_ddl(given)
    if isinstance(given, Mapping):
        return draft_from_document(given)
    if isinstance(given, type):
        return _of_class(given)
    if type(given).__module__.partition(".")[0] == "pyarrow":
        return _of_arrow(given)
    raise invalid_request(
        f"schema is a {type(given).__name__}: give a DDL, a mapping, a pyarrow.Schema, a dataclass or a pydantic model"
    )


def document_text(given: SchemaGiven) -> str:
    """The JSON of the schema file that states the same; raises the errors of `draft_of`."""
    return json.dumps(document_of(draft_of(given)), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def schema_text(given: SchemaGiven | None, key: Sequence[str], event_time: str | None) -> str:
    """The text for a new topic: `document_text` with key columns and event time; empty without a schema.

    Raises:
        TidemarkError: the errors of `draft_of`; INVALID_REQUEST for a key or an event time without a schema.
    """
    if given is not None:
        draft = draft_of(given)
        return document_text(draft.keyed(key, event_time) if key or event_time else draft)
    if key or event_time:
        raise invalid_request("key and event_time name columns of a schema: give schema too")
    return ""


def _of_class(given: type) -> SchemaDraft:
    from tidemark.core.schemas.python_types import draft_from_class

    return draft_from_class(given)


def _of_arrow(given: pa.Schema) -> SchemaDraft:
    from tidemark.core.schemas.arrow_types import draft_from_arrow

    return draft_from_arrow(given)
