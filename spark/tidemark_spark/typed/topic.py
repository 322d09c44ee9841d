# SPDX-License-Identifier: Apache-2.0
"""Finds the schema of the topic that a read or a write names.

Spark requests the columns in a separate process, so the check for a schema imports few modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidemark_spark.common_options import parse_bootstrap, parse_client_id, parse_tls, parse_token_file, parse_whole

if TYPE_CHECKING:
    from tidemark.client.consuming.range_reader import RangeReader
    from tidemark.core.cluster_view import TopicView
    from tidemark.core.schemas.model import TopicSchema

_DEADLINE_MS: Final = 60_000


class SchemaChangeError(RuntimeError):
    """The schema of a topic changed while a query reads the topic, or `load` found another topic."""


@dataclass(frozen=True, slots=True)
class TypedTopic:
    """A topic with a schema.

    Attributes:
        name: name of the topic.
        topic_id: uuid; a recreated topic has another uuid.
        versions: versions of the schema by number, without a gap; at least one.
        version: the version that a read names; 0: the newest.
    """

    name: str
    topic_id: str
    versions: Mapping[int, TopicSchema]
    version: int = 0

    @property
    def schema(self) -> TopicSchema:
        """The version of reads and writes: the newest, or the named version."""
        return self.versions[self.version or max(self.versions)]

    def named(self, text: str | None) -> TypedTopic:
        """The topic with the version of the option `schemaVersion`; raises ValueError."""
        if text is None:
            return self
        version = parse_whole(text)
        if version is None or version not in self.versions:
            raise ValueError(
                f"option 'schemaVersion' is {text!r}; topic {self.name} has versions 1 to {max(self.versions)}"
            )
        return replace(self, version=version)


def typed_topic(given: Mapping[str, str], topic: str) -> TypedTopic | None:
    """The schema of a topic; None: the topic has none.

    Args:
        given: options by lower-case name.
        topic: name of the topic.

    Raises:
        ValueError: for a wrong option.
        TidemarkError: UNKNOWN_TOPIC; REQUEST_TIMED_OUT with the cause for each address.
    """
    from tidemark.client.metadata.blocking_cluster import BlockingCluster
    from tidemark.client.metadata.tls import Credentials
    from tidemark.client.typed.blocking_schemas import schemas_of

    deadline_ms = parse_whole(given.get("deadlinems", "").strip()) or _DEADLINE_MS
    with BlockingCluster(
        parse_bootstrap(given),
        deadline_s=deadline_ms / 1000,
        tls=Credentials(parse_tls(given), parse_token_file(given)),
        client_id=parse_client_id(given),
    ) as cluster:
        view = cluster.topics([topic])[topic]
        versions = schemas_of(cluster, topic) if view.schema_version else {}
    return TypedTopic(topic, view.topic_id, versions) if versions else None


def with_schema(reader: RangeReader, view: TopicView) -> TypedTopic | None:
    """The schema of a topic that is known; None: the topic has none."""
    if not view.schema_version:
        return None
    return TypedTopic(view.topic, view.topic_id, reader.schemas(view.topic))


def check_same(topic: TypedTopic, found: Mapping[str, TopicView]) -> None:
    """Check that a topic is still the one that `load` found; raises SchemaChangeError."""
    view = found.get(topic.name)
    if view is not None and view.topic_id != topic.topic_id:
        raise SchemaChangeError(
            f"topic {topic.name} was deleted and created again (id {view.topic_id}, not {topic.topic_id}): "
            "load() it again"
        )


def check_version(topic: TypedTopic, found: Mapping[str, TopicView]) -> None:
    """Check that the schema has no newer version than `load` found or named; raises SchemaChangeError."""
    if topic.version:
        return
    view = found.get(topic.name)
    newest = max(topic.versions)
    if view is not None and view.topic_id == topic.topic_id and view.schema_version > newest:
        raise SchemaChangeError(
            f"topic {topic.name} has version {view.schema_version} of its schema, and the query began with version "
            f"{newest}. Start it again, with a new load(); schemaChange=latestAtRestart continues until then"
        )
