# SPDX-License-Identifier: Apache-2.0
"""The layouts of typed batches, by topic and schema version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.typed.layout import TypedLayout

Schemas = Mapping[int, TopicSchema]
"""The versions of a topic's schema; none of a topic of bytes."""


class TypedLayouts:
    """Makes each layout once. Any thread reads."""

    def __init__(self, schemas: Callable[[str], Schemas]) -> None:
        self._schemas = schemas
        self._made: dict[tuple[str, int], tuple[TopicSchema, TypedLayout]] = {}

    def is_typed(self, topic: str) -> bool:
        """Whether the topic has a schema."""
        return bool(self._schemas(topic))

    def known(self, topic: str, version: int) -> TypedLayout | None:
        """The layout of a version; None: this broker does not know the version."""
        schema = self._schemas(topic).get(version)
        if schema is None:
            return None
        made = self._made.get((topic, version))
        if made is None or made[0] is not schema:
            made = self._made[topic, version] = (schema, layout_of(schema))
        return made[1]

    def writable(self, topic: str, version: int) -> TypedLayout:
        """The layout of a version that producers may write.

        Raises:
            TidemarkError: UNKNOWN_SCHEMA_VERSION.
        """
        layout = self.known(topic, version)
        if layout is None:
            newest = max(self._schemas(topic))
            raise TidemarkError(
                ErrorCode.UNKNOWN_SCHEMA_VERSION,
                f"topic {topic}: this broker knows the schema up to version {newest}, the batch has version {version}",
                {"topic": topic, "version": str(version), "newest_version": str(newest)},
            )
        return layout


NO_LAYOUTS: Final = TypedLayouts(lambda _: {})
"""Of a broker without typed topics."""
