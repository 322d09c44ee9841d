# SPDX-License-Identifier: Apache-2.0
"""GetTopicSchemas: the versions of a topic's schema, from any broker (rule S4)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.topic_settings import TopicSchemas, TopicTable
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode, TidemarkError
from tidemark.v1 import topic_schemas_pb2 as pb
from tidemark.zookeeper.store import MetadataStore

_KEPT_TOPICS_MAX: Final = 1_000
_KEPT_CHARACTERS_MAX: Final = 16 << 20
"""Largest size, in characters, of the kept versions that were read in ZooKeeper."""


class SchemaReads:
    """Answers from the versions that the controller sent. A broker without a replica of the topic was sent no versions,
    and reads the versions in ZooKeeper once metadata names them.

    Attributes:
        _read: versions that were read in ZooKeeper, by topic; the least recently used first.
        _reading: held during a read, so that concurrent callers share it.
    """

    def __init__(self, topics: TopicTable, metadata: MetadataCache, store: MetadataStore) -> None:
        self._topics = topics
        self._metadata = metadata
        self._store = store
        self._read: OrderedDict[str, TopicSchemas] = OrderedDict()
        self._reading = asyncio.Lock()

    async def get(self, request: pb.GetTopicSchemasRequest) -> pb.GetTopicSchemasResponse:
        """The versions that the request names, or all.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; UNKNOWN_TOPIC_ID; UNKNOWN_SCHEMA_VERSION for a version that this broker has
                not received; COORDINATION_UNAVAILABLE.
        """
        view = self._view(request.topic, request.topic_id)
        texts = self._sent(view)
        wanted = sorted(set(request.versions)) or range(1, max(view.schema_version, *texts, 0) + 1)
        if any(not texts.get(version) for version in wanted if 1 <= version <= view.schema_version):
            texts = await self._in_zookeeper(view)
        for version in wanted:
            if not texts.get(version):
                raise _unknown(view, version, damaged=version in texts)
        schemas = [pb.SchemaVersion(version=version, text=texts[version]) for version in wanted]
        return pb.GetTopicSchemasResponse(topic_id=view.topic_id, schemas=schemas)

    def _view(self, topic: str, topic_id: str) -> TopicView:
        view = self._metadata.view.topics.get(topic)
        if view is None:
            raise self._metadata.unknown(topic)
        if topic_id and topic_id != view.topic_id:
            raise TidemarkError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"{topic} has the id {view.topic_id}, not {topic_id}: it was deleted and created again",
                {"topic": topic, "topic_id": view.topic_id},
            )
        return view

    def _sent(self, view: TopicView) -> Mapping[int, str]:
        sent = self._topics.schema_texts(view.topic)
        return sent.texts if sent.topic_id == view.topic_id else {}

    async def _in_zookeeper(self, view: TopicView) -> Mapping[int, str]:
        async with self._reading:
            known = self._read.get(view.topic)
            if known is not None and known.topic_id == view.topic_id and known.texts.get(view.schema_version):
                self._read.move_to_end(view.topic)
                return known.texts
            found = (await self._store.topics([view.topic])).get(view.topic)
            if found is None or found.topic_id != view.topic_id:
                raise _unknown(view, view.schema_version)  # metadata will show that the topic was deleted
            texts = {version: schema.text for version, schema in found.schemas.items()}
            self._keep(view.topic, TopicSchemas(found.topic_id, texts))
            return texts

    def _keep(self, topic: str, read: TopicSchemas) -> None:
        self._read.pop(topic, None)
        self._read[topic] = read
        sizes = {name: sum(map(len, one.texts.values())) for name, one in self._read.items()}
        while len(sizes) > 1 and (len(sizes) > _KEPT_TOPICS_MAX or sum(sizes.values()) > _KEPT_CHARACTERS_MAX):
            del sizes[self._read.popitem(last=False)[0]]


def _unknown(view: TopicView, version: int, *, damaged: bool = False) -> TidemarkError:
    why = "its ZooKeeper node is damaged" if damaged else f"the newest one here is {view.schema_version}"
    return TidemarkError(
        ErrorCode.UNKNOWN_SCHEMA_VERSION,
        f"this broker knows no version {version} of the schema of {view.topic}: {why}",
        {"topic": view.topic, "version": str(version), "newest_version": str(view.schema_version)},
    )
