# SPDX-License-Identifier: Apache-2.0
"""The assignors, by name. Members of a group may subscribe to different topics."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidemark.core.groups.state import GroupPartition, Partitions, TopicFacts


class Subscriber(NamedTuple):
    """A member, as input of an assignor.

    Attributes:
        topics: its subscription; some topics may not exist.
        target: its previous target assignment.
    """

    member_id: str
    topics: frozenset[str]
    target: Partitions


Plan = Mapping[str, Partitions]
"""Target assignments by member id. Invariant: every member has an entry, and no partition is assigned twice."""

Assignor = Callable[[Sequence[Subscriber], Mapping[str, TopicFacts]], Plan]
"""Maps members (static ones keep their place in the order) and existing topics to a plan; deterministic."""


def partitions_of(topic: str, facts: TopicFacts) -> list[GroupPartition]:
    """All partitions of a topic, in order."""
    return [GroupPartition(topic, facts.topic_id, index) for index in range(facts.partition_count)]


def subscribers_by_topic(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> dict[str, list[int]]:
    """Indexes of the subscribers of each existing topic, in order of the topics' names."""
    found: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        for topic in member.topics:
            if topic in topics:
                found.setdefault(topic, []).append(index)
    return {topic: found[topic] for topic in sorted(found)}


class _Step(NamedTuple):
    """A move of one partition from the member `giver`; `kind` is the kind of its topic."""

    giver: int
    kind: int


class Loads:
    """An assignment in progress. Members are named by their index.

    Topics with the same subscribers are of one kind: a search over each topic would take seconds for thousands of
    topics.

    Balanced: no chain of moves takes a partition from a member to one with at least two fewer. Each move of a chain is
    to a member that subscribes to the topic. Then no assignment has a smaller sum of squared loads (Harvey et al.,
    Semi-Matchings for Bipartite Graphs). With equal subscriptions loads differ by at most one.

    Args:
        subscribers: indexes of the subscribers of each topic.
    """

    def __init__(self, members: Sequence[Subscriber], subscribers: Mapping[str, Sequence[int]]) -> None:
        self._members = members
        self._subscribers = subscribers
        kinds: dict[tuple[int, ...], int] = {}
        self._kinds = {topic: kinds.setdefault(tuple(found), len(kinds)) for topic, found in subscribers.items()}
        self._takers = list(kinds)
        self._had: list[dict[int, list[GroupPartition]]] = [{} for _ in members]
        self._load = [0] * len(members)
        self._owned: set[GroupPartition] = set()

    def hardest_first(self) -> list[str]:
        """The topics, by number of subscribers, the fewest first."""
        return sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))

    def has_owner(self, partition: GroupPartition) -> bool:
        """Whether a partition is assigned to a member."""
        return partition in self._owned

    def keep(self, index: int, partition: GroupPartition) -> None:
        """Assign a partition to its previous member, unless it is assigned already."""
        if partition not in self._owned:
            self._give(index, partition)

    def hand_out(self, partitions: Iterable[GroupPartition]) -> None:
        """Assign free partitions of one topic, each to the subscriber with the lowest load."""
        waiting: list[tuple[int, int]] = []
        for partition in partitions:
            if not waiting:
                waiting = [(self._load[index], index) for index in self._subscribers[partition.topic]]
                heapq.heapify(waiting)
            load, index = waiting[0]
            self._give(index, partition)
            heapq.heapreplace(waiting, (load + 1, index))

    def balance(self) -> None:
        """Move partitions, from the members with the highest load first, until the loads are balanced."""
        settled: set[int] = set()
        most = [(-load, index) for index, load in enumerate(self._load)]
        heapq.heapify(most)
        while most:
            load, giver = heapq.heappop(most)
            if giver in settled or -load != self._load[giver]:
                continue  # the entry is settled, or its load has changed: the heap has a newer entry
            reached, taker = self._reachable(giver)
            if taker is None:
                # each reached member has at most one partition fewer, and reaches no other member
                settled.update(reached)
                settled.add(giver)
                continue
            self._move(giver, taker, reached)
            heapq.heappush(most, (-self._load[giver], giver))
            heapq.heappush(most, (-self._load[taker], taker))

    def plan(self) -> Plan:
        """The assignment of each member, by member id."""
        return {
            member.member_id: frozenset(one for partitions in had.values() for one in partitions)
            for member, had in zip(self._members, self._had, strict=True)
        }

    def _give(self, index: int, partition: GroupPartition) -> None:
        self._had[index].setdefault(self._kinds[partition.topic], []).append(partition)
        self._load[index] += 1
        self._owned.add(partition)

    def _reachable(self, start: int) -> tuple[dict[int, _Step], int | None]:
        """Members reached from `start` by the fewest moves, and the first one with at least two fewer partitions."""
        reached: dict[int, _Step] = {}
        seen_kinds: set[int] = set()
        level = [start]
        while level:
            following: list[int] = []
            for giver in level:
                for kind, partitions in self._had[giver].items():
                    if not partitions or kind in seen_kinds:
                        continue
                    seen_kinds.add(kind)
                    for taker in self._takers[kind]:
                        if taker != start and taker not in reached:
                            reached[taker] = _Step(giver, kind)
                            following.append(taker)
            best = min(following, key=lambda index: (self._load[index], index), default=None)
            if best is not None and self._load[best] <= self._load[start] - 2:
                return reached, best
            level = following
        return reached, None

    def _move(self, start: int, taker: int, reached: Mapping[int, _Step]) -> None:
        at = taker
        while at != start:
            giver, kind = reached[at]
            self._had[at].setdefault(kind, []).append(self._had[giver][kind].pop())
            at = giver
        self._load[start] -= 1
        self._load[taker] += 1


def assign_sticky(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Keep the members' previous targets as far as balance (see `Loads`) and subscriptions allow.

    If all members subscribe to the same topics, no balanced assignment moves fewer partitions.
    """
    loads = Loads(members, subscribers_by_topic(members, topics))
    for index, member in enumerate(members):
        for partition in sorted(member.target):
            facts = topics.get(partition.topic)
            if facts is None or facts.topic_id != partition.topic_id or partition.partition >= facts.partition_count:
                continue  # the partition does not exist any more
            if partition.topic in member.topics:
                loads.keep(index, partition)
    for topic in loads.hardest_first():
        loads.hand_out([one for one in partitions_of(topic, topics[topic]) if not loads.has_owner(one)])
    loads.balance()
    return loads.plan()


def assign_uniform(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Assign all partitions in order, each to the subscriber with the lowest load so far; balanced as in `Loads`.

    Ignores previous assignments: groups with the same members and topics have the same assignment.
    """
    loads = Loads(members, subscribers_by_topic(members, topics))
    for topic in loads.hardest_first():
        loads.hand_out(partitions_of(topic, topics[topic]))
    loads.balance()
    return loads.plan()


def assign_range(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Assign to each member one range of partitions of each topic; topics of equal partition counts have equal ranges.

    For joins of topics with the same partitioning. The first members in order get one partition more if there is a
    rest.
    """
    plan: list[list[GroupPartition]] = [[] for _ in members]
    for topic, subscribers in subscribers_by_topic(members, topics).items():
        partitions = partitions_of(topic, topics[topic])
        size, more = divmod(len(partitions), len(subscribers))
        first = 0
        for place, index in enumerate(subscribers):
            end = first + size + (place < more)
            plan[index].extend(partitions[first:end])
            first = end
    return {member.member_id: frozenset(mine) for member, mine in zip(members, plan, strict=True)}


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "sticky": assign_sticky,
    "uniform": assign_uniform,
    "range": assign_range,
}
