# SPDX-License-Identifier: Apache-2.0
"""Raises the group epoch and computes its target assignment (docs/groups.md, step G3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tidemark.core.groups.assignors import ASSIGNORS, Subscriber
from tidemark.core.groups.group import Group, metadata_of
from tidemark.core.groups.pending_changes import PendingChanges
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import GroupKey, TargetAssignmentKey, TargetMetadata, TargetMetadataKey, TopicFacts

Topics = Mapping[str, TopicFacts]


def is_outdated(group: Group, topics: Topics | None) -> bool:
    """Whether the group needs a new epoch or target.

    True after a topic of the group was created, deleted or extended, or while the target is not computed yet.
    """
    if topics is None or not group.members:
        return False
    return group.target_metadata.epoch < group.epoch or wanted_topics(group, topics) != metadata_of(group).topics


def wanted_topics(group: Group, topics: Topics) -> dict[str, TopicFacts]:
    """The existing topics that the members subscribe to."""
    return {name: topics[name] for name in group.subscribed_topics if name in topics}


def raise_epoch(changes: PendingChanges, topics: Topics | None, settings: GroupSettings, wall_ms: int) -> None:
    """Raise the group epoch after a change of members, subscriptions or topics, and compute its target assignment.

    Args:
        topics: the existing topics; None while unknown, and the target is then computed later.
        wall_ms: milliseconds since 1970, UTC.
    """
    group = changes.group
    metadata = metadata_of(group)
    changes.put(
        GroupKey(group.group_id),
        replace(
            metadata,
            epoch=metadata.epoch + 1,
            topics=metadata.topics if topics is None else wanted_topics(group, topics),
            empty_since_ms=-1 if group.members else wall_ms,
        ),
    )
    if topics is not None:
        _compute(changes, settings)


def preferred_assignor(group: Group, settings: GroupSettings) -> str:
    """The assignor that most members name. For a tie, or if no member names one, the order of the settings decides."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor in settings.assignors)
    return max(settings.assignors, key=lambda name: votes[name])


def _compute(changes: PendingChanges, settings: GroupSettings) -> None:
    group = changes.group
    metadata = metadata_of(group)
    assignor = preferred_assignor(group, settings)
    # A static member that comes back under another member id keeps its place in the order.
    order = sorted(group.members.items(), key=lambda item: (item[1].instance_id or item[0], item[0]))
    members = [Subscriber(member_id, frozenset(member.topics), group.target(member_id)) for member_id, member in order]
    for member_id, target in ASSIGNORS[assignor](members, metadata.topics).items():
        if group.targets.get(member_id) != target:
            changes.put(TargetAssignmentKey(group.group_id, member_id), target)
    changes.put(TargetMetadataKey(group.group_id), TargetMetadata(metadata.epoch, assignor))
