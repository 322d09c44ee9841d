# SPDX-License-Identifier: Apache-2.0
"""Topics that are deleted, or made anew, under a producer: when that is believed, and what becomes of its records.

A batch says which topic it is meant for by its id (rules F4, C7), so that brokers refuse it for the next one of that
name. What was sent before that is known fails at once, and does not wait for its delivery timeout.
"""

from __future__ import annotations

from typing import Final

from tidemark.client.metadata.cluster import Cluster, unknown_partition
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

_GONE_S: Final = 2.0
"""So long a topic may be missing before it is believed to be deleted: a broker that has just started knows none."""


class Vanished:
    """One producer's, on its event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since_s: dict[TopicPartition, float] = {}

    def topic_id(self, topic: str) -> str:
        """Of the topic of that name as far as is known; else empty."""
        known = self._cluster.topic_now(topic)
        return "" if known is None else known.topic_id

    def made_anew(self, topic: str, topic_id: str) -> TidemarkError | None:
        """What records for the topic of that id fail with, if the name is another one's by now."""
        if not topic_id or self.topic_id(topic) in ("", topic_id):
            return None
        return TidemarkError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"{topic} was deleted and created again; what is sent now goes to the new one"
        )

    def verdict(self, partition: TopicPartition, topic_id: str, now_s: float) -> TidemarkError | None:
        """What the records of a partition fail with, if it is gone for good; `now_s` is monotonic."""
        anew = self.made_anew(partition.topic, topic_id)
        told = anew or self._missing(partition)
        if told is None:
            self._since_s.pop(partition, None)
            return None
        if anew is None and now_s - self._since_s.setdefault(partition, now_s) < _GONE_S:
            return None
        self._since_s.pop(partition, None)
        return told

    def _missing(self, partition: TopicPartition) -> TidemarkError | None:
        """What brokers say of it."""
        view = self._cluster.view.topics.get(partition.topic)
        if view is None or view.error is not None:
            return None if view is None else view.error
        if view.partitions and partition.partition not in view.partitions:
            return unknown_partition(partition, len(view.partitions))
        return None
