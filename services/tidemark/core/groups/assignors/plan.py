# SPDX-License-Identifier: Apache-2.0
"""Input and output of the assignors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
    """By existing topic with subscribers, in order of names, the indexes of its subscribers."""
    found: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        for topic in member.topics:
            if topic in topics:
                found.setdefault(topic, []).append(index)
    return {topic: found[topic] for topic in sorted(found)}
