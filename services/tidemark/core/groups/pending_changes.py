# SPDX-License-Identifier: Apache-2.0
"""The changes of one request to one group: applied immediately, and collected as records to write together."""

from __future__ import annotations

from tidemark.core.groups.group import Group
from tidemark.core.groups.state import (
    Change,
    CurrentAssignment,
    CurrentAssignmentKey,
    GroupKey,
    Key,
    MemberMetadataKey,
    TargetAssignmentKey,
    Value,
)


class PendingChanges:
    """The changes of one request. A request that is refused changes nothing.

    A coordinator may find only the first of the records after a failure, and then continues from that record. So an
    epoch is written before values that depend on it, and a revocation before the assignment. A member's current
    assignment is deleted first.

    Attributes:
        _changes: by kind and key, the last change of each key, in the order of these last changes.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._changes: dict[tuple[type[Key], Key], Change] = {}  # keys of two kinds may be equal as tuples

    @property
    def records(self) -> tuple[Change, ...]:
        """The records so far: each key once, and a new epoch first.

        A coordinator that finds only the epoch computes the target assignment again, for the members that it finds.
        """
        epoch = self._changes.get((GroupKey, GroupKey(self.group.group_id)))
        if epoch is None or epoch.value is None:
            return tuple(self._changes.values())
        return (epoch, *(change for change in self._changes.values() if change is not epoch))

    def put(self, key: Key, value: Value | None) -> None:
        """Set the value of a key; None removes it."""
        self.group.put(key, value)
        self._changes.pop((type(key), key), None)
        self._changes[type(key), key] = Change(key, value)

    def put_current(self, member_id: str, current: CurrentAssignment) -> None:
        """Set the current assignment of a member, if it has changed."""
        if self.group.current_assignments.get(member_id) != current:
            self.put(CurrentAssignmentKey(self.group.group_id, member_id), current)

    def remove_member(self, member_id: str) -> None:
        """Write tombstones for the subscription, target and current assignment of a member."""
        for key, known in (
            (CurrentAssignmentKey(self.group.group_id, member_id), self.group.current_assignments),
            (TargetAssignmentKey(self.group.group_id, member_id), self.group.targets),
            (MemberMetadataKey(self.group.group_id, member_id), self.group.members),
        ):
            if member_id in known:
                self.put(key, None)
