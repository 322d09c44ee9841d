# SPDX-License-Identifier: Apache-2.0
"""Whether a broker can be restarted without an interruption, by the state in ZooKeeper (rules C2, R4, M1). Pure.

A restart removes the broker from every ISR and moves its leaderships to other brokers. Clients are not interrupted if
another live ISR member can lead, and enough members are left for acks=all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidemark.core.planning.topic_names import MayName, every_name, named
from tidemark.model import BrokerEpoch, BrokerId, TopicDescription, TopicPartition, VersionedState


class Obstacle(StrEnum):
    """Obstacles to a restart, the most serious first; the value is part of the API."""

    BROKER_NOT_LIVE = "BROKER_NOT_LIVE"
    NO_IN_SYNC_HEIR = "NO_IN_SYNC_HEIR"
    BELOW_MIN_ISR = "BELOW_MIN_ISR"
    NO_REPLICA_TO_SPARE = "NO_REPLICA_TO_SPARE"
    OTHER_BROKER_AWAY = "OTHER_BROKER_AWAY"
    OTHER_BROKER_RESTARTS = "OTHER_BROKER_RESTARTS"
    MOVE_UNDER_WAY = "MOVE_UNDER_WAY"
    NOT_IN_SYNC = "NOT_IN_SYNC"
    TOPIC_UNREADABLE = "TOPIC_UNREADABLE"  # added by the admin service, which reads the topics' nodes
    OTHER = "OTHER"  # a kind of a later version; its message explains it


_OF_PARTITIONS: Final = tuple(kind for kind in Obstacle if kind not in (Obstacle.TOPIC_UNREADABLE, Obstacle.OTHER))


@dataclass(frozen=True, slots=True)
class RestartObstacle:
    """One obstacle, with the partitions that it concerns, sorted."""

    reason: Obstacle
    message: str
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def may_pass(self) -> bool:
        """Whether the obstacle can end by waiting. NO_REPLICA_TO_SPARE ends only by a change of the topic."""
        return self.reason is not Obstacle.NO_REPLICA_TO_SPARE


def obstacles_to_restart(
    broker: BrokerId,
    live: Mapping[BrokerId, BrokerEpoch],
    topics: Iterable[TopicDescription],
    states: Mapping[TopicPartition, VersionedState],
    wanted: Iterable[TopicPartition] = (),
    restarting: BrokerId | None = None,
    may_name: MayName = every_name,
) -> list[RestartObstacle]:
    """The obstacles to a restart of this broker, the most serious first; empty: a restart is safe.

    Args:
        broker: id of the broker to be restarted.
        live: the registered brokers.
        topics: all topics.
        states: states of all partitions.
        wanted: partitions with a requested reassignment, running or not.
        restarting: the broker that has claimed a restart.
        may_name: whether sentences may name a topic.
    """
    found: dict[Obstacle, list[TopicPartition]] = {kind: [] for kind in _OF_PARTITIONS}
    asked = set(wanted)
    away: set[BrokerId] = set()
    for topic in topics:
        for index, assigned in topic.partitions.items():
            partition = TopicPartition(topic.topic, index)
            others_away = {member for member in assigned if member not in live and member != broker}
            away |= others_away
            if broker not in assigned:
                continue
            for kind in _of_partition(broker, live, assigned, states.get(partition)):
                found[kind].append(partition)
            if others_away:
                found[Obstacle.OTHER_BROKER_AWAY].append(partition)
            if index in topic.original or partition in asked:
                found[Obstacle.MOVE_UNDER_WAY].append(partition)
    obstacles = []
    for kind in found:
        concerned = tuple(sorted(found[kind]))
        grave = kind is Obstacle.BROKER_NOT_LIVE and broker not in live
        if concerned or grave or (kind is Obstacle.OTHER_BROKER_AWAY and away):
            sentence = _sentence(kind, broker, away, concerned, may_name)
            obstacles.append(RestartObstacle(kind, sentence, concerned))
        elif kind is Obstacle.OTHER_BROKER_RESTARTS and restarting not in (None, broker):
            message = f"broker {restarting} is about to restart; wait until that broker is in sync again"
            obstacles.append(RestartObstacle(kind, message))
    return obstacles


def claimed_meanwhile() -> RestartObstacle:
    """The obstacle for a broker whose claim of a restart came second."""
    return RestartObstacle(Obstacle.OTHER_BROKER_RESTARTS, "another broker claimed a restart at the same time; retry")


def _of_partition(
    broker: BrokerId,
    live: Mapping[BrokerId, BrokerEpoch],
    assigned: tuple[BrokerId, ...],
    versioned: VersionedState | None,
) -> list[Obstacle]:
    if versioned is None:
        return [Obstacle.NO_IN_SYNC_HEIR]
    state = versioned.state
    in_sync = {entry.broker_id for entry in state.isr if live.get(entry.broker_id) == entry.broker_epoch}
    left = in_sync - {broker}
    kinds = []
    if len(left) == len(assigned) - 1 and len(left) < max(1, state.min_isr) and broker in in_sync:
        kinds.append(Obstacle.NO_REPLICA_TO_SPARE)
    elif state.leader in (broker, -1) and not left:
        kinds.append(Obstacle.NO_IN_SYNC_HEIR)
    elif len(left) < state.min_isr:
        kinds.append(Obstacle.BELOW_MIN_ISR)
    if broker not in in_sync:
        kinds.append(Obstacle.NOT_IN_SYNC)
    return kinds


def _sentence(
    kind: Obstacle,
    broker: BrokerId,
    away: Iterable[BrokerId],
    concerned: tuple[TopicPartition, ...],
    may_name: MayName,
) -> str:
    partitions = f"{len(concerned)} partition{'' if len(concerned) == 1 else 's'}"
    topics = named({partition.topic for partition in concerned}, may_name)
    others = ", ".join(str(one) for one in sorted(away))
    are = "is" if len(concerned) == 1 else "are"
    return {
        Obstacle.BROKER_NOT_LIVE: f"broker {broker} is not live: start it, and wait until it is in sync",
        Obstacle.NO_IN_SYNC_HEIR: f"{partitions} would have no leader without broker {broker}: no other live "
        "replica is in sync; wait until one is, or add replicas",
        Obstacle.BELOW_MIN_ISR: f"{partitions} would have fewer than min.insync.replicas in sync, and refuse acks=all; "
        "wait until more replicas are in sync, or give them more",
        Obstacle.NO_REPLICA_TO_SPARE: f"no replica to spare in {partitions}, though all are in sync. Each topic's "
        f"min.insync.replicas is as many as its replicas, so each restart stops acks=all for a moment. Waiting "
        f"does not help; give them more replicas, or a smaller min.insync.replicas: {topics}",
        Obstacle.OTHER_BROKER_AWAY: f"not live, and assigned replicas: broker {others}; start it first",
        Obstacle.MOVE_UNDER_WAY: f"{partitions} on broker {broker} {are} being reassigned; wait until "
        "tidemark reassign list is empty",
        Obstacle.NOT_IN_SYNC: f"broker {broker} has not caught up in {partitions} yet; wait until it is in the ISR",
    }[kind]
