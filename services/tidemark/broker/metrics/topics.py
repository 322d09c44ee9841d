# SPDX-License-Identifier: Apache-2.0
"""Bytes and records of producers and consumers by topic: sums kept on the event loop, written for each scrape."""

from __future__ import annotations

from collections.abc import Collection

from tidemark.model import TopicPartition
from tidemark.runtime.metrics import LABEL_SETS_MAX, OTHER, LabelLimit
from tidemark.runtime.metrics_text import family, labels


class _Traffic:
    __slots__ = ("fetched_bytes", "produced_bytes", "produced_records")

    def __init__(self) -> None:
        self.produced_bytes = self.produced_records = self.fetched_bytes = 0


class TopicMetrics:
    """A source of metrics as text. Topics beyond the limit share one label; topics without a replica here are
    removed."""

    def __init__(self, limit: int = LABEL_SETS_MAX) -> None:
        self._limit = LabelLimit(limit)
        self._traffic: dict[str, _Traffic] = {}

    def produced(self, topic: str, size_bytes: int, records: int) -> None:
        """Count appended batches of a producer."""
        traffic = self._traffic.get(topic) or self._of(topic)
        traffic.produced_bytes += size_bytes
        traffic.produced_records += records

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Count bytes of one partition sent to a consumer."""
        (self._traffic.get(topic) or self._of(topic)).fetched_bytes += size_bytes

    def keep(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the topics that have none of these partitions."""
        here = {partition.topic for partition in partitions}
        for topic in [topic for topic in self._traffic if topic not in here and topic != OTHER]:
            del self._traffic[topic]
            self._limit.forget(topic)

    def render(self, names: Collection[str] = ()) -> str:
        """The three families of metrics as text."""
        found = [(labels(topic=topic), traffic) for topic, traffic in list(self._traffic.items())]
        return (
            family(
                "tidemark_topic_produced_bytes_total",
                "counter",
                "Bytes of producers that were appended",
                [(of, traffic.produced_bytes) for of, traffic in found],
            )
            + family(
                "tidemark_topic_produced_records_total",
                "counter",
                "Records of producers that were appended",
                [(of, traffic.produced_records) for of, traffic in found],
            )
            + family(
                "tidemark_topic_fetched_bytes_total",
                "counter",
                "Bytes sent to consumers",
                [(of, traffic.fetched_bytes) for of, traffic in found],
            )
        )

    def _of(self, topic: str) -> _Traffic:
        (name,) = self._limit.admit(topic)
        return self._traffic.setdefault(name, _Traffic())
