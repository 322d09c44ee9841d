# SPDX-License-Identifier: Apache-2.0
"""Plans of moves: brokers are added or removed, or topics are spread anew (rules C4, M1). Pure.

A plan is deterministic: the same input gives the same moves. What it moves is written as people write it by
core/reassignment/request.py; nothing here looks at whether brokers are busy or moves are under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from tidemark.core.planning.balancing import even_bytes, even_counts, even_heirs, even_leaders
from tidemark.core.planning.placement import assign_replicas
from tidemark.core.planning.replica_layout import ReplicaLayout
from tidemark.core.reassignment.request import ANY_LOG_DIR
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

Assignments = Mapping[TopicPartition, tuple[BrokerId, ...]]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What is assigned to one broker; `leaders`: partitions whose preferred leader it is."""

    replicas: int = 0
    leaders: int = 0
    replica_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, and what they cost.

    Attributes:
        moves: of partitions whose list changes, by topic and partition; a list may change in its order alone.
        current: the same partitions as they are now: executed, they take the plan back.
        moved_replicas: to be copied to a broker that has none.
        moved_bytes: of those, as far as sizes are known.
        before, after: every broker that is live or held a replica, by id.
    """

    moves: tuple[PartitionReassignment, ...]
    current: tuple[PartitionReassignment, ...]
    moved_replicas: int
    moved_bytes: int
    before: Mapping[BrokerId, BrokerLoad]
    after: Mapping[BrokerId, BrokerLoad]


def add_brokers(
    assignments: Assignments,
    sizes_bytes: Mapping[TopicPartition, int],
    racks: Mapping[BrokerId, str],
    new: Collection[BrokerId] = (),
) -> Plan:
    """Give new brokers their part: replicas, bytes and preferred leaders are even afterwards, as little is copied.

    Each live broker then has the floor or the ceiling of the mean number of replicas, bytes within a tenth of the mean
    where the sizes allow it, and leaders within one. No partition's racks come closer together; where they were set
    so that they forbid it, brokers stay less even. A cluster that is even already gives a plan without moves.

    Args:
        assignments: of every partition there is.
        sizes_bytes: of one replica; 0 where it is not known.
        racks: every live broker, the new ones included; "" where the rack is unknown.
        new: may be empty: then the live ones are evened out.

    Raises:
        TidemarkError: BROKER_NOT_AVAILABLE (metadata brokers) for a new broker that is not live.
    """
    _check_live(new, racks)
    layout = ReplicaLayout(assignments, sizes_bytes, racks)
    if racks:
        layout.look_through()
        even_counts(layout)
        layout.look_through()
        even_counts(layout, again=True)
        while even_bytes(layout) and even_counts(layout, again=True):
            continue  # what the one moved may have made room, within a rack, for the other
        even_leaders(layout)
        even_heirs(layout)
    return _plan(layout, racks)


def remove_brokers(
    assignments: Assignments,
    sizes_bytes: Mapping[TopicPartition, int],
    racks: Mapping[BrokerId, str],
    gone: Collection[BrokerId],
) -> Plan:
    """Take every replica off these brokers, each to a live broker that has none of its partition; nothing else moves.

    The replacement has the place in the list that the one it replaces had. Those that move are spread so that replicas,
    and preferred leaders, become as even as they can; racks stay as far apart as they were where a broker for that is
    left.

    Args:
        assignments: of every partition there is.
        sizes_bytes: of one replica; 0 where it is not known.
        racks: every live broker, with or without those of `gone`; "" where the rack is unknown.
        gone: live or not.

    Raises:
        TidemarkError: INVALID_REPLICATION_FACTOR (metadata topics) where too few brokers would be left.
    """
    layout = ReplicaLayout(assignments, sizes_bytes, racks, gone)
    leaving = [
        (index, position)
        for index, replicas in enumerate(layout.replicas)
        for position, broker in enumerate(replicas)
        if broker in gone
    ]
    _check_room(layout, leaving)
    leaders = Counter(replicas[0] for replicas in layout.replicas if replicas)
    moved = []
    for index, position in sorted(leaving, key=lambda one: (one[1] != 0, -layout.size_bytes[one[0]], one)):
        target = _successor(layout, index, position, leaders)
        layout.put(index, position, target)
        leaders[target] += position == 0
        moved.append((index, target))
    layout.look_through(moved)
    even_counts(layout, again=True)
    return _plan(layout, racks)


def generate(
    assignments: Assignments,
    brokers: Collection[BrokerId],
    racks: Mapping[BrokerId, str],
    *,
    others: Iterable[tuple[BrokerId, ...]] = (),
    sizes_bytes: Mapping[TopicPartition, int] | None = None,
) -> Plan:
    """Spread topics over these brokers as if they were created now, one after the other by name (rule C4).

    Each partition keeps its replication factor. Nothing is spared: this is Kafka's --generate.

    Args:
        assignments: of every partition of the chosen topics.
        brokers: that the topics shall be on.
        racks: every live broker; "" where the rack is unknown.
        others: assigned replicas of the partitions of all other topics; they count as in the creation of a topic.
        sizes_bytes: of one replica, for the costs.

    Raises:
        TidemarkError: BROKER_NOT_AVAILABLE (metadata brokers), INVALID_REPLICATION_FACTOR (metadata topics).
    """
    _check_live(brokers, racks)
    chosen = {broker: racks[broker] for broker in brokers}
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in sorted(assignments):
        by_topic.setdefault(partition.topic, []).append(partition)
    factors = {topic: max(len(assignments[one]) for one in partitions) for topic, partitions in by_topic.items()}
    _check_factor([topic for topic, factor in factors.items() if factor > len(chosen)], len(chosen))
    proposed: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    existing = list(others)
    for topic, partitions in by_topic.items():
        lists = assign_replicas(
            chosen, partitions=len(partitions), replication_factor=max(1, factors[topic]), existing=existing
        )
        cut = [replicas[: len(assignments[one])] for one, replicas in zip(partitions, lists, strict=True)]
        proposed.update(zip(partitions, cut, strict=True))
        existing += cut
    layout = ReplicaLayout(assignments, sizes_bytes or {}, racks)
    for index, partition in enumerate(layout.partitions):
        layout.replicas[index] = list(proposed[partition])
    return _plan(layout, racks)


# -- what a plan is made of ------------------------------------------------------------------------------------


def _plan(layout: ReplicaLayout, live: Iterable[BrokerId]) -> Plan:
    changed = [index for index, replicas in enumerate(layout.replicas) if tuple(replicas) != layout.original[index]]
    named = {*live, *chain.from_iterable(layout.original)}
    added = [index for index in changed for broker in layout.replicas[index] if broker not in layout.original[index]]
    return Plan(
        tuple(_move(layout.partitions[index], layout.replicas[index]) for index in changed),
        tuple(_move(layout.partitions[index], layout.original[index]) for index in changed),
        len(added),
        sum(layout.size_bytes[index] for index in added),
        _loads(named, layout.original, layout.size_bytes),
        _loads(named, layout.replicas, layout.size_bytes),
    )


def _move(partition: TopicPartition, replicas: Iterable[BrokerId]) -> PartitionReassignment:
    brokers = tuple(replicas)
    return PartitionReassignment(partition, brokers, (ANY_LOG_DIR,) * len(brokers))


def _loads(
    brokers: Iterable[BrokerId], lists: Iterable[Iterable[BrokerId]], size_bytes: Iterable[int]
) -> dict[BrokerId, BrokerLoad]:
    count: Counter[BrokerId] = Counter()
    leaders: Counter[BrokerId] = Counter()
    load: Counter[BrokerId] = Counter()
    for replicas, size in zip(lists, size_bytes, strict=True):
        for position, broker in enumerate(replicas):
            count[broker] += 1
            load[broker] += size
            leaders[broker] += position == 0
    return {broker: BrokerLoad(count[broker], leaders[broker], load[broker]) for broker in sorted(brokers)}


def _successor(layout: ReplicaLayout, index: int, position: int, leaders: Mapping[BrokerId, int]) -> BrokerId:
    """The least loaded broker among those that keep the racks apart as well as they are; or those that do it best.

    Others of the partition that are to be replaced too count as what they are now: their racks are for who comes there.
    """
    replicas = layout.replicas[index]
    others = [*replicas[:position], *replicas[position + 1 :]]
    met = {broker: layout.in_rack_of(broker, others) for broker in layout.brokers if broker not in replicas}
    most = max(min(met.values()), layout.in_rack_of(replicas[position], others))
    return min(
        (broker for broker in met if met[broker] <= most),
        key=lambda broker: (
            leaders.get(broker, 0) if position == 0 else 0,
            layout.count[broker],
            layout.load_bytes[broker],
            broker,
        ),
    )


# -- what is refused -------------------------------------------------------------------------------------------


def _check_live(brokers: Iterable[BrokerId], racks: Mapping[BrokerId, str]) -> None:
    missing = ", ".join(str(broker) for broker in sorted(brokers) if broker not in racks)
    if missing:
        raise TidemarkError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"the plan needs broker {missing}, which is not live; start it or name another",
            {"brokers": missing},
        )


def _check_room(layout: ReplicaLayout, leaving: Iterable[tuple[int, int]]) -> None:
    needed = Counter(index for index, _ in leaving)
    tight = {
        layout.partitions[index].topic
        for index, wanted in needed.items()
        if wanted > sum(broker not in layout.replicas[index] for broker in layout.brokers)
    }
    _check_factor(sorted(tight), len(layout.brokers))


def _check_factor(topics: Iterable[str], brokers: int) -> None:
    named = ", ".join(topics)
    if named:
        raise TidemarkError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{brokers} brokers are too few for the replicas of {named}; leave more, or lower its replication factor",
            {"topics": named},
        )
