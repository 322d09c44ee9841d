# SPDX-License-Identifier: Apache-2.0
"""The layouts of typed batches, by topic and schema version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidemark.core.schemas.compatibility import problems
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.typed.layout import TypedLayout

Schemas = Mapping[int, TopicSchema]
"""The versions of a topic's schema; none of a topic of bytes."""


class TypedLayouts:
    """Makes each layout once. Any thread may read.

    Args:
        schemas: the versions that this broker understands, by topic.
        is_typed: whether a topic has a schema, understood or not.
    """

    def __init__(self, schemas: Callable[[str], Schemas], is_typed: Callable[[str], bool]) -> None:
        self._schemas = schemas
        self.is_typed = is_typed
        self._made: dict[str, dict[int, tuple[TopicSchema, TypedLayout]]] = {}
        self._readable: dict[str, dict[int, tuple[TopicSchema, str]]] = {}

    def forget(self, topic: str) -> None:
        """Remove the layouts of a deleted topic: a layout of a wide schema takes a megabyte."""
        self._made.pop(topic, None)
        self._readable.pop(topic, None)

    def known(self, topic: str, version: int) -> TypedLayout | None:
        """The layout of a version; None: this broker does not know the version."""
        schema = self._schemas(topic).get(version)
        if schema is None:
            return None
        of_topic = self._made.setdefault(topic, {})
        made = of_topic.get(version)
        if made is None or made[0] is not schema:
            made = of_topic[version] = (schema, layout_of(schema))
        return made[1]

    def stored(self, topic: str, version: int) -> TypedLayout:
        """The layout of a version; raises UNKNOWN_SCHEMA_VERSION."""
        layout = self.known(topic, version)
        if layout is None:
            newest = max(self._schemas(topic), default=0)
            raise TidemarkError(
                ErrorCode.UNKNOWN_SCHEMA_VERSION,
                f"topic {topic}: this broker knows the schema up to version {newest}, not version {version}",
                {"topic": topic, "version": str(version), "newest_version": str(newest)},
            )
        return layout

    def writable(self, topic: str, version: int) -> TypedLayout:
        """The layout of a version that producers may write: readers with the newest version can read it.

        Raises:
            TidemarkError: UNKNOWN_SCHEMA_VERSION; SCHEMA_MISMATCH: the version is older than an incompatible change.
        """
        layout = self.stored(topic, version)
        schemas = self._schemas(topic)
        newest = schemas[max(schemas)]
        if version != newest.version and (problem := self._problem(topic, schemas[version], newest)):
            raise TidemarkError(
                ErrorCode.SCHEMA_MISMATCH,
                f"write version {newest.version}; its readers cannot read version {version}: {problem}",
                {"topic": topic, "version": str(version), "newest_version": str(newest.version)},
            )
        return layout

    def _problem(self, topic: str, schema: TopicSchema, newest: TopicSchema) -> str:
        """A column of the version that readers with the newest one cannot read; "": every column can be read."""
        of_topic = self._readable.setdefault(topic, {})
        known = of_topic.get(schema.version)
        if known is None or known[0] is not newest:
            first = next(iter(problems(schema, newest)), None)
            known = of_topic[schema.version] = (newest, "" if first is None else first.sentence)
        return known[1]


NO_LAYOUTS: Final = TypedLayouts(lambda _: {}, lambda _: False)
"""The layouts of a broker without typed topics."""
