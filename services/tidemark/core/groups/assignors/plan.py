# SPDX-License-Identifier: Apache-2.0
"""What an assignor is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidemark.core.groups.state import GroupPartition, Partitions, TopicFacts


class Subscriber(NamedTuple):
    """A member as assignors see it.

    Attributes:
        topics: what it wants to read; some may not exist.
        target: what it was to read before.
    """

    member_id: str
    topics: frozenset[str]
    target: Partitions


Plan = Mapping[str, Partitions]
"""What each member shall read, by member id: every member is named, and no partition twice."""

Assignor = Callable[[Sequence[Subscriber], Mapping[str, TopicFacts]], Plan]
"""From members (static ones keep their place in the order) and the topics that exist. The same input, the same plan."""


def partitions_of(topic: str, facts: TopicFacts) -> list[GroupPartition]:
    """All of a topic, in order."""
    return [GroupPartition(topic, facts.topic_id, index) for index in range(facts.partition_count)]


def subscribers_by_topic(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> dict[str, list[int]]:
    """Indexes of the members that want each topic that exists, for topics that anybody wants, in order of names."""
    found: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        for topic in member.topics:
            if topic in topics:
                found.setdefault(topic, []).append(index)
    return {topic: found[topic] for topic in sorted(found)}
