# SPDX-License-Identifier: Apache-2.0
"""The key `schema` of a topic in the file of `tidemark apply`: its value, and the change that it requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tidemark.cli.common.schema_source import draft_of, is_file
from tidemark.core.schemas.compatibility import COMPATIBILITY, Compatibility
from tidemark.core.schemas.differences import differences
from tidemark.core.schemas.document import draft_from_document
from tidemark.core.schemas.evolution import next_version
from tidemark.core.schemas.model import SchemaDraft
from tidemark.core.schemas.refusals import naming
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.configuration.settings import topic_settings

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.client.aio.admin.topic_schemas import TopicSchemas


def draft_in(node: yaml.Node, directory: Path) -> SchemaDraft:
    """The draft in a node: the columns themselves, a DDL, or the path of a schema file, from `directory` on.

    Raises:
        TidemarkError: INVALID_SCHEMA; INVALID_REQUEST for a file that cannot be read.
    """
    if isinstance(node, yaml.ScalarNode):
        text: str = node.value
        return draft_of(str(directory / text) if is_file(text, directory) else text)
    try:
        return draft_from_document(yaml.SafeLoader("").construct_object(node, deep=True))
    except yaml.YAMLError as error:
        raise TidemarkError(ErrorCode.INVALID_SCHEMA, " ".join(str(error).split())) from error


class SchemaChange:
    """The next version of a topic's schema; false if the newest version has these columns.

    Args:
        draft: the columns in the file.
        described: the topic's versions.
        configs: the settings in the file; None: they do not change.

    Raises:
        TidemarkError: INVALID_SCHEMA for a topic without a schema; INCOMPATIBLE_SCHEMA.
    """

    def __init__(
        self, topic: str, draft: SchemaDraft, described: TopicSchemas, configs: Mapping[str, str] | None
    ) -> None:
        if not described.versions:
            raise TidemarkError(
                ErrorCode.INVALID_SCHEMA, f"topic {topic} was created without a schema, and stays so: remove the key"
            )
        self._topic, self._draft = topic, draft
        current = described.versions[-1].schema
        rule = described.compatibility
        if configs is not None:
            explicit = {key: value for key, value in configs.items() if key == COMPATIBILITY}
            rule = topic_settings(explicit).schema_compatibility
        self._expected_version = current.version
        self._changes_rule = rule != described.compatibility
        with naming(topic):
            following = next_version(current, draft, Compatibility(rule))
        self._sentences = [one.sentence for one in differences(current, following)]
        self._is_new = following.version != current.version

    def __bool__(self) -> bool:
        return self._is_new

    @property
    def summary(self) -> str:
        """The versions before and after, and the differences."""
        first = self._expected_version
        return f"version {first} -> {first + 1} of the schema: {'; '.join(self._sentences)}"

    def run(self, client: AdminClient, validate_only: bool, request_id: str) -> Sequence[str]:
        """Make the version. The service cannot validate the change before the topic has the compatibility rule of the
        file."""
        if validate_only and self._changes_rule:
            return ()
        client.alter_topic_schema(
            self._topic,
            self._draft,
            expected_version=self._expected_version,
            validate_only=validate_only,
            request_id=request_id,
        )
        return ()
