# SPDX-License-Identifier: Apache-2.0
"""The health of a cluster in one sentence, and the problems that need an operator, each with its command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.client.aio.admin.results import ClusterDescription
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import NO_LEADER, BrokerId, TopicPartition

NAMED_MAX: Final = 5
"""Most partitions that a sentence names."""


class HealthLevel(StrEnum):
    """How urgent the state of a cluster is."""

    HEALTHY = "healthy"
    WATCH = "watch"  # the cluster repairs this state itself, or an operator has begun a change
    ACT = "act"  # an operator must act


class Need(NamedTuple):
    """A problem, and the command that helps or shows more.

    Attributes:
        partitions: all that are concerned, sorted.
    """

    level: HealthLevel
    sentence: str
    command: str
    partitions: tuple[TopicPartition, ...] = ()


class Health(NamedTuple):
    """The health of a cluster in words.

    Attributes:
        sentence: the state in one sentence.
        needs: the problems, the most urgent first.
        away: brokers that have assigned replicas and are not live.
    """

    level: HealthLevel
    sentence: str
    needs: tuple[Need, ...]
    away: tuple[BrokerId, ...]


def away_brokers(live: Iterable[int], topics: Iterable[TopicView]) -> tuple[BrokerId, ...]:
    """Brokers that have assigned replicas and are not live, sorted."""
    assigned = {broker for topic in topics for one in topic.partitions.values() for broker in one.assigned_replicas}
    return tuple(sorted(assigned.difference(live)))


def health_of(cluster: ClusterDescription, topics: Sequence[TopicView]) -> Health:
    """State the health of a cluster, and the problems that need an operator.

    Args:
        cluster: its brokers, controller and counts.
        topics: all topics, or the topics that the caller may see.
    """
    away = away_brokers(cluster.view.brokers, topics)
    needs = [
        need
        for need in (
            _controller(cluster),
            _unreadable(topics),
            _offline(cluster, topics, away),
            _below_min_isr(cluster, away),
            _away(away, cluster.draining_brokers),
            _behind(cluster, topics, away),
            _draining(cluster),
        )
        if need is not None
    ]
    needs.sort(key=lambda need: need.level is not HealthLevel.ACT)
    level = needs[0].level if needs else HealthLevel.HEALTHY
    return Health(level, _sentence(cluster, needs), tuple(needs), away)


def _sentence(cluster: ClusterDescription, needs: Sequence[Need]) -> str:
    if not needs:
        brokers, partitions = len(cluster.view.brokers), cluster.partition_count
        return (
            f"Healthy: {_counted(brokers, 'broker')} live, {_counted(partitions, 'partition')}, all replicas in sync."
        )
    more = f" ({len(needs) - 1} more below)" if len(needs) > 1 else ""
    return f"{needs[0].sentence}{more}"


def _controller(cluster: ClusterDescription) -> Need | None:
    if cluster.view.controller_id >= 0:
        return None
    sentence = "No controller is active: partitions of a failed broker get no other leader. Start a controller."
    return Need(HealthLevel.ACT, sentence, "tidemark cluster describe")


def _unreadable(topics: Iterable[TopicView]) -> Need | None:
    found = _where(topics, lambda one: one.state_unreadable)
    if not found:
        return None
    sentence = f"The ZooKeeper node of {_named(found)} cannot be read: leader and ISR are not known."
    return Need(HealthLevel.ACT, sentence, f"tidemark elect --rebuild-state {_target(found[0])}", found)


def _offline(cluster: ClusterDescription, topics: Iterable[TopicView], away: Sequence[int]) -> Need | None:
    if not cluster.offline_count:
        return None
    found = _where(topics, lambda one: one.leader == NO_LEADER and not one.state_unreadable)
    named = f": {_named(found)}" if found else ""
    cure = f"Start broker {_listed(away)}" if away else "Wait for an eligible replica"
    sentence = f"{_counted(cluster.offline_count, 'partition')} without a leader{named}. {cure}."
    command = f"tidemark elect --last-known {_target(found[0])} --dry-run" if found else "tidemark cluster describe"
    return Need(HealthLevel.ACT, sentence, command, found)


def _below_min_isr(cluster: ClusterDescription, away: Sequence[int]) -> Need | None:
    count = cluster.under_min_isr_count
    if not count:
        return None
    cure = f"Start broker {_listed(away)}." if away else "Wait until their followers have caught up."
    verb = "has" if count == 1 else "have"
    sentence = f"{_counted(count, 'partition')} {verb} fewer in-sync replicas than min.insync.replicas. {cure}"
    return Need(HealthLevel.ACT, sentence, "tidemark topic describe")


def _away(away: Sequence[BrokerId], draining: Sequence[int]) -> Need | None:
    missing = [broker for broker in away if broker not in draining]
    if not missing:
        return None
    sentence = f"Broker {_listed(missing)} is not live and has replicas. Start or remove the broker."
    return Need(HealthLevel.ACT, sentence, f"tidemark cluster remove-brokers {missing[0]} --dry-run")


def _behind(cluster: ClusterDescription, topics: Iterable[TopicView], away: Sequence[int]) -> Need | None:
    if not cluster.under_replicated_count:
        return None
    found = _where(topics, lambda one: len(one.in_sync_replicas) < len(one.assigned_replicas))
    verb = "has" if cluster.under_replicated_count == 1 else "have"
    cause = "until the broker is back" if away else "until the followers have caught up"
    sentence = f"{_counted(cluster.under_replicated_count, 'partition')} {verb} a replica out of sync, {cause}."
    return Need(HealthLevel.WATCH, sentence, "tidemark topic describe", found)


def _draining(cluster: ClusterDescription) -> Need | None:
    if not cluster.draining_brokers:
        return None
    sentence = f"Broker {_listed(cluster.draining_brokers)} gets no new replicas, since it is being removed."
    return Need(HealthLevel.WATCH, sentence, "tidemark reassign list")


def _where(topics: Iterable[TopicView], wanted: Callable[[PartitionView], bool]) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic, one.partition)
            for topic in topics
            for one in topic.partitions.values()
            if wanted(one)
        )
    )


def _named(partitions: Sequence[TopicPartition]) -> str:
    more = f" and {len(partitions) - NAMED_MAX} more" if len(partitions) > NAMED_MAX else ""
    return ", ".join(map(_target, partitions[:NAMED_MAX])) + more


def _target(partition: TopicPartition) -> str:
    """A partition as commands take it."""
    return f"{partition.topic}:{partition.partition}"


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
