# SPDX-License-Identifier: Apache-2.0
"""The methods of the async AdminClient for schemas of typed topics."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.client.argument_types import flag, int32
from tidemark.client.schemas import SchemaGiven, document_text
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.refusals import naming
from tidemark.core.schemas.text import from_text
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import topic_schemas_pb2 as pb


class StoredSchema(NamedTuple):
    """One version of a topic's schema.

    Attributes:
        schema: the version.
        created_at_ms: milliseconds since 1970, UTC.
    """

    schema: TopicSchema
    created_at_ms: int


class AlteredSchema(NamedTuple):
    """Result of `alter_topic_schema`.

    Attributes:
        schema: the version that was made, or would be made; the newest version if the columns are the same.
        changed: whether a version was made, or would be made.
        differences: differences from the version before, one sentence each.
    """

    schema: TopicSchema
    changed: bool
    differences: tuple[str, ...]


class TopicSchemas(NamedTuple):
    """Result of `describe_topic_schemas`.

    Attributes:
        topic_id: id of the topic.
        versions: the versions in order; none for a topic without a schema.
        compatibility: the topic's schema.compatibility.
    """

    topic_id: str
    versions: tuple[StoredSchema, ...]
    compatibility: str


class SchemaCalls:
    """Schemas of topics. A part of `AdminClient`, which has its methods."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def alter_topic_schema(
        self,
        topic: str,
        schema: SchemaGiven,
        *,
        expected_version: int = 0,
        validate_only: bool = False,
        request_id: str = "",
    ) -> AlteredSchema:
        """Make a new version of the schema of a typed topic; columns keep their ids by their names.

        Args:
            topic: name of the topic.
            schema: all columns of the new version; `renamed_from` keeps the id of a column with another name.
            expected_version: the version that the new one follows; 0: the newest one when the request arrives.
            validate_only: check the request and compute the result, change nothing.
            request_id: makes a retry safe.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; INVALID_SCHEMA, also for a topic that was created without a schema;
                INCOMPATIBLE_SCHEMA; SCHEMA_CONFLICT: the newest version is not the expected one.

        Example: `await admin.alter_topic_schema("flights", "carrier STRING, delay BIGINT", expected_version=1)`
        """
        with naming(topic):
            stated = document_text(schema)
        request = pb.AlterTopicSchemaRequest(
            topic=topic,
            schema=stated,
            expected_version=int32("expected_version", expected_version),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.AlterTopicSchema, request)
        return AlteredSchema(from_text(response.schema.text), response.changed, tuple(response.differences))

    async def describe_topic_schemas(self, topic: str) -> TopicSchemas:
        """Describe every version of the schema of a topic.

        Args:
            topic: name of the topic.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; INVALID_SCHEMA: a version's node in ZooKeeper is damaged, or the version is of
                a later Tidemark.

        Example: `newest = (await admin.describe_topic_schemas("flights")).versions[-1].schema`
        """
        request = pb.DescribeTopicSchemasRequest(topic=topic)
        response = await self._connection.call(lambda stub: stub.DescribeTopicSchemas, request)
        damaged = [one.version for one in response.schemas if not one.text]
        if damaged:
            sentence = f"version {damaged[0]} of the schema of {topic} is damaged: put its node back as it was"
            raise TidemarkError(ErrorCode.INVALID_SCHEMA, sentence, {"topic": topic, "version": str(damaged[0])})
        versions = tuple(StoredSchema(from_text(one.text), one.created_at_ms) for one in response.schemas)
        return TopicSchemas(response.topic_id, versions, response.compatibility)
