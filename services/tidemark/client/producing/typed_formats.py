# SPDX-License-Identifier: Apache-2.0
"""The formats of the typed topics that a producer sends to, each of the newest version that the producer knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemark.client.metadata.cluster import Cluster
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.topic_schemas import TopicSchemas


class TypedFormats:
    """Refers to no producer: a sender holds it, and must not keep a dropped producer alive.

    Attributes:
        schemas: the versions that are known.

    Args:
        cluster: metadata.
        on_change: called with a topic when new versions of its schema are known.
    """

    def __init__(self, cluster: Cluster, on_change: Callable[[str], None] = lambda topic: None) -> None:
        self.schemas = TopicSchemas(cluster, on_change)
        cluster.listen(self.schemas.in_background)
        self._formats: dict[str, TypedFormat] = {}
        cluster.used_topics.forgotten.append(self._forget)

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._formats.pop(topic, None)

    def current(self, topic: str, topic_id: str) -> TypedFormat | None:
        """The format of a topic that `now` found before, if the format still has the newest known version; else
        None."""
        found, known = self._formats.get(topic), self.schemas.known.get(topic)
        if found is None or known is None or found.schema is not known.newest or found.topic_id != topic_id:
            return None
        return found

    def now(self, topic: str) -> TypedFormat | None:
        """The format of a topic with a schema, None for one without, on any thread; raises SchemaPendingError."""
        known = self.schemas.now(topic)
        if known is None:
            return None
        found = self._formats.get(topic)
        if found is None or found.schema is not known.newest:
            found = self._formats[topic] = TypedFormat(topic, known.topic_id, known.newest)
        return found
