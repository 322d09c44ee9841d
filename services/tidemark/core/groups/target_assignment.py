# SPDX-License-Identifier: Apache-2.0
"""A new group epoch, and who shall read what in it (docs/groups.md, step G3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tidemark.core.groups.assignors import ASSIGNORS
from tidemark.core.groups.assignors.plan import Subscriber
from tidemark.core.groups.group import Group, facts_of
from tidemark.core.groups.pending_changes import Transaction
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import Assigned, AssignedKey, GroupKey, TargetKey, TopicFacts

Topics = Mapping[str, TopicFacts]


def is_outdated(group: Group, topics: Topics | None) -> bool:
    """Whether topics that the group reads have come, gone or grown, or its target is still to be computed."""
    if topics is None or not group.specs:
        return False
    return group.assigned.epoch < group.epoch or wanted_topics(group, topics) != facts_of(group).topics


def wanted_topics(group: Group, topics: Topics) -> dict[str, TopicFacts]:
    """What the members subscribe to and exists."""
    return {name: topics[name] for name in group.subscribed_topics if name in topics}


def raise_epoch(transaction: Transaction, topics: Topics | None, settings: GroupSettings, wall_ms: int) -> None:
    """Members, subscriptions or topics have changed: a new epoch, and a new target for it.

    Args:
        topics: those that exist; None: not known yet, the target is computed when they are.
        wall_ms: since 1970, UTC.
    """
    group = transaction.group
    facts = facts_of(group)
    transaction.put(
        GroupKey(group.group_id),
        replace(
            facts,
            epoch=facts.epoch + 1,
            topics=facts.topics if topics is None else wanted_topics(group, topics),
            empty_since_ms=-1 if group.specs else wall_ms,
        ),
    )
    if topics is not None:
        _compute(transaction, settings)


def preferred_assignor(group: Group, settings: GroupSettings) -> str:
    """What most members name; the broker's order decides where as many name another, and where none does."""
    votes = Counter(spec.assignor for spec in group.specs.values() if spec.assignor in settings.assignors)
    return max(settings.assignors, key=lambda name: votes[name])


def _compute(transaction: Transaction, settings: GroupSettings) -> None:
    group = transaction.group
    facts = facts_of(group)
    assignor = preferred_assignor(group, settings)
    # A static member that comes back under another member id keeps its place in the order.
    order = sorted(group.specs.items(), key=lambda item: (item[1].instance_id or item[0], item[0]))
    members = [Subscriber(member_id, frozenset(spec.topics), group.target(member_id)) for member_id, spec in order]
    for member_id, target in ASSIGNORS[assignor](members, facts.topics).items():
        if group.targets.get(member_id) != target:
            transaction.put(TargetKey(group.group_id, member_id), target)
    transaction.put(AssignedKey(group.group_id), Assigned(facts.epoch, assignor))
