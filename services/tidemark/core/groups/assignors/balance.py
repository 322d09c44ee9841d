# SPDX-License-Identifier: Apache-2.0
"""Loads of the members of a group, and how they are evened out where members subscribe to different topics.

Balanced: no chain of hand-overs, each to a member that subscribes to the topic, takes a partition from a member to one
that has two or more fewer. No assignment has a smaller sum of squared loads then (Harvey et al., Semi-Matchings for
Bipartite Graphs); with equal subscriptions loads differ by at most one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.core.groups.assignors.plan import Plan, Subscriber
from tidemark.core.groups.state import GroupPartition


class _Step(NamedTuple):
    """A member takes a partition of a topic from another one."""

    giver: int
    topic: str


class Loads:
    """Who has what while it is worked out. Members go by their index.

    Args:
        subscribers: by topic, the indexes of those that want it.
    """

    def __init__(self, members: Sequence[Subscriber], subscribers: Mapping[str, Sequence[int]]) -> None:
        self._members = members
        self._subscribers = subscribers
        self._had: list[dict[str, list[GroupPartition]]] = [{} for _ in members]
        self._load = [0] * len(members)
        self._owned: set[GroupPartition] = set()

    def hardest_first(self) -> list[str]:
        """Topics, those that the fewest members want first."""
        return sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))

    def has_owner(self, partition: GroupPartition) -> bool:
        """Whether somebody has it."""
        return partition in self._owned

    def keep(self, index: int, partition: GroupPartition) -> None:
        """A member goes on with what it had, unless another one does."""
        if partition not in self._owned:
            self._give(index, partition)

    def hand_out(self, partitions: Iterable[GroupPartition]) -> None:
        """Partitions of one topic that nobody has, each to the subscriber with the fewest."""
        waiting: list[tuple[int, int]] = []
        for partition in partitions:
            if not waiting:
                waiting = [(self._load[index], index) for index in self._subscribers[partition.topic]]
                heapq.heapify(waiting)
            load, index = waiting[0]
            self._give(index, partition)
            heapq.heapreplace(waiting, (load + 1, index))

    def balance(self) -> None:
        """Hand over, from those that have most, until it is balanced."""
        settled: set[int] = set()
        most = [(-load, index) for index, load in enumerate(self._load)]
        heapq.heapify(most)
        while most:
            load, giver = heapq.heappop(most)
            if giver in settled or -load != self._load[giver]:
                continue  # seen to, or its load has changed since: it is in the heap once more
            reached, taker = self._reachable(giver)
            if taker is None:
                # Whoever could be reached has at most one fewer, and reaches nobody else.
                settled.update(reached)
                settled.add(giver)
                continue
            self._hand_over(giver, taker, reached)
            heapq.heappush(most, (-self._load[giver], giver))
            heapq.heappush(most, (-self._load[taker], taker))

    def plan(self) -> Plan:
        """What each has."""
        return {
            member.member_id: frozenset(one for partitions in had.values() for one in partitions)
            for member, had in zip(self._members, self._had, strict=True)
        }

    def _give(self, index: int, partition: GroupPartition) -> None:
        self._had[index].setdefault(partition.topic, []).append(partition)
        self._load[index] += 1
        self._owned.add(partition)

    def _reachable(self, start: int) -> tuple[dict[int, _Step], int | None]:
        """How members are reached by the fewest hand-overs, and the first with two or more fewer than `start`."""
        reached: dict[int, _Step] = {}
        seen_topics: set[str] = set()
        level = [start]
        while level:
            following: list[int] = []
            for giver in level:
                for topic, partitions in self._had[giver].items():
                    if not partitions or topic in seen_topics:
                        continue
                    seen_topics.add(topic)
                    for taker in self._subscribers[topic]:
                        if taker != start and taker not in reached:
                            reached[taker] = _Step(giver, topic)
                            following.append(taker)
            best = min(following, key=lambda index: (self._load[index], index), default=None)
            if best is not None and self._load[best] <= self._load[start] - 2:
                return reached, best
            level = following
        return reached, None

    def _hand_over(self, start: int, taker: int, reached: Mapping[int, _Step]) -> None:
        at = taker
        while at != start:
            giver, topic = reached[at]
            self._had[at].setdefault(topic, []).append(self._had[giver][topic].pop())
            at = giver
        self._load[start] -= 1
        self._load[taker] += 1
