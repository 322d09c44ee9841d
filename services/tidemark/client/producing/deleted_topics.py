# SPDX-License-Identifier: Apache-2.0
"""Detects topics that were deleted or recreated, so that their records fail immediately.

A batch carries the topic id (rules F4, C7), so a broker refuses it for another topic of that name. Without this module
the batch would be retried until its delivery timeout.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, unknown_partition

_GONE_S: Final = 2.0
"""Time for which a topic must be missing to count as deleted: a broker that has just started knows no topics."""


class DeletedTopics:
    """Finds the topics of one producer that were deleted or recreated; used on the event loop of the producer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pinned: dict[str, str] = {}
        self._since_s: dict[TopicPartition, float] = {}

    def pin(self, topic: str, topic_id: str) -> None:
        """Let all later records of the name be records of the topic with that id: none go to a recreated topic."""
        self._pinned[topic] = topic_id

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic for the next records of that name; "" if unknown."""
        return self._pinned.get(topic) or self._known(topic)

    def _known(self, topic: str) -> str:
        known = self._cluster.topic_now(topic)
        return "" if known is None else known.topic_id

    def recreated(self, topic: str, topic_id: str) -> TidemarkError | None:
        """Return the error for records of the topic with that id, if the name now has another id."""
        if not topic_id or self._known(topic) in ("", topic_id):
            return None
        return recreated(topic, is_final=topic in self._pinned)

    def verdict(self, partition: TopicPartition, topic_id: str, now_s: float) -> TidemarkError | None:
        """Return the error for the records of a partition that was deleted; None if it exists; `now_s` is monotonic."""
        recreated = self.recreated(partition.topic, topic_id)
        error = recreated or self._missing(partition)
        if error is None:
            self._since_s.pop(partition, None)
            return None
        if recreated is None and now_s - self._since_s.setdefault(partition, now_s) < _GONE_S:
            return None
        self._since_s.pop(partition, None)
        return error

    def keep(self, partitions: Container[TopicPartition]) -> None:
        """Forget since when other partitions are missing: they have no records that wait."""
        for partition in [one for one in self._since_s if one not in partitions]:
            del self._since_s[partition]

    def _missing(self, partition: TopicPartition) -> TidemarkError | None:
        """Return the error that the metadata has for the partition."""
        view = self._cluster.view.topics.get(partition.topic)
        error = None if view is None else view.error
        if view is None or error is not None:
            return error if error is not None and error.code is ErrorCode.UNKNOWN_TOPIC else None
        if view.partitions and partition.partition >= view.count:
            return unknown_partition(*partition, view.count)
        return None


def recreated(topic: str, *, is_final: bool = False) -> TidemarkError:
    """Make the error for records of an earlier topic of this name; `is_final`: the producer sends no records to the new
    topic.
    """
    later = "no records of this producer" if is_final else "later records"
    sentence = f"{topic} was deleted and created again; {later} go to the new topic"
    return TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, sentence)
