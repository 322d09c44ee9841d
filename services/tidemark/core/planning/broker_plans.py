# SPDX-License-Identifier: Apache-2.0
"""Plans of reassignments to add or remove brokers, or to spread topics again (rules C4, M1). Pure.

A plan is deterministic: the same input gives the same reassignments. core/reassignment/request.py writes them as JSON.
A plan does not depend on running reassignments or the load of brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from tidemark.core.planning.balancing import even_bytes, even_counts, even_leaders, even_successors
from tidemark.core.planning.placement import assign_replicas
from tidemark.core.planning.replica_layout import ReplicaLayout
from tidemark.core.planning.topic_names import MayName, every_name, named
from tidemark.core.reassignment.request import ANY_LOG_DIR
from tidemark.model import BrokerId, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

Assignments = Mapping[TopicPartition, tuple[BrokerId, ...]]


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of one broker; `leaders`: partitions of which it is the preferred leader."""

    replicas: int = 0
    leaders: int = 0
    replica_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Reassignments, and their cost.

    Attributes:
        moves: reassignments of partitions whose replicas or replica order change; by topic and partition.
        current: the present replicas of the same partitions, for a rollback of the plan.
        moved_replicas: number of replicas to copy to a broker that has none.
        moved_bytes: sum of the known sizes of these replicas, in bytes.
        before, after: load of every broker that is live or has a replica, by id.
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
    """Balance replicas, bytes and preferred leaders over the live brokers, new ones included, copying little.

    Each live broker then has the floor or the ceiling of the mean number of replicas, and preferred leaders within one.
    Its bytes are within a tenth of the mean, if the sizes allow it. No more replicas of a partition share a rack than
    before; where racks forbid balance, brokers stay less balanced. A balanced cluster gives a plan without
    reassignments.

    Args:
        assignments: assignments of every partition.
        sizes_bytes: sizes in bytes of one replica; 0: not known.
        racks: every live broker, the new ones included; "": the rack is unknown.
        new: brokers to add; empty: balance the live brokers only.

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
            continue  # each may make room within a rack for the other replica
        even_leaders(layout)
        even_successors(layout)
    return _plan(layout, racks)


def remove_brokers(
    assignments: Assignments,
    sizes_bytes: Mapping[TopicPartition, int],
    racks: Mapping[BrokerId, str],
    gone: Collection[BrokerId],
    *,
    may_name: MayName = every_name,
) -> Plan:
    """Replace these brokers in every partition by live brokers without a replica of it; no other replica moves.

    The replacement takes the position in the list. Replacements are chosen to balance replicas and preferred leaders.
    No more replicas of a partition share a rack than before, if another broker is left.

    Args:
        assignments: assignments of every partition.
        sizes_bytes: sizes in bytes of one replica; 0: not known.
        racks: every live broker, with or without those of `gone`; "": the rack is unknown.
        gone: brokers to remove, live or not.
        may_name: whether errors may name a topic.

    Raises:
        TidemarkError: INVALID_REPLICATION_FACTOR (metadata topics) if too few brokers would be left.
    """
    layout = ReplicaLayout(assignments, sizes_bytes, racks, gone)
    leaving = [
        (index, position)
        for index, replicas in enumerate(layout.replicas)
        for position, broker in enumerate(replicas)
        if broker in gone
    ]
    _check_room(layout, leaving, may_name)
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
    may_name: MayName = every_name,
) -> Plan:
    """Place topics on these brokers as if they were created now, in the order of their names (rule C4).

    Each partition keeps its replication factor. The cost of copying is ignored: this is Kafka's --generate.

    Args:
        assignments: assignments of every partition of the chosen topics.
        brokers: brokers that get the replicas.
        racks: every live broker; "": the rack is unknown.
        others: assigned replicas of all other topics' partitions; they count as in the creation of a topic.
        sizes_bytes: sizes in bytes of one replica, for the cost.
        may_name: whether errors may name a topic.

    Raises:
        TidemarkError: BROKER_NOT_AVAILABLE (metadata brokers), INVALID_REPLICATION_FACTOR (metadata topics).
    """
    _check_live(brokers, racks)
    chosen = {broker: racks[broker] for broker in brokers}
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in sorted(assignments):
        by_topic.setdefault(partition.topic, []).append(partition)
    factors = {topic: max(len(assignments[one]) for one in partitions) for topic, partitions in by_topic.items()}
    _check_factor([topic for topic, factor in factors.items() if factor > len(chosen)], len(chosen), may_name)
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


# -- parts of a plan -------------------------------------------------------------------------------------------


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
    """The least loaded broker among those in racks no fuller than before, else in the emptiest racks.

    Replicas of the partition that are still to be replaced count with their present racks, kept for their replacements.
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


# -- checks ----------------------------------------------------------------------------------------------------


def _check_live(brokers: Iterable[BrokerId], racks: Mapping[BrokerId, str]) -> None:
    missing = ", ".join(str(broker) for broker in sorted(brokers) if broker not in racks)
    if missing:
        raise TidemarkError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"the plan needs broker {missing}, which is not live; start it or name another",
            {"brokers": missing},
        )


def _check_room(layout: ReplicaLayout, leaving: Iterable[tuple[int, int]], may_name: MayName) -> None:
    needed = Counter(index for index, _ in leaving)
    tight = {
        layout.partitions[index].topic
        for index, wanted in needed.items()
        if wanted > sum(broker not in layout.replicas[index] for broker in layout.brokers)
    }
    _check_factor(tight, len(layout.brokers), may_name)


def _check_factor(topics: Collection[str], brokers: int, may_name: MayName) -> None:
    if topics:
        raise TidemarkError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{brokers} brokers are too few for the replicas of {named(topics, may_name)}; keep more, or lower the "
            "replication factor",
            {"topics": ", ".join(sorted(filter(may_name, topics)))},
        )
