# SPDX-License-Identifier: Apache-2.0
"""Finds the schema of the topic that a read or a write names.

Spark requests the columns in a separate process, so the check for a schema imports few modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidemark_spark.common_options import parse_bootstrap, parse_client_id, parse_tls, parse_token_file, parse_whole

if TYPE_CHECKING:
    from tidemark.client.consuming.range_reader import RangeReader
    from tidemark.client.metadata.tls import Credentials
    from tidemark.core.cluster_view import TopicView
    from tidemark.core.schemas.model import TopicSchema
    from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

_CALL_S: Final = 2.0
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
        TidemarkError: UNKNOWN_TOPIC; REQUEST_TIMED_OUT with the cause of each address.
    """
    from tidemark.client.metadata.tls import Credentials

    bootstrap, credentials = parse_bootstrap(given), Credentials(parse_tls(given), parse_token_file(given))
    found = _quickly(bootstrap, credentials, topic)
    if found is not None:
        return found if found.versions else None
    from tidemark.client.consuming.range_reader import RangeReader

    text = given.get("deadlinems", "").strip()
    deadline_ms = parse_whole(text) or _DEADLINE_MS
    with RangeReader(
        bootstrap, deadline_s=deadline_ms / 1000, tls=credentials, client_id=parse_client_id(given)
    ) as reader:
        return with_schema(reader, reader.topics([topic])[topic])


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


def _quickly(bootstrap: str, credentials: Credentials, topic: str) -> TypedTopic | None:
    """The topic, without versions if it has no schema, by one attempt at each address; None: no broker answered."""
    import grpc
    from tidemark.client.metadata.bootstrap import parse_bootstrap as addresses_of
    from tidemark.client.metadata.tls import client_identity
    from tidemark.model import host_port
    from tidemark.rpc.channel import blocking_channels
    from tidemark.v1.broker_service_pb2 import GetMetadataRequest
    from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

    channels = blocking_channels(client_identity(credentials))
    try:
        for address in addresses_of(bootstrap):
            stub = BrokerServiceStub(channels.get(address))
            try:
                view = stub.GetMetadata(GetMetadataRequest(topics=[topic]), timeout=_CALL_S).metadata
                for found in view.topics:
                    if found.topic != topic or found.HasField("error"):
                        continue
                    if not found.schema_version:
                        return TypedTopic(topic, found.topic_id, {})
                    brokers = {one.broker_id: host_port(one.host, one.port) for one in view.brokers}
                    leaders = {one.leader for one in found.partitions} & brokers.keys()
                    if leaders:
                        stubs = [BrokerServiceStub(channels.get(brokers[leader])) for leader in sorted(leaders)]
                        return TypedTopic(topic, found.topic_id, _versions(stubs, topic, found.topic_id))
            except grpc.RpcError:
                continue
    finally:
        channels.close()
    return None


def _versions(leaders: Iterable[BrokerServiceStub], topic: str, topic_id: str) -> dict[int, TopicSchema]:
    """All versions that a leader knows: another broker may not know the newest version yet."""
    from tidemark.core.schemas.text import from_text
    from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest

    request = GetTopicSchemasRequest(topic=topic, topic_id=topic_id)
    answers = [leader.GetTopicSchemas(request, timeout=_CALL_S) for leader in leaders]
    texts = {one.version: one.text for answer in answers for one in answer.schemas}
    return {version: from_text(text) for version, text in texts.items()}
