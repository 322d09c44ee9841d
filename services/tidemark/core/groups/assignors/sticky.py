# SPDX-License-Identifier: Apache-2.0
"""Sticky: members keep their previous targets as far as balance and subscriptions allow.

If all members subscribe to the same topics, no balanced assignment moves fewer partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.core.groups.assignors.balance import Loads
from tidemark.core.groups.assignors.plan import Plan, Subscriber, partitions_of, subscribers_by_topic
from tidemark.core.groups.state import TopicFacts


def assign_sticky(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Assign by stickiness; balanced as in `balance.Loads`."""
    loads = Loads(members, subscribers_by_topic(members, topics))
    for index, member in enumerate(members):
        for partition in sorted(member.target):
            facts = topics.get(partition.topic)
            if facts is None or facts.topic_id != partition.topic_id or partition.partition >= facts.partition_count:
                continue  # the partition does not exist any more
            if partition.topic in member.topics:
                loads.keep(index, partition)
    for topic in loads.hardest_first():
        loads.hand_out([one for one in partitions_of(topic, topics[topic]) if not loads.has_owner(one)])
    loads.balance()
    return loads.plan()
