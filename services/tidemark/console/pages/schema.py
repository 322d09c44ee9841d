# SPDX-License-Identifier: Apache-2.0
"""The versions of a topic's schema, the newest first, each with its columns and its differences to the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemark.client.aio.admin.topic_schemas import StoredSchema, TopicSchemas
from tidemark.console.page import Asked, View
from tidemark.console.pages.cluster import SLOW_LIFE_MS
from tidemark.console.pages.paging import part_of
from tidemark.console.pages.topic import columns_of, topic_of
from tidemark.core.schemas.differences import Difference, history

VERSIONS: Final = 20
"""Number of versions on a page."""


async def load(asked: Asked) -> View:
    """The page `/topics/{topic}/schema?page=NUMBER`."""
    view = await topic_of(asked)
    described: TopicSchemas = await asked.need_admin(
        "schemas", lambda admin: admin.describe_topic_schemas(view.topic), key=view.topic, life_ms=SLOW_LIFE_MS
    )
    changes = history(one.schema for one in described.versions)
    newest_first = list(zip(described.versions, changes, strict=True))[::-1]
    part = part_of(newest_first, asked.query, size=VERSIONS)
    data = {
        "topic": view.topic,
        "compatibility": described.compatibility,
        "versions": [_facts(view.topic, *one) for one in part.rows],
        **part.facts(),
    }
    return View(f"Schema of {view.topic}", f"tidemark schema history {view.topic}", data)


def _facts(topic: str, stored: StoredSchema, changes: Sequence[Difference]) -> dict[str, object]:
    version = stored.schema.version
    return {
        **columns_of(stored.schema),
        "version": version,
        "created_at_ms": stored.created_at_ms,
        "differences": [one.sentence for one in changes],
        "command": f"tidemark schema diff {topic} --from {version - 1} --to {version}" if version > 1 else "",
    }
