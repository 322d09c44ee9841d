# SPDX-License-Identifier: Apache-2.0
"""Plans, writes and describes versions of topics' schemas; a write takes effect only on the version that was checked
(rule S2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.admin.views import existing_topic
from tidemark.core.schemas.compatibility import COMPATIBILITY, Compatibility
from tidemark.core.schemas.differences import differences
from tidemark.core.schemas.document import draft_from_document
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import SchemaDraft, TopicSchema
from tidemark.core.schemas.refusals import naming
from tidemark.core.schemas.text import from_text, parse_json, to_text
from tidemark.model import ErrorCode, SchemaText, TidemarkError, TopicDescription
from tidemark.ports import AdminRequest, Clock
from tidemark.runtime.configuration.settings import topic_settings
from tidemark.zookeeper.store import MetadataStore
from tidemark.zookeeper.topic_schemas import nodes as schema_nodes

TEXTS_BYTES_MAX: Final = 8 << 20
"""Bytes of all versions of one topic, so that one message has room for them."""
_POLICY: Final = "cleanup.policy"
_ANY_ID: Final = "0" * 32


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A wanted version of a topic's schema.

    Attributes:
        expected_version: the newest version that the caller knows; 0: the newest one when the request arrives.
    """

    topic: str
    draft: SchemaDraft
    expected_version: int = 0


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """The version that a request leads to.

    Attributes:
        topic: the topic as it was read.
        version: number of the version.
        schema: the version; the newest version if the request changes nothing.
        differences: a sentence for each difference to the version before; empty if the request changes nothing.
    """

    topic: TopicDescription
    version: int
    schema: SchemaText
    differences: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the request makes a new version."""
        return self.version not in self.topic.schemas


class SchemaAdministration:
    """Versions of the schemas of typed topics.

    Args:
        store: started.
        clock: dates the versions.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def first(self, document: str, configs: Mapping[str, str]) -> SchemaText | None:
        """The first version for a new topic with these settings; None for an empty document.

        Raises:
            TidemarkError: INVALID_SCHEMA.
        """
        if not document:
            return None
        schema = first_version(draft_of(document))
        if not schema.key and "compact" in configs.get(_POLICY, ""):
            raise TidemarkError(
                ErrorCode.INVALID_SCHEMA,
                f"{_POLICY}={configs[_POLICY]} keeps the latest record of each key, and the schema has no key columns: "
                "name them as `key`",
            )
        return self._dated(schema)

    async def describe(self, name: str) -> TopicDescription:
        """The topic with every version of its schema; raises INVALID_TOPIC_NAME, UNKNOWN_TOPIC."""
        return await existing_topic(self._store, name)

    async def plan(self, request: SchemaRequest) -> SchemaPlan:
        """Check a change and compute the new version, without a write.

        Raises:
            TidemarkError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC, INVALID_SCHEMA, INCOMPATIBLE_SCHEMA; SCHEMA_CONFLICT if
                the newest version is not the expected one.
        """
        topic = await self.describe(request.topic)
        newest = topic.schema_version
        _check_may_change(topic, request.expected_version)
        current = _understood(topic, newest)
        with naming(request.topic):
            schema = next_version(current, request.draft, Compatibility(compatibility_of(topic.configs)))
        if schema.version == newest:
            return SchemaPlan(topic, newest, topic.schemas[newest], ())
        changes = tuple(one.sentence for one in differences(current, schema))
        plan = SchemaPlan(topic, schema.version, self._dated(schema), changes)
        _check_room(plan)
        return plan

    async def carry_out(self, plan: SchemaPlan, receipt: AdminRequest | None) -> bool:
        """Write the version and the receipt; returns False if the topic changed since the plan."""
        if plan.changed:
            return await self._store.add_schema(plan.topic, plan.version, plan.schema, receipt=receipt)
        if receipt is not None:
            await self._store.finish_request(receipt)
        return True

    async def was_carried_out(self, plan: SchemaPlan) -> bool:
        """Whether the topic has the plan's version, date included: then a write without an answer has succeeded."""
        found = (await self._store.topics([plan.topic.topic])).get(plan.topic.topic)
        return (
            found is not None
            and found.topic_id == plan.topic.topic_id
            and found.schemas.get(plan.version) == plan.schema
        )

    def _dated(self, schema: TopicSchema) -> SchemaText:
        dated = SchemaText(to_text(schema), self._clock.wall_us() // 1000)
        schema_nodes.encode(_ANY_ID, dated)  # refuses a text that no node can hold, also in a dry run
        return dated


def draft_of(document: str) -> SchemaDraft:
    """The draft that the JSON of a schema file states; raises INVALID_SCHEMA."""
    return draft_from_document(parse_json(document))


def compatibility_of(configs: Mapping[str, str]) -> str:
    """The value of schema.compatibility in the settings of a topic."""
    return topic_settings({key: value for key, value in configs.items() if key == COMPATIBILITY}).schema_compatibility


def check_may_be_compacted(topic: TopicDescription, configs: Mapping[str, str]) -> None:
    """Refuse compaction of a typed topic without key columns: INVALID_CONFIG."""
    if topic.schemas and "compact" in configs.get(_POLICY, "") and not _understood(topic, topic.schema_version).key:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"the schema of {topic.topic} has no key columns, and compaction keeps the latest record of each key",
            {"config": _POLICY, "value": configs[_POLICY]},
        )


def _check_may_change(topic: TopicDescription, expected_version: int) -> None:
    newest = topic.schema_version
    if not newest:
        raise TidemarkError(
            ErrorCode.INVALID_SCHEMA,
            f"{topic.topic} was created without a schema, and cannot get one: create another topic with a schema",
            {"topic": topic.topic},
        )
    if expected_version not in (0, newest):
        raise TidemarkError(
            ErrorCode.SCHEMA_CONFLICT,
            f"the newest version of the schema of {topic.topic} is {newest}, not {expected_version}: compare the "
            f"change with version {newest} (`tidemark schema show {topic.topic}`), then send it again",
            {"topic": topic.topic, "version": str(newest), "expected_version": str(expected_version)},
        )


def _check_room(plan: SchemaPlan) -> None:
    size_bytes = sum(len(one.text.encode()) for one in (*plan.topic.schemas.values(), plan.schema))
    if size_bytes > TEXTS_BYTES_MAX:
        raise TidemarkError(
            ErrorCode.INVALID_SCHEMA,
            f"the {plan.version} versions of the schema of {plan.topic.topic} would have {size_bytes} bytes, and a "
            f"topic has at most {TEXTS_BYTES_MAX}. Create another topic for the new schema",
            {"topic": plan.topic.topic, "size_bytes": str(size_bytes)},
        )


def _understood(topic: TopicDescription, version: int) -> TopicSchema:
    text = topic.schemas[version].text
    try:
        if text:
            return from_text(text)
        why = "it is damaged"
    except TidemarkError as error:
        why = error.message
    raise TidemarkError(
        ErrorCode.INTERNAL,
        f"version {version} of the schema of {topic.topic} cannot be read, so no version can follow: {why}",
        {"topic": topic.topic, "version": str(version)},
    )
