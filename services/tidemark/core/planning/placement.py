# SPDX-License-Identifier: Apache-2.0
"""Replica placement for a new topic (rule C4: the list of brokers is rotated). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tidemark.model import BrokerId, ErrorCode, TidemarkError


def assign_replicas(
    brokers: Mapping[BrokerId, str],
    *,
    partitions: int,
    replication_factor: int,
    existing: Iterable[tuple[BrokerId, ...]] = (),
) -> tuple[tuple[BrokerId, ...], ...]:
    """The assigned replicas of every partition of a new topic, the preferred leader first (rule C4).

    Args:
        brokers: live brokers and their racks; "" where the rack is unknown.
        partitions: their number, 1 or more.
        replication_factor: replicas of each partition, 1 to the number of live brokers.
        existing: assigned replicas of every partition that exists, in any order.

    Raises:
        TidemarkError: INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR.
    """
    check_counts(len(brokers), partitions=partitions, replication_factor=replication_factor)
    ring = sorted(brokers)
    before = [replicas for replicas in existing if replicas]
    preferred = Counter(replicas[0] for replicas in before)
    start = min(range(len(ring)), key=lambda index: (preferred[ring[index]], index))
    followed = Counter((replicas[0], follower) for replicas in before for follower in replicas[1:])
    successors = Counter((replicas[0], replicas[1]) for replicas in before if len(replicas) > 1)
    with_successor = Counter(replicas[0] for replicas in before if len(replicas) > 1)
    held = Counter(broker for replicas in before for broker in replicas)
    # The leaders of this topic are known already: a broker must not count as idle because it leads a later partition.
    held.update(ring[(start + partition) % len(ring)] for partition in range(partitions))
    apart = _shares_a_rack(brokers)
    assigned = []
    for partition in range(partitions):
        position = (start + partition) % len(ring)
        leader = ring[position]
        followers = _follower_order(ring, position, with_successor[leader])
        if apart and replication_factor > 1:
            followers.sort(key=lambda broker: (held[broker], followed[leader, broker]))
            successor = _successor_apart(brokers, leader, followers, replication_factor, successors)
            followers = _keep_racks_apart(brokers, leader, successor, followers, replication_factor - 1)
        replicas = (leader, *followers[: replication_factor - 1])
        held.update(replicas[1:])
        followed.update((leader, follower) for follower in replicas[1:])
        if len(replicas) > 1:
            with_successor[leader] += 1
            successors[leader, replicas[1]] += 1
        assigned.append(replicas)
    return tuple(assigned)


def check_counts(live_brokers: int, *, partitions: int, replication_factor: int) -> None:
    """Raise INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR for counts that cannot be placed."""
    if partitions < 1:
        raise TidemarkError(ErrorCode.INVALID_PARTITIONS, f"a topic needs at least 1 partition, not {partitions}")
    if replication_factor < 1:
        raise TidemarkError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is less than 1; {live_brokers} brokers are live",
        )
    if replication_factor > live_brokers:
        raise TidemarkError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of live brokers, {live_brokers}",
        )


def _follower_order(ring: Sequence[BrokerId], leader: int, led_before: int) -> list[BrokerId]:
    """Every broker except the leader, in the order of following; rotated by one for each partition led before.

    `led_before` counts only partitions with followers, since other partitions take no turn. The rotation is over the
    n - 1 other brokers, since (i + j + k) mod n could give the leader. The first followers of a leader's partitions are
    then spread over the other brokers with a difference of one at most.
    """
    others = len(ring) - 1
    return [ring[(leader + 1 + (index + led_before) % others) % len(ring)] for index in range(others)]


def _shares_a_rack(brokers: Mapping[BrokerId, str]) -> bool:
    known = [rack for rack in brokers.values() if rack]
    return len(set(known)) < len(known)


def _successor_apart(
    brokers: Mapping[BrokerId, str],
    leader: BrokerId,
    order: Sequence[BrokerId],
    replication_factor: int,
    successors: Mapping[tuple[BrokerId, BrokerId], int],
) -> BrokerId:
    """The first follower, which leads if the leader fails: successor of this leader in the fewest partitions.

    Of several such brokers, the first in the order is chosen. Its rack is another one than the leader's,
    unless there are more replicas than racks.
    """
    racks = {_rack(brokers, broker) for broker in brokers}
    same = _rack(brokers, leader)
    allowed = [broker for broker in order if replication_factor > len(racks) or _rack(brokers, broker) != same]
    return min(allowed, key=lambda broker: successors.get((leader, broker), 0))


def _keep_racks_apart(
    brokers: Mapping[BrokerId, str], leader: BrokerId, successor: BrokerId, order: Sequence[BrokerId], count: int
) -> list[BrokerId]:
    """The first follower and more, each from the least used rack, then the first in the order.

    A broker whose rack is unknown counts as a separate rack.
    """
    used = Counter([_rack(brokers, leader), _rack(brokers, successor)])
    chosen = [successor]
    left = [broker for broker in order if broker != successor]
    for _ in range(count - 1):
        follower = min(left, key=lambda broker: used[_rack(brokers, broker)])
        left.remove(follower)
        chosen.append(follower)
        used[_rack(brokers, follower)] += 1
    return chosen


def _rack(brokers: Mapping[BrokerId, str], broker: BrokerId) -> tuple[str, BrokerId | None]:
    rack = brokers[broker]
    return (rack, None) if rack else ("", broker)
