# SPDX-License-Identifier: Apache-2.0
"""Plans for any cluster: balance, cost and refusals."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.planning.broker_plans import add_brokers, remove_brokers
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition

from tests.refusals import raises_code
from tests.unit.core.planning.test_broker_plans import (
    Cluster,
    apartness,
    check_books,
    cluster,
    racks_of,
    replicas_that_must_move,
    spread,
)

TOPICS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=5)


@given(st.integers(1, 8), st.integers(1, 3), TOPICS)
@settings(max_examples=150, deadline=None)
def test_new_brokers_get_an_even_part_by_the_fewest_copies(
    brokers: int, added: int, topics: list[tuple[int, int]]
) -> None:
    before = cluster(brokers, topics)
    racks = racks_of(range(brokers + added))
    plan = add_brokers(before.assignments, {}, racks, list(racks)[brokers:])
    check_books(before, plan, racks)
    assert spread(load.replicas for load in plan.after.values()) <= 1
    assert plan.moved_replicas == replicas_that_must_move(before, list(racks))
    for move in plan.moves:
        arrived = {*move.replicas} - {*before.assignments[move.partition]}
        assert all(
            broker >= brokers or plan.before[broker].replicas < plan.after[broker].replicas for broker in arrived
        )


@given(st.integers(3, 8), st.integers(1, 3), st.integers(10, 60), st.integers(2, 3))
@settings(max_examples=80, deadline=None)
def test_preferred_leaders_are_balanced_too(brokers: int, added: int, partitions: int, factor: int) -> None:
    before = cluster(brokers, [(partitions, factor), (partitions // 2, factor)])
    plan = add_brokers(before.assignments, {}, racks_of(range(brokers + added)), ())
    assert spread(load.leaders for load in plan.after.values()) <= 1


@given(st.integers(1, 8), TOPICS)
@settings(max_examples=80, deadline=None)
def test_a_balanced_cluster_stays_as_it_is(brokers: int, topics: list[tuple[int, int]]) -> None:
    before = cluster(brokers, topics)
    even = Cluster(before.racks, before.after(add_brokers(before.assignments, {}, before.racks)), {})
    assert add_brokers(even.assignments, {}, even.racks).moves == ()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(3, 6), st.integers(1, 2))
@settings(max_examples=80, deadline=None)
def test_a_small_imbalance_copies_no_more_bytes_than_balance_needs(sizes: list[int], brokers: int, added: int) -> None:
    before = cluster(brokers, [(60, 2), (60, 2)], sizes)
    racks = racks_of(range(brokers + added))
    plan = add_brokers(before.assignments, before.sizes_bytes, racks, list(racks)[brokers:])
    check_books(before, plan, racks)
    mean = sum(load.replica_bytes for load in plan.after.values()) / len(racks)
    must = sum(max(0.0, load.replica_bytes - mean) for load in plan.before.values())
    assert plan.moved_bytes <= 1.25 * must + 4 * max(sizes)


@given(st.integers(3, 9), st.integers(1, 3), st.integers(2, 4), TOPICS)
@settings(max_examples=150, deadline=None)
def test_no_plan_puts_more_replicas_into_one_rack(
    brokers: int, changed: int, racks: int, topics: list[tuple[int, int]]
) -> None:
    before = cluster(brokers, topics, racks=racks)
    names = racks_of(range(brokers + changed), racks)
    added = add_brokers(before.assignments, {}, names, list(names)[brokers:])
    check_books(before, added, names)
    for move in added.moves:
        assert apartness(names, move.replicas) >= apartness(names, before.assignments[move.partition])
    gone = set(list(before.racks)[: min(changed, brokers - 2)])
    try:
        removed = remove_brokers(before.assignments, {}, before.racks, gone)
    except TidemarkError:
        return
    left = {broker: rack for broker, rack in before.racks.items() if broker not in gone}
    check_books(before, removed, left)
    for move in removed.moves:
        possible = min(len(move.replicas), len(set(left.values())))
        original = apartness(before.racks, before.assignments[move.partition])
        assert apartness(left, move.replicas) >= min(possible, original)


@st.composite
def worn_clusters(draw: st.DrawFn) -> Cluster:
    """Clusters of any history: lists edited manually, racks of some brokers only, dead brokers."""
    brokers = draw(st.integers(1, 8))
    names = draw(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=brokers, max_size=brokers))
    ids = st.integers(0, brokers + draw(st.integers(0, 2)) - 1).map(BrokerId)
    lists = draw(st.lists(st.lists(ids, min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=40))
    sizes = draw(st.lists(st.integers(0, 1000), min_size=len(lists), max_size=len(lists)))
    partitions = [TopicPartition(f"t{place % 3}", place // 3) for place in range(len(lists))]
    return Cluster(
        {BrokerId(broker): name for broker, name in enumerate(names)},
        dict(zip(partitions, lists, strict=True)),
        dict(zip(partitions, sizes, strict=True)),
    )


@given(worn_clusters())
@settings(max_examples=300, deadline=None)
def test_an_executed_plan_leaves_nothing_to_plan(before: Cluster) -> None:
    plan = add_brokers(before.assignments, before.sizes_bytes, before.racks)
    check_books(before, plan, before.racks)
    after = before.after(plan)
    assert add_brokers(after, before.sizes_bytes, before.racks).moves == ()
    for partition, replicas in after.items():
        assert apartness(before.racks, replicas) >= apartness(before.racks, before.assignments[partition])
        for old, new in zip(before.assignments[partition], replicas, strict=True):
            assert new == old or {old, new} <= {*before.racks}, "the dead keep their places"


@given(st.integers(2, 9), st.integers(1, 3), TOPICS)
@settings(max_examples=150, deadline=None)
def test_removing_brokers_moves_their_replicas_and_no_others(
    brokers: int, removed: int, topics: list[tuple[int, int]]
) -> None:
    before = cluster(brokers, topics)
    gone = set(list(before.racks)[-removed:])
    left = [broker for broker in before.racks if broker not in gone]
    tight = {one.topic for one, replicas in before.assignments.items() if len(replicas) > len(left)}
    if tight:
        with raises_code(ErrorCode.INVALID_REPLICATION_FACTOR) as refused:
            remove_brokers(before.assignments, {}, before.racks, gone)
        assert refused.value.metadata["topics"] == ", ".join(sorted(tight))
        return
    plan = remove_brokers(before.assignments, {}, before.racks, gone)
    check_books(before, plan, left)
    after = before.after(plan)
    for partition, replicas in before.assignments.items():
        assert not gone & {*after[partition]}
        for old, new in zip(replicas, after[partition], strict=True):
            assert old in gone or new == old
    kept = Counter(broker for replicas in before.assignments.values() for broker in replicas if broker not in gone)
    held = {broker: plan.after[broker].replicas for broker in left}
    given_to = [broker for broker in left if held[broker] > kept[broker]]
    for giver in given_to:
        for other in left:
            if held[giver] - held[other] >= 2:  # then no replica that moved to the one could have moved to the other
                assert all(
                    other in after[partition] or giver in before.assignments[partition] or giver not in after[partition]
                    for partition in after
                )
