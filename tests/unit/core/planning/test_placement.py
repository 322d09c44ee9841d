# SPDX-License-Identifier: Apache-2.0
"""Rule C4: replica placement, and its guarantees for clusters of 2 to 50 brokers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.planning.placement import assign_replicas
from tidemark.model import BrokerId, ErrorCode

from tests.refusals import raises_code


def brokers_of(count: int, racks: int = 0) -> dict[BrokerId, str]:
    return {BrokerId(index): f"rack-{index % racks}" if racks else "" for index in range(count)}


def test_the_first_topic_rotates_leaders_and_then_followers() -> None:
    assigned = assign_replicas(brokers_of(3), partitions=6, replication_factor=3)
    assert assigned == ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))


def test_a_second_topic_starts_at_the_broker_that_leads_fewest_and_rotates_on() -> None:
    first = assign_replicas(brokers_of(3), partitions=4, replication_factor=2)
    assert first == ((0, 1), (1, 2), (2, 0), (0, 2))
    assert assign_replicas(brokers_of(3), partitions=2, replication_factor=2, existing=first) == ((1, 0), (2, 1))


def test_one_broker_leads_everything_and_has_no_followers() -> None:
    assert assign_replicas({BrokerId(7): ""}, partitions=2, replication_factor=1) == ((7,), (7,))


def test_partitions_of_removed_brokers_do_not_count() -> None:
    gone = [(BrokerId(9), BrokerId(0))] * 5
    assert assign_replicas(brokers_of(2), partitions=1, replication_factor=2, existing=gone) == ((0, 1),)


@pytest.mark.parametrize("count", range(2, 51))
def test_replicas_are_distinct_and_a_failed_brokers_load_spreads_evenly(count: int) -> None:
    brokers = brokers_of(count)
    existing: list[tuple[BrokerId, ...]] = []
    for partitions, factor in ((count * (count - 1), 2), (count + 1, min(3, count)), (2 * count - 1, min(5, count))):
        assigned = assign_replicas(brokers, partitions=partitions, replication_factor=factor, existing=existing)
        assert all(len(set(replicas)) == factor == len(replicas) for replicas in assigned)
        existing += assigned
    leaders = Counter(replicas[0] for replicas in existing)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    for failed in brokers:
        heirs = Counter(replicas[1] for replicas in existing if replicas[0] == failed)
        floor, rest = divmod(leaders[failed], count - 1)
        assert all(heirs[survivor] in {floor, floor + bool(rest)} for survivor in brokers if survivor != failed)


@given(count=st.integers(2, 50), data=st.data())
@settings(max_examples=60, deadline=None)
def test_leaders_stay_balanced_over_any_topics_created_in_a_row(count: int, data: st.DataObject) -> None:
    brokers = brokers_of(count)
    existing: list[tuple[BrokerId, ...]] = []
    for partitions in data.draw(st.lists(st.integers(1, 2 * count), min_size=1, max_size=6)):
        factor = data.draw(st.integers(1, count))
        existing += assign_replicas(brokers, partitions=partitions, replication_factor=factor, existing=existing)
    leaders = Counter(replicas[0] for replicas in existing)
    assert max(leaders[broker] for broker in brokers) - min(leaders[broker] for broker in brokers) <= 1


@given(count=st.integers(2, 24), racks=st.integers(1, 6), factor=st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_replicas_are_spread_over_known_racks(count: int, racks: int, factor: int) -> None:
    factor, racks = min(factor, count), min(racks, count)
    brokers = brokers_of(count, racks)
    for replicas in assign_replicas(brokers, partitions=3 * count, replication_factor=factor):
        used = Counter(brokers[broker] for broker in replicas)
        assert len(set(replicas)) == factor
        assert len(used) == min(factor, racks)


def test_with_two_racks_the_brokers_of_the_other_rack_share_a_leaders_partitions() -> None:
    assigned = assign_replicas(brokers_of(6, 2), partitions=18, replication_factor=2)
    assert Counter(replicas[1] for replicas in assigned if replicas[0] == 0) == {1: 1, 3: 1, 5: 1}


def test_a_broker_of_unknown_rack_counts_as_a_rack_of_its_own() -> None:
    brokers = {BrokerId(0): "a", BrokerId(1): "a", BrokerId(2): "", BrokerId(3): ""}
    assigned = assign_replicas(brokers, partitions=12, replication_factor=3)
    assert not any({0, 1} <= set(replicas) for replicas in assigned)


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "numbers"),
    [
        (1, 4, ErrorCode.INVALID_REPLICATION_FACTOR, ("4", "3")),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR, ("0", "3")),
        (1, -1, ErrorCode.INVALID_REPLICATION_FACTOR, ("-1", "3")),
        (0, 1, ErrorCode.INVALID_PARTITIONS, ("0",)),
    ],
)
def test_counts_that_cannot_be_placed_are_refused_with_their_numbers(
    partitions: int, factor: int, code: ErrorCode, numbers: tuple[str, ...]
) -> None:
    with raises_code(code) as refused:
        assign_replicas(brokers_of(3), partitions=partitions, replication_factor=factor)
    assert all(number in refused.value.message for number in numbers)


def heirs_of(assigned: Iterable[tuple[BrokerId, ...]], failed: BrokerId) -> Counter[BrokerId]:
    """Partitions that each broker leads after this broker has failed."""
    return Counter(replicas[1] for replicas in assigned if len(replicas) > 1 and replicas[0] == failed)


def assert_even(counted: Mapping[BrokerId, int], survivors: Iterable[BrokerId]) -> None:
    counts = [counted.get(survivor, 0) for survivor in survivors]
    floor, rest = divmod(sum(counts), len(counts))
    assert set(counts) <= {floor, floor + bool(rest)}


@pytest.mark.parametrize("count", range(2, 51))
def test_topics_without_followers_take_no_turn_in_the_rotation(count: int) -> None:
    brokers = brokers_of(count)
    existing: list[tuple[BrokerId, ...]] = []
    for _ in range(min(count, 6)):
        existing += assign_replicas(brokers, partitions=count, replication_factor=1, existing=existing)
        existing += assign_replicas(brokers, partitions=count, replication_factor=2, existing=existing)
    for failed in brokers:
        assert_even(heirs_of(existing, failed), set(brokers) - {failed})


TOPICS = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 5)), min_size=1, max_size=6)


@given(count=st.integers(2, 50), topics=TOPICS)
@settings(max_examples=80, deadline=None)
def test_a_failed_brokers_partitions_spread_evenly_after_any_topics_created_in_a_row(
    count: int, topics: list[tuple[int, int]]
) -> None:
    brokers = brokers_of(count)
    existing: list[tuple[BrokerId, ...]] = []
    for partitions, factor in topics:
        existing += assign_replicas(
            brokers, partitions=partitions, replication_factor=min(factor, count), existing=existing
        )
    for failed in brokers:
        assert_even(heirs_of(existing, failed), set(brokers) - {failed})


@given(
    names=st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=2, max_size=20), topics=TOPICS, data=st.data()
)
@settings(max_examples=150, deadline=None)
def test_with_racks_the_successors_of_a_failed_broker_share_its_partitions_evenly(
    names: list[str], topics: list[tuple[int, int]], data: st.DataObject
) -> None:
    brokers = {BrokerId(index): name for index, name in enumerate(names)}
    racks = len({name for name in names if name}) + names.count("")
    within = data.draw(st.booleans(), label="no topic has more replicas than there are racks")
    if within and racks == 1:
        return
    existing: list[tuple[BrokerId, ...]] = []
    for partitions, wanted in topics:
        factor = min(wanted, racks) if within else max(wanted, racks + 1)
        existing += assign_replicas(
            brokers, partitions=partitions, replication_factor=min(factor, len(brokers)), existing=existing
        )
    for replicas in existing:
        assert len({brokers[one] or one for one in replicas}) == min(racks, len(replicas))
    everybody_apart = within or len(brokers) == racks
    for failed in brokers:
        others = set(brokers) - {failed}
        foreign = {one for one in others if not brokers[one] or brokers[one] != brokers[failed]}
        assert_even(heirs_of(existing, failed), foreign if everybody_apart else others)


def rack_spread(racks: Mapping[BrokerId, str], assigned: Iterable[tuple[BrokerId, ...]]) -> int:
    """Largest difference between the numbers of replicas of two brokers of one rack."""
    held = Counter(broker for replicas in assigned for broker in replicas)
    by_rack: dict[str, list[int]] = {}
    for broker, rack in racks.items():
        by_rack.setdefault(rack, []).append(held[broker])
    return max(max(counts) - min(counts) for counts in by_rack.values())


def test_brokers_of_one_rack_have_as_many_replicas_though_racks_differ_in_size() -> None:
    racks = {BrokerId(index): rack for index, rack in enumerate("aaabbcc")}
    assigned = assign_replicas(racks, partitions=13, replication_factor=3)
    held = Counter(broker for replicas in assigned for broker in replicas)
    assert sorted(held[broker] for broker in racks) == [4, 4, 5, 6, 6, 7, 7]
    assert rack_spread(racks, assigned) == 1
    added = assign_replicas(racks, partitions=8, replication_factor=3, existing=assigned)
    assert rack_spread(racks, assigned + added) == 1


@pytest.mark.parametrize("seed", range(100))
def test_with_a_replica_in_each_rack_the_replicas_of_a_rack_stay_even(seed: int) -> None:
    """Topics get more partitions; a leader's first followers are spread evenly first, so racks are only nearly even."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 5) for _ in range(draw.randint(3, 5))]
    names = [f"rack-{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    draw.shuffle(names)
    racks = {BrokerId(index): name for index, name in enumerate(names)}
    existing: list[tuple[BrokerId, ...]] = []
    for _ in range(draw.randint(1, 5)):
        existing += assign_replicas(
            racks, partitions=draw.randint(1, 60), replication_factor=len(sizes), existing=existing
        )
    assert rack_spread(racks, existing) <= 3


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("count", [7, 12])
def test_without_racks_the_replicas_of_whole_rounds_are_even(count: int, factor: int) -> None:
    assigned = assign_replicas(brokers_of(count), partitions=3 * count, replication_factor=factor)
    assert set(Counter(broker for replicas in assigned for broker in replicas).values()) == {3 * factor}


@pytest.mark.parametrize(
    ("racks", "partitions", "shared_wanted", "heirs_wanted"),
    [("aaabbcc", 13, {0, 1, 2, 3, 4, 5}, {0, 1}), ("", 100, {9, 10, 11, 12, 21, 22}, {2, 3})],
    ids=["racks", "no racks"],
)
def test_a_failed_broker_shares_as_many_partitions_with_others_as_the_page_says(
    racks: str, partitions: int, shared_wanted: set[int], heirs_wanted: set[int]
) -> None:
    brokers = {BrokerId(index): rack for index, rack in enumerate(racks)} or brokers_of(7)
    assigned = assign_replicas(brokers, partitions=partitions, replication_factor=3)
    for failed in brokers:
        shared = Counter(broker for replicas in assigned if failed in replicas for broker in replicas)
        heirs = Counter(replicas[1] for replicas in assigned if replicas[0] == failed)
        others = [broker for broker in brokers if broker != failed]
        assert {shared[broker] for broker in others} <= shared_wanted
        assert {heirs[broker] for broker in others} <= heirs_wanted
