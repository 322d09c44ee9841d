# SPDX-License-Identifier: Apache-2.0
"""Balances the loads of the members of a group, which may subscribe to different topics.

Balanced: no chain of moves, each to a member that subscribes to the topic, takes a partition from a member to one with
at least two fewer. Then no assignment has a smaller sum of squared loads (Harvey et al., Semi-Matchings for
Bipartite Graphs); with equal subscriptions loads differ by at most one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.core.groups.assignors.plan import Plan, Subscriber
from tidemark.core.groups.state import GroupPartition


class _Step(NamedTuple):
    """A move of one partition of `topic` from the member `giver`."""

    giver: int
    topic: str


class Loads:
    """An assignment in progress. Members are named by their index.

    Args:
        subscribers: by topic, the indexes of its subscribers.
    """

    def __init__(self, members: Sequence[Subscriber], subscribers: Mapping[str, Sequence[int]]) -> None:
        self._members = members
        self._subscribers = subscribers
        self._had: list[dict[str, list[GroupPartition]]] = [{} for _ in members]
        self._load = [0] * len(members)
        self._owned: set[GroupPartition] = set()

    def hardest_first(self) -> list[str]:
        """The topics, those with the fewest subscribers first."""
        return sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))

    def has_owner(self, partition: GroupPartition) -> bool:
        """Whether a partition is assigned."""
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
                continue  # settled, or its load has changed since: the heap has a newer entry
            reached, taker = self._reachable(giver)
            if taker is None:
                # each member reached has at most one fewer, and reaches no other member
                settled.update(reached)
                settled.add(giver)
                continue
            self._move(giver, taker, reached)
            heapq.heappush(most, (-self._load[giver], giver))
            heapq.heappush(most, (-self._load[taker], taker))

    def plan(self) -> Plan:
        """The assignment of each member."""
        return {
            member.member_id: frozenset(one for partitions in had.values() for one in partitions)
            for member, had in zip(self._members, self._had, strict=True)
        }

    def _give(self, index: int, partition: GroupPartition) -> None:
        self._had[index].setdefault(partition.topic, []).append(partition)
        self._load[index] += 1
        self._owned.add(partition)

    def _reachable(self, start: int) -> tuple[dict[int, _Step], int | None]:
        """Members reached from `start` by the fewest moves, and the first one with at least two fewer partitions."""
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

    def _move(self, start: int, taker: int, reached: Mapping[int, _Step]) -> None:
        at = taker
        while at != start:
            giver, topic = reached[at]
            self._had[at].setdefault(topic, []).append(self._had[giver][topic].pop())
            at = giver
        self._load[start] -= 1
        self._load[taker] += 1
