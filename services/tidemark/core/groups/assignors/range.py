# SPDX-License-Identifier: Apache-2.0
"""Range: each member gets one range of partitions of each topic, the same range for topics of equal partition counts.

For joins of topics with the same partitioning. The first members in order get one partition more if there is a rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.core.groups.assignors.plan import Plan, Subscriber, partitions_of, subscribers_by_topic
from tidemark.core.groups.state import GroupPartition, TopicFacts


def assign_range(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Assign by range; see the module."""
    plan: list[list[GroupPartition]] = [[] for _ in members]
    for topic, subscribers in subscribers_by_topic(members, topics).items():
        partitions = partitions_of(topic, topics[topic])
        size, more = divmod(len(partitions), len(subscribers))
        first = 0
        for place, index in enumerate(subscribers):
            end = first + size + (place < more)
            plan[index].extend(partitions[first:end])
            first = end
    return {member.member_id: frozenset(mine) for member, mine in zip(members, plan, strict=True)}
