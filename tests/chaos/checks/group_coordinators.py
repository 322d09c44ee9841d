# SPDX-License-Identifier: Apache-2.0
"""The records of a group's coordinators in order: which member held which partition, and which one committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidemark.core.groups.state import Change, Committed, CurrentAssignment, CurrentAssignmentKey, OffsetKey

from tests.chaos.checks.history import Offset, Partition


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed offset in the coordinators' records.

    `member_id`: the member that was assigned the partition then, "" for none.
    """

    position: int
    partition: Partition
    offset: Offset
    member_id: str
    began_at: Offset


@dataclass(slots=True)
class Hold:
    """The time for which a member was assigned a partition without interruption, from this record on.

    Attributes:
        epoch: member epoch at the start.
        began_at: committed offset of the group at the start.
        commits: commits of the member in this time.
        lives: the sessions that read in this time, in order; `group_checker` adds them.
    """

    position: int
    partition: Partition
    member_id: str
    epoch: int
    began_at: Offset
    commits: list[Commit] = field(default_factory=list)
    lives: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class CoordinatorStory:
    """Assignments and commits of one group, from the coordinators' records.

    Attributes:
        shared: (partition, first member, second member, record) of each partition that two members were assigned at
            once.
    """

    holds: list[Hold] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    shared: list[tuple[Partition, str, str, int]] = field(default_factory=list)
    epochs: dict[str, list[tuple[int, frozenset[Partition]]]] = field(default_factory=dict)
    """Member epochs of each member, with the partitions that were assigned in each."""

    def held(self, member_id: str, partition: Partition, epoch: int) -> bool:
        """Whether the partition was ever assigned to the member in that epoch."""
        return any(one == epoch and partition in held for one, held in self.epochs.get(member_id, ()))

    def hold_of(self, member_id: str, partition: Partition, epoch: int) -> Hold | None:
        """The assignment by which a member reads in that epoch; None without one."""
        mine = [one for one in self.holds if (one.member_id, one.partition) == (member_id, partition)]
        return max((one for one in mine if one.epoch <= epoch), key=lambda one: one.position, default=None)


def tell_story(changes: Iterable[Change], topic: str) -> CoordinatorStory:
    story = CoordinatorStory()
    holding: dict[str, frozenset[Partition]] = {}
    current: dict[Partition, Hold] = {}
    committed: dict[Partition, Offset] = {}
    for position, (key, value) in enumerate(changes):
        match key, value:
            case CurrentAssignmentKey(_, member_id), CurrentAssignment() | None:
                held = frozenset(one.partition for one in value.held if one.topic == topic) if value else frozenset()
                for partition in holding.get(member_id, frozenset()) - held:
                    if current[partition].member_id == member_id:
                        del current[partition]
                for partition in held - holding.get(member_id, frozenset()):
                    other = current.get(partition)
                    if other is not None:
                        story.shared.append((partition, other.member_id, member_id, position))
                    assert value is not None
                    hold = Hold(position, partition, member_id, value.epoch, committed.get(partition, 0))
                    current[partition] = hold
                    story.holds.append(hold)
                holding[member_id] = held
                if value is not None:
                    story.epochs.setdefault(member_id, []).append((value.epoch, held))
            case OffsetKey(_, name, partition), Committed() if name == topic:
                holder = current.get(partition)
                commit = Commit(
                    position,
                    partition,
                    value.offset,
                    "" if holder is None else holder.member_id,
                    0 if holder is None else holder.began_at,
                )
                story.commits.append(commit)
                committed[partition] = value.offset
                if holder is not None:
                    holder.commits.append(commit)
            case OffsetKey(_, name, partition), None if name == topic:
                committed.pop(partition, None)
    return story
