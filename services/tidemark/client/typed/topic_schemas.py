# SPDX-License-Identifier: Apache-2.0
"""The versions of topics' schemas that a client knows; the client asks any broker for unknown versions (rule S4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tidemark.client.metadata.backoff import AttemptTimeout, Backoff
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.text import from_text
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import topic_schemas_pb2 as pb

_CALL_S: Final = 5.0
_LOOK_AGAIN_S: Final = 5.0
"""Shortest time between two requests for a version that metadata has not announced."""
_LOOK_S: Final = 1.0
"""Duration of this lookup: a new version may not have reached the brokers yet."""

Versions = Mapping[int, TopicSchema]


class KnownSchemas(NamedTuple):
    """The versions of one topic. An instance never changes, and is replaced by a new one.

    Attributes:
        topic_id: a recreated topic has another id, and does not have these versions.
        versions: schemas by version, from 1 without a gap; at least one.
        newest: the newest version.
    """

    topic_id: str
    versions: Versions
    newest: TopicSchema


class SchemaPendingError(TidemarkError):
    """The topic has a schema that the client has not requested yet."""

    def __init__(self, topic: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SCHEMA_VERSION, f"the schema of topic {topic} is not known yet")


class TopicPendingError(SchemaPendingError):
    """Metadata do not have the topic, possibly only for a short time: the topic may have no schema."""


def versions_of(response: pb.GetTopicSchemasResponse) -> dict[int, TopicSchema]:
    """The versions of a response; raises INVALID_SCHEMA for a schema of a later Tidemark."""
    return {one.version: from_text(one.text) for one in response.schemas}


class TopicSchemas:
    """The schemas of topics that a client uses; used on one event loop, but any thread may call `now`.

    Args:
        cluster: metadata, which names the newest version of each topic, and the brokers.
        on_change: called with a topic when new versions of its schema are known.

    Attributes:
        known: the versions that were loaded last, by topic; the metadata may have changed since.
    """

    def __init__(self, cluster: Cluster, on_change: Callable[[str], None] = lambda topic: None) -> None:
        self._cluster = cluster
        self._on_change = on_change
        self.known: dict[str, KnownSchemas] = {}
        self._loading: dict[str, asyncio.Task[KnownSchemas]] = {}
        self._looked_s: dict[str, float] = {}
        self._attempt = AttemptTimeout(_CALL_S)
        cluster.used_topics.forgotten.append(self._forget)

    def now(self, topic: str) -> KnownSchemas | None:
        """The known versions; None for a topic without a schema.

        Metadata may lose the topic for a short time, if a broker answers that does not know the topic yet. Then the
        versions are kept.

        Raises:
            SchemaPendingError: `load` first.
        """
        view = self._cluster.topic_now(topic)
        known = self.known.get(topic)
        if view is None and known is None:
            raise TopicPendingError(topic)
        if view is None:
            return known
        if not view.schema_version:
            return None
        if known is None or known.topic_id != view.topic_id:
            raise SchemaPendingError(topic)
        return known

    async def load(self, topic: str, *, timeout_s: float, version: int = 0) -> KnownSchemas | None:
        """Learn every version up to the newest that metadata names, or up to `version` if that is larger.

        Returns:
            The versions; None for a topic without a schema.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; UNKNOWN_SCHEMA_VERSION and other errors after `timeout_s`; INVALID_SCHEMA: the
                schema is of a later version of Tidemark.
        """
        view = await self._cluster.topic(topic, timeout_s=timeout_s)
        if not view.schema_version:
            return None
        deadline_s = time.monotonic() + timeout_s
        backoff = Backoff()
        while True:
            known = self.known.get(topic)
            wanted = max(view.schema_version, version)
            if known is not None and known.topic_id == view.topic_id and wanted in known.versions:
                return known
            try:
                await self._load_shared(topic, view.topic_id, wanted)
            except TidemarkError as error:
                pause_s = backoff.next_s()
                if not error.retriable or time.monotonic() + pause_s > deadline_s:
                    raise
                await asyncio.sleep(pause_s)
            view = self._cluster.topic_now(topic) or view

    async def look_for_newer(self, topic: str) -> bool:
        """Request the version after the newest known one, at most every few seconds; returns whether that version
        exists.
        """
        known = self.known.get(topic)
        now_s = time.monotonic()
        if known is None or now_s < self._looked_s.get(topic, -_LOOK_AGAIN_S) + _LOOK_AGAIN_S:
            return False
        self._looked_s[topic] = now_s
        try:
            await self.load(topic, timeout_s=_LOOK_S, version=max(known.versions) + 1)
        except TidemarkError:
            return False
        return True

    def in_background(self) -> None:
        """Load new versions that metadata names, for topics whose schema is used; called when the metadata change."""
        for topic, known in self.known.items():
            view = self._cluster.topic_now(topic)
            if view is not None and view.schema_version > max(known.versions):
                self._task(topic, view.topic_id, view.schema_version)

    async def close(self) -> None:
        """Cancel the requests in flight."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self.known.pop(topic, None)
            self._looked_s.pop(topic, None)
            if (task := self._loading.get(topic)) is not None and task.done():
                del self._loading[topic]

    async def _load_shared(self, topic: str, topic_id: str, version: int) -> None:
        await asyncio.shield(self._task(topic, topic_id, version))

    def _task(self, topic: str, topic_id: str, version: int) -> asyncio.Task[KnownSchemas]:
        task = self._loading.get(topic)
        if task is None or task.done():
            task = self._loading[topic] = asyncio.create_task(self._ask(topic, topic_id, version), name="schemas")
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task

    async def _ask(self, topic: str, topic_id: str, version: int) -> KnownSchemas:
        known = self.known.get(topic)
        before = known.versions if known is not None and known.topic_id == topic_id else {}
        # explicit versions, so that a broker cannot answer with fewer
        missing = range(max(before, default=0) + 1, version + 1)
        found = await self._request(topic, topic_id, missing)
        versions = {**before, **found}
        if version not in versions:
            sentence = f"the brokers know no version {version} of the schema of {topic} yet"
            raise TidemarkError(ErrorCode.UNKNOWN_SCHEMA_VERSION, sentence)
        known = self.known[topic] = KnownSchemas(topic_id, versions, versions[max(versions)])
        self._on_change(topic)
        return known

    async def _request(self, topic: str, topic_id: str, versions: Iterable[int]) -> dict[int, TopicSchema]:
        """Request the schema from the brokers in turn, until one answers."""
        request = pb.GetTopicSchemasRequest(topic=topic, topic_id=topic_id, versions=versions)
        return versions_of(
            await self._cluster.ask_in_turn(
                lambda stub, timeout_s: stub.GetTopicSchemas(
                    request, timeout=timeout_s, metadata=self._cluster.headers
                ),
                self._attempt,
            )
        )
