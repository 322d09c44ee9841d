# SPDX-License-Identifier: Apache-2.0
"""Balances replicas, bytes and preferred leaders over the live brokers, each separately. Pure.

Each function repeats changes that bring two brokers closer together, until no such change is left. Where no replica can
move directly between two brokers (because of racks, or leaders), it moves replicas along a chain of brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

from tidemark.core.planning.replica_layout import Held, ReplicaLayout
from tidemark.model import BrokerId

BYTES_TOLERANCE: Final = 0.1
"""Brokers are balanced in bytes while each is within this part of the mean."""

_Pair = tuple[BrokerId, BrokerId]


def even_counts(layout: ReplicaLayout, *, again: bool = False) -> bool:
    """Give each broker the floor or the ceiling of the mean number of replicas, as far as racks allow.

    The planner moves as few replicas as possible, and chooses sizes that bring each broker's bytes nearest to the
    mean. `again`: a replica may move twice. Pairs of brokers without a movable replica are tried again after other
    moves. Returns whether a replica moved.
    """
    shut: set[_Pair] = set()
    closed: set[_Pair] = set()
    moved = False
    fresh = True
    while True:
        path = _count_path(layout, shut)
        if path is not None:
            fresh = False
            for source, target in reversed(list(pairwise(path))):
                found = _find_for_count(layout, source, target)
                if found is None:  # another step has moved the same partition; no retry, so that the loop ends
                    closed.add((source, target))
                    shut.add((source, target))
                    break
                layout.move(found, source, target, again=again)
                moved = True
        elif fresh or not again:
            return moved
        else:  # an obstructing replica may have moved since
            shut = set(closed)
            layout.look_again()
            fresh = True


def _count_path(layout: ReplicaLayout, shut: set[_Pair]) -> list[BrokerId] | None:
    count, load = layout.count, layout.load_bytes
    fullest = sorted(layout.brokers, key=lambda broker: (-count[broker], -load[broker], broker))
    emptiest = sorted(layout.brokers, key=lambda broker: (count[broker], load[broker], broker))

    def opens(source: BrokerId, target: BrokerId) -> bool:
        if (source, target) in shut:
            return False
        if _find_for_count(layout, source, target) is None:
            shut.add((source, target))
            return False
        return True

    for source in fullest:
        for target in emptiest:
            if count[source] - count[target] < 2:
                break
            if opens(source, target):
                return [source, target]
    return _bridge(fullest, emptiest, count, opens)


def _bridge(
    fullest: Iterable[BrokerId],
    emptiest: Iterable[BrokerId],
    count: Mapping[BrokerId, int],
    opens: Callable[[BrokerId, BrokerId], bool],
) -> list[BrokerId] | None:
    """The shortest chain from a full broker to a broker with at least 2 replicas less."""
    order = list(emptiest)
    for source in fullest:
        if count[source] - count[order[0]] < 2:
            return None
        came_from: dict[BrokerId, BrokerId | None] = {source: None}
        frontier = [source]
        while frontier:
            reached = []
            for broker in frontier:
                for target in order:
                    if target in came_from or not opens(broker, target):
                        continue
                    came_from[target] = broker
                    reached.append(target)
                    if count[source] - count[target] >= 2:
                        return _way_back(target, came_from)
            frontier = reached
    return None


def _way_back(target: BrokerId, came_from: Mapping[BrokerId, BrokerId | None]) -> list[BrokerId]:
    path = [target]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def _find_for_count(layout: ReplicaLayout, source: BrokerId, target: BrokerId) -> Held | None:
    """A replica of about the surplus of the source, and the deficit of the target, divided by the replicas to move."""
    brokers = len(layout.brokers)
    mean_count = sum(layout.count.values()) / brokers
    mean_bytes = sum(layout.load_bytes.values()) / brokers
    given = (layout.load_bytes[source] - mean_bytes) / max(1.0, layout.count[source] - mean_count)
    taken = (mean_bytes - layout.load_bytes[target]) / max(1.0, mean_count - layout.count[target])
    return layout.find(source, target, max(0.0, (given + taken) / 2))


# -- bytes -----------------------------------------------------------------------------------------------------


def even_bytes(layout: ReplicaLayout) -> bool:
    """Bring brokers that are farther than BYTES_TOLERANCE from the mean nearer to it; counts keep their balance.

    A large replica is exchanged for a small one, if the gain is at least half of the bytes copied. Returns whether a
    replica moved.
    """
    shut: set[_Pair] = set()
    fresh = True
    moved = False
    while True:
        if _shift_bytes(layout, shut):
            fresh = False
            moved = True
        elif fresh:
            return moved
        else:
            shut.clear()
            layout.look_again()
            fresh = True


def _shift_bytes(layout: ReplicaLayout, shut: set[_Pair]) -> bool:
    load = layout.load_bytes
    mean = sum(load.values()) / len(load)
    lowest, highest = mean * (1 - BYTES_TOLERANCE), mean * (1 + BYTES_TOLERANCE)
    heaviest = sorted(layout.brokers, key=lambda broker: (-load[broker], broker))
    for source in heaviest:
        for target in reversed(heaviest):
            uneven = load[source] > highest or load[target] < lowest
            if not uneven or load[source] <= mean or load[target] >= mean:
                break
            if (source, target) in shut:
                continue
            if _shift_between(layout, source, target, min(load[source] - mean, mean - load[target])):
                return True
            shut.add((source, target))
    return False


def _shift_between(layout: ReplicaLayout, source: BrokerId, target: BrokerId, gap_bytes: float) -> bool:
    if layout.count[source] > layout.count[target]:
        large = layout.find(source, target, gap_bytes)
        if large is not None and 0 < large.size_bytes < 2 * gap_bytes:
            layout.move(large, source, target, again=True)
            return True
    small = layout.find(target, source, 0)
    if small is None:
        return False
    large = layout.find(source, target, gap_bytes + small.size_bytes)
    if large is None or not 0 < large.size_bytes - small.size_bytes < 2 * gap_bytes:
        return False
    cost = layout.cost_bytes(large, source, target) + layout.cost_bytes(small, target, source)
    if 2 * (large.size_bytes - small.size_bytes) < cost:
        return False
    layout.move(large, source, target, again=True)
    layout.move(small, target, source, again=True)
    return True


# -- preferred leaders -----------------------------------------------------------------------------------------


def even_leaders(layout: ReplicaLayout) -> None:
    """Make each live broker the preferred leader of as many partitions as every other, within one, if possible.

    Only the order of replicas changes, which copies nothing; first for partitions that are reassigned anyway.
    """
    led = _led_with(layout)
    leaders = dict.fromkeys(layout.brokers, 0)
    for replicas in layout.replicas:
        if replicas and replicas[0] in leaders:
            leaders[replicas[0]] += 1
    while True:
        most = sorted(layout.brokers, key=lambda broker: (-leaders[broker], broker))
        fewest = sorted(layout.brokers, key=lambda broker: (leaders[broker], broker))
        path = _bridge(most, fewest, leaders, lambda source, target: bool(led[source, target]))
        if path is None:
            return
        for source, target in pairwise(path):
            index, _ = led[source, target].popitem()
            _lead(layout, index, source, target, led)
        leaders[path[0]] -= 1
        leaders[path[-1]] += 1


def _led_with(layout: ReplicaLayout) -> dict[_Pair, dict[int, None]]:
    """Partitions by two live brokers, of which one leads by preference and the other follows; used from the end."""
    led: dict[_Pair, dict[int, None]] = {(one, other): {} for one in layout.brokers for other in layout.brokers}
    order = sorted(
        range(len(layout.partitions)),
        key=lambda index: (
            tuple(layout.replicas[index]) != layout.original[index],
            -layout.partitions[index].partition,
            layout.partitions[index].topic,
        ),
    )
    for index in order:
        replicas = layout.replicas[index]
        for other in replicas[1:]:
            if (replicas[0], other) in led:
                led[replicas[0], other][index] = None
    return led


def _lead(
    layout: ReplicaLayout, index: int, source: BrokerId, target: BrokerId, led: dict[_Pair, dict[int, None]]
) -> None:
    replicas = layout.replicas[index]
    for other in replicas[1:]:
        if (source, other) in led:
            led[source, other].pop(index, None)
    layout.swap(index, 0, replicas.index(target))
    for other in replicas[1:]:
        if (target, other) in led:
            led[target, other][index] = None


def even_successors(layout: ReplicaLayout) -> None:
    """Order followers so that a leader's partitions are spread over the brokers that lead if the leader fails.

    Changes only the lists of partitions that the plan reassigns already, and copies no replica.
    """
    successors = Counter((replicas[0], replicas[1]) for replicas in layout.replicas if len(replicas) > 1)
    open_lists = [
        index
        for index, replicas in enumerate(layout.replicas)
        if len(replicas) > 2 and replicas[1] in layout.count and tuple(replicas) != layout.original[index]
    ]
    moved = True
    while moved:
        moved = False
        for index in open_lists:
            leader, successor, *others = layout.replicas[index]
            turns = [(successors[leader, broker], broker) for broker in others if broker in layout.count]
            least, better = min(turns, default=(successors[leader, successor], successor))
            if successors[leader, successor] - least >= 2:
                layout.swap(index, 1, layout.replicas[index].index(better))
                successors[leader, successor] -= 1
                successors[leader, better] += 1
                moved = True
