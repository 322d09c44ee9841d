# SPDX-License-Identifier: Apache-2.0
"""Uniform: all partitions in order, each to the subscriber with the lowest load so far.

Ignores previous assignments: groups with the same members and topics have the same assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.core.groups.assignors.balance import Loads
from tidemark.core.groups.assignors.plan import Plan, Subscriber, partitions_of, subscribers_by_topic
from tidemark.core.groups.state import TopicFacts


def assign_uniform(members: Sequence[Subscriber], topics: Mapping[str, TopicFacts]) -> Plan:
    """Assign uniformly; balanced as in `balance.Loads`."""
    loads = Loads(members, subscribers_by_topic(members, topics))
    for topic in loads.hardest_first():
        loads.hand_out(partitions_of(topic, topics[topic]))
    loads.balance()
    return loads.plan()
