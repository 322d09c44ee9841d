# SPDX-License-Identifier: Apache-2.0
"""Assigned replicas while a plan is made: the working state of core/planning/broker_plans.py. Pure.

Brokers that are not live, or being removed, may have replicas; they get no more, and their load is not counted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from tidemark.model import BrokerId, TopicPartition


class Held(NamedTuple):
    """A replica on a broker; `find` tries the replicas of a broker in the order of these fields.

    Attributes:
        size_bytes: size in bytes of the replica.
        share: number of this replica among the broker's replicas of its topic, divided by their count: 1/n to 1.
            Replicas of equal size are therefore taken from all topics in proportion.
        place: index of the partition in `ReplicaLayout.partitions`.
    """

    size_bytes: int
    share: float
    place: int


class ReplicaLayout:
    """Assigned replicas by partition index, and their sums on each live broker.

    Attributes:
        partitions: sorted; the other attributes use indices of this list.
        original: assigned replicas before the plan.
        replicas: assigned replicas now.
        size_bytes: size in bytes of one replica of each partition.
        brokers: live brokers that stay, sorted.
        count, load_bytes: replicas on each of them, and their bytes. Invariant: follow `replicas`.
        _held: replicas that `find` tries, by broker, sorted.
        _between: the replicas of `_held` that may still move from one broker to another.
    """

    def __init__(
        self,
        assignments: Mapping[TopicPartition, tuple[BrokerId, ...]],
        sizes_bytes: Mapping[TopicPartition, int],
        racks: Mapping[BrokerId, str],
        leaving: Collection[BrokerId] = (),
    ) -> None:
        self.partitions = sorted(assignments)
        self.original = [tuple(assignments[partition]) for partition in self.partitions]
        self.replicas = [list(replicas) for replicas in self.original]
        self.size_bytes = [sizes_bytes.get(partition, 0) for partition in self.partitions]
        self.brokers = sorted(broker for broker in racks if broker not in leaving)
        self.count = dict.fromkeys(self.brokers, 0)
        self.load_bytes = dict.fromkeys(self.brokers, 0)
        names = {broker: racks.get(broker) or broker for broker in {*racks, *chain.from_iterable(self.original)}}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
        self._rack = {broker: numbers[name] for broker, name in names.items()}
        self._racks_matter = len(numbers) < len(names)
        self._racks = [[self._rack[broker] for broker in replicas] for replicas in self.original]
        self._held: dict[BrokerId, list[Held]] = {broker: [] for broker in self.brokers}
        self._between: dict[tuple[BrokerId, BrokerId], list[Held]] = {}
        for index, replicas in enumerate(self.replicas):
            for broker in replicas:
                if broker in self.count:
                    self.count[broker] += 1
                    self.load_bytes[broker] += self.size_bytes[index]

    def look_through(self, movable: Iterable[tuple[int, BrokerId]] | None = None) -> None:
        """Set the replicas that `find` tries, as (partition index, broker); None: all on live brokers."""
        if movable is None:
            movable = (
                (index, broker)
                for index, replicas in enumerate(self.replicas)
                for broker in replicas
                if broker in self.count
            )
        by_broker: dict[BrokerId, list[int]] = {broker: [] for broker in self.brokers}
        for index, broker in movable:
            by_broker[broker].append(index)
        self._between.clear()
        for broker, indices in by_broker.items():
            topics = Counter(self.partitions[index].topic for index in indices)
            met: Counter[str] = Counter()
            held = []
            for index in indices:
                topic = self.partitions[index].topic
                met[topic] += 1
                held.append(Held(self.size_bytes[index], met[topic] / topics[topic], index))
            self._held[broker] = sorted(held)

    def find(self, source: BrokerId, target: BrokerId, size_bytes: float) -> Held | None:
        """The replica on `source` of the nearest size that may move to `target`; None: no such replica.

        A replica that may not move there is not tried again until `look_again`, which keeps repeated calls cheap.
        """
        held = self._between.get((source, target))
        if held is None:
            held = self._between[source, target] = list(self._held[source])
        right = bisect_left(held, (size_bytes,))
        left = right - 1
        found = None
        while found is None and (left >= 0 or right < len(held)):
            if left < 0 or (right < len(held) and held[right][0] - size_bytes < size_bytes - held[left][0]):
                one, right = held[right], right + 1
            else:
                one, left = held[left], left - 1
            if self.fits(one.place, source, target):
                found = one
        if found is None:
            held.clear()
        elif right - left > 2:
            held[left + 1 : right] = [found]
        return found

    def look_again(self) -> None:
        """Let `find` try every replica again: other moves may have made room."""
        self._between.clear()

    def fits(self, index: int, source: BrokerId, target: BrokerId) -> bool:
        """Whether the replica may move: the target has none, and no more replicas share a rack than before."""
        replicas = self.replicas[index]
        if target in replicas or source not in replicas:
            return False
        if not self._racks_matter:
            return True
        here, there = self._rack[source], self._rack[target]
        racks = self._racks[index]
        return here == there or racks.count(there) < racks.count(here)

    def in_rack_of(self, broker: BrokerId, replicas: Iterable[BrokerId]) -> int:
        """The number of these replicas in this broker's rack; a broker whose rack is unknown is a separate rack."""
        rack = self._rack[broker]
        return sum(self._rack[other] == rack for other in replicas)

    def move(self, one: Held, source: BrokerId, target: BrokerId, *, again: bool = False) -> None:
        """Replace the source by the target in the list; `again`: the replica may move once more."""
        held = self._held[source]
        del held[bisect_left(held, one)]
        if again:
            insort(self._held[target], one)
            for (other, _), between in self._between.items():
                if other == target:
                    insort(between, one)
        self.put(one.place, self.replicas[one.place].index(source), target)

    def put(self, index: int, position: int, target: BrokerId) -> None:
        """Replace the broker at that position of the list by the target."""
        source, size_bytes = self.replicas[index][position], self.size_bytes[index]
        self.replicas[index][position] = target
        self._racks[index][position] = self._rack[target]
        self.count[target] += 1
        self.load_bytes[target] += size_bytes
        if source in self.count:
            self.count[source] -= 1
            self.load_bytes[source] -= size_bytes

    def swap(self, index: int, one: int, other: int) -> None:
        """Exchange the brokers at these positions of the list."""
        replicas, racks = self.replicas[index], self._racks[index]
        replicas[one], replicas[other] = replicas[other], replicas[one]
        racks[one], racks[other] = racks[other], racks[one]

    def cost_bytes(self, one: Held, source: BrokerId, target: BrokerId) -> int:
        """Additional bytes to copy for this move; less than 0 for a move back."""
        original = self.original[one.place]
        return self.size_bytes[one.place] * ((target not in original) - (source not in original))
