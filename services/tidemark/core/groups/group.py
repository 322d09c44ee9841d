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
    Assigned,
    AssignedKey,
    Change,
    Committed,
    GroupFacts,
    GroupKey,
    GroupPartition,
    GroupState,
    Holding,
    HoldingKey,
    Key,
    MemberSpec,
    MemberState,
    OffsetKey,
    Partitions,
    SpecKey,
    TargetKey,
    Value,
)
from tidemark.model import TopicPartition


class Group:
    """The state of one group.

    Attributes:
        facts: the group itself, None before the first member.
        assigned: group epoch and assignor of the target assignment. Invariant: its epoch is at most `epoch`.
        specs: by member, its subscription. Invariant: a member is in the group exactly while it is here.
        targets: by member, the partitions of its target assignment.
        holdings: by member, its current assignment. Invariant: no partition is held by two members.
        offsets: committed offsets.
        last_seen_ms: by member, time of its last heartbeat; not persistent.
        revoking_since_ms: by member with partitions to revoke, time of that request; not persistent.
        acknowledged: members that have reported exactly their assignment since its last change; not persistent.
        _owners: by partition, the member whose holding has it, assigned or revoking.
        _instances: by instance id, the static member.
        _subscribers: by topic, the number of members that subscribe to it.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.facts: GroupFacts | None = None
        self.assigned = Assigned()
        self.specs: dict[str, MemberSpec] = {}
        self.targets: dict[str, Partitions] = {}
        self.holdings: dict[str, Holding] = {}
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
        return bool(self.facts is not None or self.offsets or self.specs)

    @property
    def epoch(self) -> int:
        """The group epoch; 0 before the first member."""
        return self.facts.epoch if self.facts is not None else 0

    @property
    def state(self) -> GroupState:
        """The state of the group, computed from its members."""
        if not self.specs:
            return GroupState.EMPTY
        if self.assigned.epoch < self.epoch:
            return GroupState.ASSIGNING
        for member_id in self.specs:
            holding = self.holding(member_id)
            settled = holding.epoch in (self.epoch, AWAY) and holding.state is MemberState.STABLE
            if not settled:
                return GroupState.RECONCILING
        return GroupState.STABLE

    def owner(self, partition: GroupPartition) -> str | None:
        """The member that holds a partition, None without one."""
        return self._owners.get(partition)

    def member_of_instance(self, instance_id: str) -> str | None:
        """The static member with this instance id, None without one."""
        return self._instances.get(instance_id)

    def target(self, member_id: str) -> Partitions:
        """The target assignment of a member."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def holding(self, member_id: str) -> Holding:
        """The current assignment of a member; empty before its first heartbeat was answered."""
        return self.holdings.get(member_id, _NOTHING)

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
            case GroupKey(), GroupFacts() | None:
                self.facts = value
            case AssignedKey(), Assigned() | None:
                self.assigned = value or Assigned()
            case SpecKey(_, member_id), MemberSpec() | None:
                self._put_spec(member_id, value)
            case HoldingKey(_, member_id), Holding() | None:
                self._put_holding(member_id, value)
            case OffsetKey(_, topic, partition), Committed() | None:
                _put(self.offsets, TopicPartition(topic, partition), value)
            case TargetKey(_, member_id), frozenset() | None:
                _put(self.targets, member_id, value)
            case _:
                raise AssertionError(f"{key} cannot have the value {value}")

    def values(self) -> Iterator[Change]:
        """The persistent state of the group as records."""
        if self.facts is not None:
            yield Change(GroupKey(self.group_id), self.facts)
        if self.assigned != Assigned():
            yield Change(AssignedKey(self.group_id), self.assigned)
        for member_id, spec in self.specs.items():
            yield Change(SpecKey(self.group_id, member_id), spec)
        for member_id, target in self.targets.items():
            yield Change(TargetKey(self.group_id, member_id), target)
        for member_id, holding in self.holdings.items():
            yield Change(HoldingKey(self.group_id, member_id), holding)
        for (topic, partition), committed in self.offsets.items():
            yield Change(OffsetKey(self.group_id, topic, partition), committed)

    def _put_spec(self, member_id: str, spec: MemberSpec | None) -> None:
        before = self.specs.get(member_id)
        if before is not None:
            self._subscribers.subtract(before.topics)
            if self._instances.get(before.instance_id) == member_id:
                del self._instances[before.instance_id]
        _put(self.specs, member_id, spec)
        if spec is None:
            self.last_seen_ms.pop(member_id, None)
            self.revoking_since_ms.pop(member_id, None)
            self.acknowledged.discard(member_id)
            return
        self._subscribers.update(spec.topics)
        if spec.instance_id:
            self._instances[spec.instance_id] = member_id

    def _put_holding(self, member_id: str, holding: Holding | None) -> None:
        before = self.holdings.get(member_id)
        if before is not None:
            for partition in before.held:
                del self._owners[partition]
        _put(self.holdings, member_id, holding)
        if holding is not None:
            for partition in holding.held:
                taken = self._owners.setdefault(partition, member_id)
                assert taken == member_id, f"{partition} is held by {taken} and is not given to {member_id}"


_NOTHING = Holding(JOINING)
_K = TypeVar("_K")
_V = TypeVar("_V")


def _put(into: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def facts_of(group: Group) -> GroupFacts:
    """The facts of a group that may be new."""
    return group.facts if group.facts is not None else GroupFacts()
