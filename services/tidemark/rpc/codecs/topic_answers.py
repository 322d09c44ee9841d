# SPDX-License-Identifier: Apache-2.0
"""Reads successive answers about many topics: an unchanged topic keeps its object, and is not decoded again."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.core.cluster_view import TopicView
from tidemark.rpc.codecs.metadata import topic_from_proto
from tidemark.runtime.slices import InSlices
from tidemark.v1 import metadata_pb2


class TopicReader:
    """Reads the answers of one client; between slices of the work other tasks of the event loop run."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, TopicView]] = {}
        """The message and its view by topic, of the last answer about all topics."""

    async def read(self, messages: Iterable[metadata_pb2.TopicMetadata], *, complete: bool) -> list[TopicView]:
        """The topics in the order of the messages; `complete`: of an answer about all topics."""
        seen = {}
        views = []
        async for message in InSlices(messages):
            serialized = message.SerializeToString(deterministic=True)
            known = self._known.get(message.topic)
            if known is None or known[0] != serialized:
                known = serialized, topic_from_proto(message)
            seen[message.topic] = known
            views.append(known[1])
        if complete:
            self._known = seen
        return views
