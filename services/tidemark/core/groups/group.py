# SPDX-License-Identifier: Apache-2.0
"""One group: its values by key, and indexes over them. Every change goes through `put`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from tidemark.core.groups.state import (
    AWAY,
    JOINING,
    NO_PARTITIONS,
    Change,
    Committed,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupKey,
    GroupMetadata,
    GroupPartition,
    GroupState,
    Key,
    MemberMetadata,
    MemberMetadataKey,
    MemberState,
    OffsetKey,
    Partitions,
    TargetAssignmentKey,
    TargetMetadata,
    TargetMetadataKey,
    Value,
)
from tidemark.model import TopicPartition


class Group:
    """The state of one group, and indexes over it.

    Attributes:
        metadata: the group itself, None before the first member.
        target_metadata: group epoch and assignor of the target assignment. Invariant: its epoch is at most `epoch`.
        members: by member, its subscription. Invariant: a member is in the group exactly while `members` has it.
        targets: by member, the partitions of its target assignment.
        current_assignments: by member, its current assignment. Invariant: no partition is held by two members.
        offsets: committed offsets.
        last_seen_ms: by member, time of its last heartbeat; not persistent.
        revoking_since_ms: by member with partitions to revoke, time of that request; not persistent.
        acknowledged: members that have reported exactly their assignment since its last change; not persistent.
        _owners: by partition, the member whose current assignment has the partition, assigned or revoking.
        _instances: static members by instance id.
        _subscribers: by topic, the number of members that subscribe to it.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.metadata: GroupMetadata | None = None
        self.target_metadata = TargetMetadata()
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.current_assignments: dict[str, CurrentAssignment] = {}
        self.offsets: dict[TopicPartition, Committed] = {}
        self.last_seen_ms: dict[str, int] = {}
        self.revoking_since_ms: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self._owners: dict[GroupPartition, str] = {}
        self._instances: dict[str, str] = {}
        self._subscribers: Counter[str] = Counter()

    @property
    def exists(self) -> bool:
        """Whether the group has any persistent state."""
        return bool(self.metadata is not None or self.offsets or self.members)

    @property
    def epoch(self) -> int:
        """The group epoch; 0 before the first member."""
        return self.metadata.epoch if self.metadata is not None else 0

    @property
    def state(self) -> GroupState:
        """The state of the group, computed from its members."""
        if not self.members:
            return GroupState.EMPTY
        if self.target_metadata.epoch < self.epoch:
            return GroupState.ASSIGNING
        for member_id in self.members:
            current = self.current(member_id)
            settled = current.epoch in (self.epoch, AWAY) and current.state is MemberState.STABLE
            if not settled:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def owner(self, partition: GroupPartition) -> str | None:
        """The member that holds a partition; None if no member does."""
        return self._owners.get(partition)

    def member_of_instance(self, instance_id: str) -> str | None:
        """The static member with this instance id; None if there is none."""
        return self._instances.get(instance_id)

    def target(self, member_id: str) -> Partitions:
        """The target assignment of a member; empty without one."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def current(self, member_id: str) -> CurrentAssignment:
        """The current assignment of a member; empty before its first heartbeat was answered."""
        return self.current_assignments.get(member_id, _NOTHING)

    def subscribes(self, topic: str) -> bool:
        """Whether any member subscribes to a topic."""
        return self._subscribers[topic] > 0

    @property
    def subscribed_topics(self) -> Iterator[str]:
        """Every topic that a member subscribes to."""
        return (topic for topic, count in self._subscribers.items() if count > 0)

    def put(self, key: Key, value: Value | None) -> None:
        """Apply a change, of a request or from the log; None removes the value."""
        match key, value:
            case GroupKey(), GroupMetadata() | None:
                self.metadata = value
            case TargetMetadataKey(), TargetMetadata() | None:
                self.target_metadata = value or TargetMetadata()
            case MemberMetadataKey(_, member_id), MemberMetadata() | None:
                self._put_member(member_id, value)
            case CurrentAssignmentKey(_, member_id), CurrentAssignment() | None:
                self._put_current(member_id, value)
            case OffsetKey(_, topic, partition), Committed() | None:
                _put(self.offsets, TopicPartition(topic, partition), value)
            case TargetAssignmentKey(_, member_id), frozenset() | None:
                _put(self.targets, member_id, value)
            case _:
                raise AssertionError(f"{key} cannot have the value {value}")

    def values(self) -> Iterator[Change]:
        """The persistent state of the group as records."""
        if self.metadata is not None:
            yield Change(GroupKey(self.group_id), self.metadata)
        if self.target_metadata != TargetMetadata():
            yield Change(TargetMetadataKey(self.group_id), self.target_metadata)
        for member_id, member in self.members.items():
            yield Change(MemberMetadataKey(self.group_id, member_id), member)
        for member_id, target in self.targets.items():
            yield Change(TargetAssignmentKey(self.group_id, member_id), target)
        for member_id, current in self.current_assignments.items():
            yield Change(CurrentAssignmentKey(self.group_id, member_id), current)
        for (topic, partition), committed in self.offsets.items():
            yield Change(OffsetKey(self.group_id, topic, partition), committed)

    def _put_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._subscribers.subtract(before.topics)
            if self._instances.get(before.instance_id) == member_id:
                del self._instances[before.instance_id]
        _put(self.members, member_id, member)
        if member is None:
            self.last_seen_ms.pop(member_id, None)
            self.revoking_since_ms.pop(member_id, None)
            self.acknowledged.discard(member_id)
            return
        self._subscribers.update(member.topics)
        if member.instance_id:
            self._instances[member.instance_id] = member_id

    def _put_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.current_assignments.get(member_id)
        if before is not None:
            for partition in before.held:
                del self._owners[partition]
        _put(self.current_assignments, member_id, current)
        if current is not None:
            for partition in current.held:
                taken = self._owners.setdefault(partition, member_id)
                assert taken == member_id, f"{partition} is held by {taken} and is not given to {member_id}"


_NOTHING = CurrentAssignment(JOINING)
_K = TypeVar("_K")
_V = TypeVar("_V")


def _put(into: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def metadata_of(group: Group) -> GroupMetadata:
    """The metadata of a group that may be new."""
    return group.metadata if group.metadata is not None else GroupMetadata()
