# SPDX-License-Identifier: Apache-2.0
"""Deletion of topics: every live broker deletes its replicas, then the topic's nodes are deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import DeleteTopic
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.model import BrokerId, TopicDescription, TopicPartition

_RETRY_MS: Final = 500


@dataclass(slots=True)
class _Deletion:
    """The progress of the deletion of one topic.

    Attributes:
        topic: its node when the deletion began.
        waiting: live brokers that have not acknowledged StopReplica yet.
        in_flight: the deletion of the nodes is in flight. Invariant: only once `waiting` is empty.
        retry_at_ms: time of the next attempt.
    """

    topic: TopicDescription
    waiting: set[BrokerId] = field(default_factory=set)
    in_flight: bool = False
    retry_at_ms: int = 0


class TopicDeletions:
    """Requested and running deletions.

    Attributes:
        _requested: children of /admin/delete_topics as last read.
        _under_way: running deletions by topic.
        _deleted_ids: topic ids that this controller deleted, while stale reads may still name them.
    """

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._requested: frozenset[str] = frozenset()
        self._under_way: dict[str, _Deletion] = {}
        self._deleted_ids: set[str] = set()

    def __contains__(self, topic: object) -> bool:
        return topic in self._under_way

    def requested(self, topics: frozenset[str]) -> None:
        """Replace the requested deletions by `topics`, and begin them."""
        self._requested = topics
        self.begin()

    def recreated(self, topic: str) -> None:
        """A new topic has this name: the request was about the topic before."""
        self._requested -= {topic}

    def was_deleted(self, topic: TopicDescription) -> bool:
        """Whether this controller deleted the topic, so that this read is from before."""
        return topic.topic_id in self._deleted_ids

    def forget_ids(self, present: set[str]) -> None:
        """Drop the deleted topic ids that reads no longer name."""
        self._deleted_ids &= present

    def forget(self, topic: str) -> None:
        """Note that the topic's node was deleted."""
        self._under_way.pop(topic, None)

    def begin(self) -> None:
        """Begin requested deletions of known topics."""
        for name in self._requested:
            topic = self._ctx.topics.get(name)
            if topic is None or name in self._under_way:
                continue
            deletion = self._under_way[name] = _Deletion(topic)
            self._ctx.observe("topic_deletion_begun", None, topic=name)
            for index in topic.partitions:
                partition_state = self._ctx.partitions[TopicPartition(name, index)]
                # The node names replicas that a reassignment removes and that may not be deleted yet.
                deletion.waiting |= self._ctx.stop_replicas(
                    partition_state, {*partition_state.assigned, *topic.partitions[index]}
                )

    def broker_left(self, broker: BrokerId) -> None:
        """Note that a broker's registration ended or was replaced: its replicas are deleted when it next registers."""
        for deletion in self._under_way.values():
            deletion.waiting.discard(broker)

    def stopped(self, broker: BrokerId, pending: PendingCommands) -> None:
        """Note that the broker has acknowledged a StopReplica."""
        open_topics = {partition.topic for partition in pending.stopping} if self._under_way else set()
        for name, deletion in self._under_way.items():
            if name not in open_topics:
                deletion.waiting.discard(broker)

    def go_on(self, now_ms: int) -> None:
        """Delete the nodes of topics whose replicas are deleted on every live broker."""
        for deletion in self._under_way.values():
            if deletion.waiting or deletion.in_flight or now_ms < deletion.retry_at_ms:
                continue
            # partitions may have been added or removed since the request
            topic = self._ctx.topics[deletion.topic.topic]
            if not any(self._ctx.partitions[TopicPartition(topic.topic, index)].busy for index in topic.partitions):
                deletion.in_flight = True
                self._ctx.emit(DeleteTopic(topic))

    def answered(self, event: ev.TopicDeleted, now_ms: int) -> bool:
        """Use an answer; returns whether the topic's nodes were deleted."""
        deletion = self._under_way.get(event.topic)
        if deletion is None or deletion.topic.topic_id != event.topic_id:
            return False
        if event.error is not None:
            deletion.in_flight = False
            deletion.retry_at_ms = now_ms + _RETRY_MS
            return False
        self._ctx.observe("topic_deleted", None, topic=event.topic)
        self._requested -= {event.topic}
        self._deleted_ids.add(deletion.topic.topic_id)
        return True
