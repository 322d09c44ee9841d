# SPDX-License-Identifier: Apache-2.0
"""Plans: balance, cost and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.core.planning.broker_plans import Plan, add_brokers, generate, remove_brokers
from tidemark.core.planning.placement import assign_replicas
from tidemark.core.reassignment.request import check_reassignments, format_reassignments, parse_reassignments
from tidemark.model import BrokerId, ErrorCode, TopicDescription, TopicPartition

from tests.refusals import raises_code


@dataclass(frozen=True)
class Cluster:
    racks: Mapping[BrokerId, str]
    assignments: Mapping[TopicPartition, tuple[BrokerId, ...]]
    sizes_bytes: Mapping[TopicPartition, int]

    def after(self, plan: Plan) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        return dict(self.assignments) | {move.partition: move.replicas for move in plan.moves}


def racks_of(brokers: Iterable[int], racks: int = 0) -> dict[BrokerId, str]:
    return {BrokerId(broker): f"rack-{broker % racks}" if racks else "" for broker in brokers}


def cluster(
    brokers: int, topics: Sequence[tuple[int, int]], sizes_bytes: Sequence[int] = (), *, racks: int = 0
) -> Cluster:
    """A cluster with topics of (partitions, replication factor), created in order; sizes are used in turn."""
    assignments: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for number, (partitions, factor) in enumerate(topics):
        lists = assign_replicas(
            racks_of(range(brokers), racks),
            partitions=partitions,
            replication_factor=min(factor, brokers),
            existing=assignments.values(),
        )
        assignments |= {TopicPartition(f"t{number}", index): replicas for index, replicas in enumerate(lists)}
    sizes = {one: sizes_bytes[place % len(sizes_bytes)] for place, one in enumerate(assignments)} if sizes_bytes else {}
    return Cluster(racks_of(range(brokers), racks), assignments, sizes)


def apartness(racks: Mapping[BrokerId, str], replicas: Iterable[BrokerId]) -> int:
    """The number of racks; an unknown rack counts as one of its own."""
    return len({racks.get(broker) or broker for broker in replicas})


def check_books(before: Cluster, plan: Plan, live: Iterable[BrokerId]) -> None:
    """Invariants of every plan: lists are valid and keep their length, and the cost is that of the copies."""
    after = before.after(plan)
    moved = 0
    moved_bytes = 0
    for move, current in zip(plan.moves, plan.current, strict=True):
        original = before.assignments[move.partition]
        assert current.partition == move.partition
        assert current.replicas == original != move.replicas
        assert len(set(move.replicas)) == len(move.replicas) == len(original)
        assert {*move.replicas} <= {*live, *original}
        new = len({*move.replicas} - {*original})
        moved += new
        moved_bytes += new * before.sizes_bytes.get(move.partition, 0)
    assert (plan.moved_replicas, plan.moved_bytes) == (moved, moved_bytes)
    assert [move.partition for move in plan.moves] == sorted(move.partition for move in plan.moves)
    for loads, lists in ((plan.before, before.assignments), (plan.after, after)):
        held = Counter(broker for replicas in lists.values() for broker in replicas)
        leaders = Counter(replicas[0] for replicas in lists.values() if replicas)
        assert {broker: load.replicas for broker, load in loads.items() if load.replicas} == held
        assert {broker: load.leaders for broker, load in loads.items() if load.leaders} == leaders
        assert sum(load.replica_bytes for load in loads.values()) == sum(
            len(replicas) * before.sizes_bytes.get(partition, 0) for partition, replicas in lists.items()
        )


def replicas_that_must_move(before: Cluster, live: Sequence[BrokerId]) -> int:
    """The fewest after which every live broker has the floor or the ceiling of the mean."""
    held = Counter(broker for replicas in before.assignments.values() for broker in replicas)
    counts = [held[broker] for broker in live]
    floor, rest = divmod(sum(counts), len(counts))
    too_few = sum(max(0, floor - count) for count in counts)
    too_many = sum(max(0, count - floor - bool(rest)) for count in counts)
    return max(too_few, too_many)


def spread(values: Iterable[int]) -> int:
    counted = list(values)
    return max(counted) - min(counted)


def test_a_cluster_as_created_needs_no_reassignment() -> None:
    for racks in (0, 3):
        before = cluster(6, [(30, 3), (12, 2)], [1000], racks=racks)
        assert add_brokers(before.assignments, before.sizes_bytes, before.racks).moves == ()


def test_bytes_are_even_where_sizes_differ_a_thousandfold() -> None:
    before = cluster(5, [(100, 2), (50, 3)], [10**3, 10**6, 3 * 10**5, 7, 5 * 10**5, 10**4, 2 * 10**5])
    racks = racks_of(range(6))
    plan = add_brokers(before.assignments, before.sizes_bytes, racks, [BrokerId(5)])
    mean = sum(load.replica_bytes for load in plan.after.values()) / 6
    assert all(0.9 * mean <= load.replica_bytes <= 1.1 * mean for load in plan.after.values())
    assert plan.moved_bytes <= 1.1 * mean
    assert spread(load.replicas for load in plan.after.values()) <= 1


def test_a_broker_that_is_even_in_replicas_but_heavy_swaps_large_ones_for_small_ones() -> None:
    names = [TopicPartition("t", index) for index in range(8)]
    lists = {one: (BrokerId(place % 2),) for place, one in enumerate(names)}
    sizes = {one: 100 if place % 2 == 0 else 1 for place, one in enumerate(names)}
    plan = add_brokers(lists, sizes, racks_of(range(2)))
    assert {broker: load.replicas for broker, load in plan.after.items()} == {0: 4, 1: 4}
    assert {broker: load.replica_bytes for broker, load in plan.after.items()} == {0: 202, 1: 202}
    assert plan.moved_bytes == 202


def test_a_new_brokers_partitions_are_spread_over_the_others_if_it_fails() -> None:
    before = cluster(5, [(300, 3)])
    racks = racks_of(range(6))
    plan = add_brokers(before.assignments, {}, racks, [BrokerId(5)])
    lists = before.after(plan).values()
    heirs = Counter(replicas[1] for replicas in lists if replicas[0] == 5)
    assert spread(heirs[BrokerId(broker)] for broker in range(5)) <= 2
    assert all({*move.replicas} - {*before.assignments[move.partition]} == {5} for move in plan.moves)


def test_a_new_broker_gets_partitions_of_all_topics_alike() -> None:
    before = cluster(4, [(60, 2), (60, 2), (120, 2)])
    plan = add_brokers(before.assignments, {}, racks_of(range(5)), [BrokerId(4)])
    arrived = Counter(move.partition.topic for move in plan.moves if 4 in move.replicas)
    assert arrived == {"t0": 24, "t1": 24, "t2": 48}


def test_replicas_of_one_partition_that_are_replaced_together_keep_their_racks() -> None:
    lists = {TopicPartition("t", 0): tuple(racks_of((0, 1, 2)))}
    plan = remove_brokers(lists, {}, racks_of(range(6), 3), {BrokerId(0), BrokerId(1)})
    assert [move.replicas for move in plan.moves] == [(3, 4, 2)]


def test_a_new_broker_in_a_rack_shares_the_load_of_that_rack() -> None:
    before = cluster(6, [(60, 3)], racks=3)
    plan = add_brokers(before.assignments, {}, racks_of(range(7), 3), [BrokerId(6)])
    assert {broker: load.replicas for broker, load in plan.after.items()} == {
        **dict.fromkeys((0, 3, 6), 20),
        **dict.fromkeys((1, 2, 4, 5), 30),
    }
    assert spread(load.leaders for load in plan.after.values()) <= 1


def test_a_failed_broker_can_be_removed_and_its_leaders_are_spread() -> None:
    before = cluster(5, [(100, 3)])
    plan = remove_brokers(before.assignments, {}, racks_of(range(4)), {BrokerId(4)})
    assert [plan.after[broker].replicas for broker in racks_of(range(4))] == [75] * 4
    assert [plan.after[broker].leaders for broker in racks_of(range(4))] == [25] * 4
    assert plan.after[BrokerId(4)].replicas == 0
    assert plan.before[BrokerId(4)].replicas == 60


def test_replicas_on_brokers_that_are_not_live_stay() -> None:
    before = cluster(4, [(40, 2)])
    plan = add_brokers(before.assignments, {}, racks_of((0, 1, 2, 5)), [BrokerId(5)])
    check_books(before, plan, racks_of((0, 1, 2, 5)))
    assert plan.after[BrokerId(3)] == plan.before[BrokerId(3)]
    assert spread(plan.after[BrokerId(broker)].replicas for broker in (0, 1, 2, 5)) <= 1


def test_a_plan_needs_live_brokers() -> None:
    before = cluster(3, [(3, 2)])
    for refused in (
        lambda: add_brokers(before.assignments, {}, before.racks, [BrokerId(8), BrokerId(1), BrokerId(7)]),
        lambda: generate(before.assignments, [BrokerId(8), BrokerId(1), BrokerId(7)], before.racks),
    ):
        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE) as error:
            refused()
        assert error.value.metadata == {"brokers": "7, 8"}


def test_a_generated_plan_equals_a_creation_of_the_topics() -> None:
    before = cluster(3, [(6, 2), (4, 3)])
    racks = racks_of(range(6))
    chosen = list(racks)[2:6]
    plan = generate(before.assignments, chosen, racks)
    check_books(before, plan, racks)
    places = racks_of(chosen)
    first = assign_replicas(places, partitions=6, replication_factor=2)
    second = assign_replicas(places, partitions=4, replication_factor=3, existing=first)
    after = before.after(plan)
    assert tuple(after[TopicPartition("t0", index)] for index in range(6)) == first
    assert tuple(after[TopicPartition("t1", index)] for index in range(4)) == second


def test_other_topics_count_as_in_the_creation_of_a_topic() -> None:
    before = cluster(3, [(1, 1)])
    racks = racks_of(range(3))
    others = [(BrokerId(0),), (BrokerId(1),)]
    plan = generate(before.assignments, list(racks), racks, others=others)
    assert [move.replicas for move in plan.moves] == [(2,)]


def test_a_generated_plan_for_too_few_brokers_names_the_topics() -> None:
    before = cluster(4, [(2, 2), (2, 3), (2, 4)])
    with raises_code(ErrorCode.INVALID_REPLICATION_FACTOR) as refused:
        generate(before.assignments, list(before.racks)[:2], before.racks)
    assert refused.value.metadata == {"topics": "t1, t2"}
    with raises_code(ErrorCode.INVALID_REPLICATION_FACTOR) as refused:
        generate(before.assignments, list(before.racks)[:2], before.racks, may_name=lambda name: name == "t2")
    assert "t1" not in refused.value.message
    assert refused.value.metadata == {"topics": "t2"}


def test_a_plan_does_not_depend_on_the_order_of_its_input() -> None:
    before = cluster(5, [(40, 2), (30, 3)], [5, 1, 9, 4])
    racks = racks_of(range(7), 3)
    backwards = dict(reversed(before.assignments.items()))
    sizes = dict(reversed(before.sizes_bytes.items()))
    other = dict(reversed(racks.items()))
    assert add_brokers(before.assignments, before.sizes_bytes, racks, [BrokerId(5)]) == add_brokers(
        backwards, sizes, other, [BrokerId(5)]
    )
    assert remove_brokers(before.assignments, before.sizes_bytes, racks, [BrokerId(0)]) == remove_brokers(
        backwards, sizes, other, [BrokerId(0)]
    )


def test_a_plan_passes_the_checks_of_reassignments_and_its_json_round_trips() -> None:
    before = cluster(4, [(20, 2)])
    racks = racks_of(range(5))
    plan = add_brokers(before.assignments, {}, racks, [BrokerId(4)])
    assert plan.moves
    assert parse_reassignments(format_reassignments(plan.moves)) == (plan.moves, ())
    topic = TopicDescription(
        "t0", "a" * 32, {one.partition: replicas for one, replicas in before.assignments.items()}, {}
    )
    assert check_reassignments(plan.moves, {"t0": topic}, racks, ()) == {}


def test_nothing_to_plan_gives_an_empty_plan() -> None:
    assert add_brokers({}, {}, racks_of(range(3)), [BrokerId(2)]).moves == ()
    assert add_brokers({TopicPartition("t", 0): (BrokerId(0),)}, {}, {}).moves == ()
    assert remove_brokers({}, {}, {}, [BrokerId(2)]).moves == ()
    assert generate({}, [], {}).moves == ()
