# SPDX-License-Identifier: Apache-2.0
"""Assignors: every subscribed partition once, no other, balanced, and sticky where the assignor is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.groups.assignors import ASSIGNORS, Plan, Subscriber
from tidemark.core.groups.state import NO_PARTITIONS, GroupPartition, TopicFacts

_NAMES = ("a", "b", "c", "d")
_topics = st.dictionaries(st.sampled_from(_NAMES), st.integers(0, 9), max_size=4).map(
    lambda counts: {name: TopicFacts(f"{name}-id", count) for name, count in counts.items()}
)
_wishes = st.lists(st.frozensets(st.sampled_from(_NAMES)), min_size=1, max_size=6)


def _members(wishes: Sequence[frozenset[str]], before: Plan | None = None) -> list[Subscriber]:
    names = [f"m{index}" for index in range(len(wishes))]
    return [
        Subscriber(name, wish, (before or {}).get(name, NO_PARTITIONS))
        for name, wish in zip(names, wishes, strict=True)
    ]


def _p(topic: str, *indexes: int) -> frozenset[GroupPartition]:
    return frozenset(GroupPartition(topic, f"{topic}-id", index) for index in indexes)


def _check_sound(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts], plan: Plan) -> None:
    assert set(plan) == {member.member_id for member in members}
    given_out = [partition for mine in plan.values() for partition in mine]
    assert len(given_out) == len(set(given_out))
    wanted = {topic for member in members for topic in member.topics} & topics.keys()
    assert set(given_out) == {
        GroupPartition(topic, topics[topic].topic_id, index)
        for topic in wanted
        for index in range(topics[topic].partition_count)
    }
    for member in members:
        assert {partition.topic for partition in plan[member.member_id]} <= member.topics


def _cost(plan: Plan) -> int:
    return sum(len(mine) ** 2 for mine in plan.values())


def _least_cost(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> int:
    """Every reachable set of loads, by trying each partition."""
    reached = {(0,) * len(members)}
    for topic, facts in topics.items():
        takers = [index for index, member in enumerate(members) if topic in member.topics]
        for _ in range(facts.partition_count if takers else 0):
            reached = {(*loads[:index], loads[index] + 1, *loads[index + 1 :]) for loads in reached for index in takers}
    return min(sum(load**2 for load in loads) for loads in reached)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(_wishes, _topics)
def test_every_subscribed_partition_has_one_subscribed_member(
    name: str, wishes: list[frozenset[str]], topics: dict[str, TopicFacts]
) -> None:
    members = _members(wishes)
    plan = ASSIGNORS[name](members, topics)
    _check_sound(members, topics, plan)
    assert ASSIGNORS[name](members, topics) == plan


@pytest.mark.parametrize("name", ["uniform", "sticky"])
@given(st.lists(st.frozensets(st.sampled_from("abc")), min_size=1, max_size=4), st.data())
def test_no_assignment_is_better_balanced(name: str, wishes: list[frozenset[str]], data: st.DataObject) -> None:
    topics = {topic: TopicFacts(f"{topic}-id", data.draw(st.integers(0, 4))) for topic in "abc"}
    members = _members(wishes)
    if name == "sticky":  # with previous targets
        before = {member.member_id: set[GroupPartition]() for member in members}
        for topic, facts in topics.items():
            for index in range(facts.partition_count):
                before[data.draw(st.sampled_from(sorted(before)))].add(GroupPartition(topic, facts.topic_id, index))
        members = _members(wishes, {member_id: frozenset(mine) for member_id, mine in before.items()})
    plan = ASSIGNORS[name](members, topics)
    _check_sound(members, topics, plan)
    assert _cost(plan) == _least_cost(members, topics)


@given(st.integers(1, 6), st.integers(1, 6), _topics)
def test_sticky_moves_no_more_than_balance_needs_where_all_want_the_same(
    count_before: int, count: int, topics: dict[str, TopicFacts]
) -> None:
    wish = frozenset(_NAMES)
    before = ASSIGNORS["sticky"](_members([wish] * count_before), topics)
    after = ASSIGNORS["sticky"](_members([wish] * count, before), topics)
    total = sum(facts.partition_count for facts in topics.values())
    kept = sum(len(after[name] & mine) for name, mine in before.items() if name in after)
    stays = sorted((len(mine) for name, mine in before.items() if name in after), reverse=True)
    low, more = divmod(total, count)
    assert kept == sum(min(load, low + (place < more)) for place, load in enumerate(stays))


def test_range_assigns_equal_ranges_of_topics_with_equal_partition_counts() -> None:
    topics = {"a": TopicFacts("a-id", 5), "b": TopicFacts("b-id", 5), "c": TopicFacts("c-id", 1)}
    plan = ASSIGNORS["range"](_members([frozenset("abc"), frozenset("ab")]), topics)
    assert plan == {
        "m0": _p("a", 0, 1, 2) | _p("b", 0, 1, 2) | _p("c", 0),
        "m1": _p("a", 3, 4) | _p("b", 3, 4),
    }


def test_uniform_balances_a_member_with_few_topics_against_one_with_all() -> None:
    topics = {"a": TopicFacts("a-id", 4), "b": TopicFacts("b-id", 4)}
    plan = ASSIGNORS["uniform"](_members([frozenset("ab"), frozenset("a")]), topics)
    assert plan == {"m0": _p("b", 0, 1, 2, 3), "m1": _p("a", 0, 1, 2, 3)}


def test_sticky_keeps_no_partition_of_a_topic_created_again() -> None:
    before = {"m0": frozenset({GroupPartition("a", "old", 0)}), "m1": NO_PARTITIONS}
    plan = ASSIGNORS["sticky"](_members([frozenset("a")] * 2, before), {"a": TopicFacts("a-id", 1)})
    assert plan == {"m0": _p("a", 0), "m1": NO_PARTITIONS}


@pytest.mark.parametrize("name", ["uniform", "sticky"])
def test_an_assignor_divides_thousands_of_topics_in_a_time_without_heartbeats(name: str) -> None:
    """The event loop of a broker computes assignments, so a slow one costs the broker its session and its lease."""
    topics = {topic: TopicFacts(f"{topic}-id", 1) for topic in (f"t{index:05}" for index in range(10_000))}
    wish = frozenset(topics)
    before = ASSIGNORS[name](_members([wish]), topics)
    began_s = time.process_time()
    after = ASSIGNORS[name](_members([wish] * 10, before), topics)
    assert [len(mine) for mine in after.values()] == [1000] * 10
    assert time.process_time() - began_s < 2.0
