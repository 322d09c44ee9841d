# SPDX-License-Identifier: Apache-2.0
"""Topics and their partitions as ZooKeeper has them: created, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.partition_count import PartitionCountChanges
from tidemark.core.controller.partition_state import PartitionState, TopicPolicy
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.controller.topic_deletion import TopicDeletions
from tidemark.model import ReplicaIdentity, TopicDescription, TopicPartition


class TopicRegistry:
    """Keeps `topics` and `partitions` of `ControllerContext`; `policy_of` reads a topic's settings."""

    def __init__(
        self,
        ctx: ControllerContext,
        policy_of: Callable[[Mapping[str, str]], TopicPolicy],
        deletions: TopicDeletions,
        reassignments: Reassignments,
        partition_count: PartitionCountChanges,
    ) -> None:
        self._ctx = ctx
        self._policy_of = policy_of
        self._deletions = deletions
        self._reassignments = reassignments
        self._partition_count = partition_count

    def learn_all(self, topics: Mapping[str, TopicDescription], unreadable: frozenset[str]) -> None:
        """Learn all topics. A missing topic that this controller did not delete was deleted by the controller before.

        A topic whose node does not parse any more keeps its last known state.
        """
        self._ctx.learn_unreadable(unreadable, topics)
        for topic in topics.values():
            self.learn(topic)
        self._deletions.forget_ids({topic.topic_id for topic in topics.values()})
        kept = {*topics, *unreadable}
        for name in [name for name in self._ctx.topics if name not in kept and name not in self._deletions]:
            self.forget(name)

    def learn(self, topic: TopicDescription) -> None:
        """The topic's present node, or an older read of the node."""
        ctx, name = self._ctx, topic.topic
        known = ctx.topics.get(name)
        if self._deletions.was_deleted(topic):
            return  # this read is older than the deletion
        if known is not None and known.topic_id != topic.topic_id:
            self._deletions.recreated(name)
            self.forget(name)
            known = None
        elif known is not None:
            topic = _with_every_schema(topic, known)
            if known == topic or known.modified_zxid > topic.modified_zxid:
                return
        ctx.topics[name] = topic
        policy = self._policy_of(topic.configs)
        if topic.configs_zxid != topic.created_zxid:
            # The present flush.policy may be group-commit even if the first was not (rule T1).
            policy = replace(policy, group_commit=False)
        for index in () if known is None else set(known.partitions) - set(topic.partitions):
            self._forget_partition(TopicPartition(name, index))
        altered = known is not None and (known.configs, known.schemas) != (topic.configs, topic.schemas)
        for index in topic.partitions:
            self._learn_partition(
                topic, index, policy, altered=altered or not _is_same_reassignment(known, topic, index)
            )
        self._reassignments.topic_learned(topic)
        self._partition_count.topic_learned(topic)
        ctx.rewritten.add(name)

    def _learn_partition(self, topic: TopicDescription, index: int, policy: TopicPolicy, *, altered: bool) -> None:
        ctx, partition = self._ctx, TopicPartition(topic.topic, index)
        assigned = self._reassignments.assigned(topic, index)
        partition_state = ctx.partitions.get(partition)
        if partition_state is None:
            identity = ReplicaIdentity(topic.topic_id, topic.incarnations.get(index, ""))
            partition_state = ctx.partitions[partition] = PartitionState(partition, identity, (), policy)
        partition_state.replication_factor = self._reassignments.replication_factor(topic, index)
        if partition_state.assigned == assigned and partition_state.policy == policy and not altered:
            return
        ctx.assign(partition_state, assigned)
        partition_state.policy = policy
        if partition_state.state is not None:
            ctx.send_leader_and_isr(partition_state)
        ctx.dirty.add(partition)

    def _forget_partition(self, partition: TopicPartition) -> None:
        """The partition was removed: stop its replicas, and send the topic's new partition count (rule C7)."""
        partition_state = self._ctx.partitions.pop(partition)
        self._ctx.stop_replicas(partition_state, partition_state.assigned)
        self._ctx.assign(partition_state, ())
        self._ctx.dirty.discard(partition)
        self._ctx.send_metadata(self._ctx.partitions[TopicPartition(partition.topic, 0)])

    def forget(self, name: str) -> None:
        """Remove the topic, which was deleted."""
        topic = self._ctx.topics.pop(name, None)
        self._deletions.forget(name)
        if topic is None:
            return
        for index in topic.partitions:
            partition_state = self._ctx.partitions.pop(TopicPartition(name, index), None)
            if partition_state is not None:
                self._ctx.assign(partition_state, ())
                self._ctx.dirty.discard(partition_state.partition)
        self._reassignments.topic_gone(name)
        self._partition_count.topic_gone(name)
        for pending in self._ctx.commands.values():
            pending.topic_gone(name)


def _with_every_schema(topic: TopicDescription, known: TopicDescription) -> TopicDescription:
    """The topic with the versions of its schema that an earlier read had, too: a version never changes (rule S1)."""
    if known.schemas.items() <= topic.schemas.items():
        return topic
    undamaged = {version: schema for version, schema in known.schemas.items() if schema.text}
    return replace(topic, schemas={**topic.schemas, **undamaged})


def _is_same_reassignment(known: TopicDescription | None, topic: TopicDescription, index: int) -> bool:
    return known is None or (known.adding.get(index), known.removing.get(index)) == (
        topic.adding.get(index),
        topic.removing.get(index),
    )
