# SPDX-License-Identifier: Apache-2.0
"""Topics of ZooKeeper as clients see them, counts of unhealthy partitions, and errors of topics that do not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.topic_name import check_topic_name
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
    unknown_partition,
    unknown_topic,
)
from tidemark.runtime.configuration.settings import topic_settings
from tidemark.zookeeper.store import MetadataStore

States = Mapping[TopicPartition, VersionedState]
_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of topics, of partitions, and of unhealthy partitions."""

    topics: int = 0
    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums of these counts and of other counts."""
        return Counts(
            self.topics + other.topics,
            self.partitions + other.partitions,
            self.under_replicated + other.under_replicated,
            self.under_min_isr + other.under_min_isr,
            self.offline + other.offline,
        )


def partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    """List every partition of these topics, by topic and index."""
    return [TopicPartition(topic.topic, index) for topic in topics for index in sorted(topic.partitions)]


def partitions_without_leader(topic: TopicDescription, states: States) -> list[int]:
    """List the indexes of partitions without a leader, sorted."""
    return [
        partition.partition
        for partition in partitions_of([topic])
        if partition not in states or states[partition].state.leader == NO_LEADER
    ]


async def existing_topic(store: MetadataStore, name: str) -> TopicDescription:
    """Read a topic; raises INVALID_TOPIC_NAME, UNKNOWN_TOPIC."""
    check_topic_name(name)
    topic = (await store.topics([name])).get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def no_such_partition(partition: TopicPartition, topic: TopicDescription | None) -> TidemarkError:
    """Make the error for a partition that does not exist; `topic` is its topic, if that exists."""
    if topic is None:
        return unknown_topic(partition.topic, partition.facts)
    return unknown_partition(*partition, len(topic.partitions))


def some_of(indexes: Sequence[int]) -> str:
    """List the first indexes of partitions, for a sentence."""
    shown = ", ".join(str(index) for index in indexes[:_SHOWN_MAX])
    return shown if len(indexes) <= _SHOWN_MAX else f"{shown}, ..."


def topic_view(
    topic: TopicDescription, states: States, unreadable: Collection[TopicPartition] = frozenset()
) -> TopicView:
    """Build the view of a topic; a partition without a state, or with an unreadable one, has no leader and no ISR."""
    return TopicView(
        topic=topic.topic,
        topic_id=topic.topic_id,
        created_zxid=topic.created_zxid,
        modified_zxid=topic.modified_zxid,
        partitions={index: _partition_view(topic, index, states, unreadable) for index in sorted(topic.partitions)},
        configs=topic.configs,
        schema_version=topic.schema_version,
    )


def _partition_view(
    topic: TopicDescription, index: int, states: States, unreadable: Collection[TopicPartition]
) -> PartitionView:
    assigned, incarnation = topic.partitions[index], topic.incarnations.get(index, "")
    partition = TopicPartition(topic.topic, index)
    found = states.get(partition)
    if found is None:
        return PartitionView(
            partition=index,
            leader=NO_LEADER,
            leader_epoch=NO_EPOCH,
            assigned_replicas=assigned,
            in_sync_replicas=(),
            incarnation=incarnation,
            state_unreadable=partition in unreadable,
        )
    state = found.state
    return PartitionView(
        partition=index,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        assigned_replicas=assigned,
        in_sync_replicas=state.isr_ids,
        incarnation=incarnation,
        lineage=state.lineage,
        eligible_leader_replicas=tuple(entry.broker_id for entry in state.elr),
        partition_epoch=found.version,
    )


def count(topics: Iterable[TopicDescription], states: States) -> Counts:
    """Count unhealthy partitions. A partition without a state yet counts as one without a leader and with an empty
    ISR."""
    found = list(topics)
    partitions = under_replicated = under_min_isr = offline = 0
    for topic in found:
        for index, assigned in topic.partitions.items():
            versioned = states.get(TopicPartition(topic.topic, index))
            in_sync = 0 if versioned is None else len(versioned.state.isr)
            min_isr = _min_isr(topic, len(assigned)) if versioned is None else versioned.state.min_isr
            partitions += 1
            under_replicated += in_sync < len(assigned)
            under_min_isr += in_sync < min_isr
            offline += versioned is None or versioned.state.leader == NO_LEADER
    return Counts(len(found), partitions, under_replicated, under_min_isr, offline)


def _min_isr(topic: TopicDescription, replication_factor: int) -> int:
    known = {name: value for name, value in topic.configs.items() if name == "min.insync.replicas"}
    return min(topic_settings(known).min_insync_replicas, replication_factor)
