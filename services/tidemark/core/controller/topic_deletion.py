# SPDX-License-Identifier: Apache-2.0
"""Topics that are being deleted (rule C4): every live replica lets go, then the nodes go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import DeleteTopic
from tidemark.core.controller.pending_commands import BrokerLink
from tidemark.model import BrokerId, TopicDescription, TopicPartition

_RETRY_MS: Final = 500


@dataclass(slots=True)
class _Deletion:
    topic: TopicDescription
    waiting: set[BrokerId] = field(default_factory=set)
    under_way: bool = False
    retry_at_ms: int = 0


class TopicDeletions:
    """Those asked for, and those under way."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._requested: frozenset[str] = frozenset()
        self._under_way: dict[str, _Deletion] = {}
        self._deleted_ids: set[str] = set()

    def __contains__(self, topic: object) -> bool:
        return topic in self._under_way

    def requested(self, topics: frozenset[str]) -> None:
        """All that are asked for now."""
        self._requested = topics
        self.begin()

    def recreated(self, topic: str) -> None:
        """What was asked was about the one before."""
        self._requested -= {topic}

    def was_deleted(self, topic: TopicDescription) -> bool:
        """Whether this was read before it was deleted."""
        return topic.topic_id in self._deleted_ids

    def forget_ids(self, present: set[str]) -> None:
        """Only these topic ids are still read."""
        self._deleted_ids &= present

    def forget(self, topic: str) -> None:
        """Its node is gone."""
        self._under_way.pop(topic, None)

    def begin(self) -> None:
        """With those that are asked for and known."""
        for name in self._requested:
            topic = self._ctx.topics.get(name)
            if topic is None or name in self._under_way:
                continue
            deletion = self._under_way[name] = _Deletion(topic)
            self._ctx.observe("topic_deletion_begun", None, topic=name)
            for index in topic.partitions:
                record = self._ctx.records[TopicPartition(name, index)]
                # The node's, not the record's: of a settled move those that are being removed still have theirs.
                deletion.waiting |= self._ctx.stop_replicas(record, {*record.assigned, *topic.partitions[index]})

    def broker_left(self, broker: BrokerId) -> None:
        """It is gone, or has returned and does not have to be waited for."""
        for deletion in self._under_way.values():
            deletion.waiting.discard(broker)

    def stopped(self, broker: BrokerId, link: BrokerLink) -> None:
        """It has let go of some replicas."""
        open_topics = {partition.topic for partition in link.stopping} if self._under_way else set()
        for name, deletion in self._under_way.items():
            if name not in open_topics:
                deletion.waiting.discard(broker)

    def go_on(self, now_ms: int) -> None:
        """Where every live replica has let go the nodes may go."""
        for deletion in self._under_way.values():
            if deletion.waiting or deletion.under_way or now_ms < deletion.retry_at_ms:
                continue
            topic = self._ctx.topics[deletion.topic.topic]  # it may have gained or lost partitions since
            if not any(self._ctx.records[TopicPartition(topic.topic, index)].busy for index in topic.partitions):
                deletion.under_way = True
                self._ctx.emit(DeleteTopic(topic))

    def answered(self, event: ev.TopicDeleted, now_ms: int) -> bool:
        """Whether the nodes of this topic are gone."""
        deletion = self._under_way.get(event.topic)
        if deletion is None or deletion.topic.topic_id != event.topic_id:
            return False
        if event.error is not None:
            deletion.under_way = False
            deletion.retry_at_ms = now_ms + _RETRY_MS
            return False
        self._ctx.observe("topic_deleted", None, topic=event.topic)
        self._requested -= {event.topic}
        self._deleted_ids.add(deletion.topic.topic_id)
        return True
