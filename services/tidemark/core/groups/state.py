# SPDX-License-Identifier: Apache-2.0
"""The persistent state of a group: immutable values, each under a key of the compacted topic.

The state of a group is exactly the last value of each key, so a replay gives the same state (docs/groups.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

JOINING: Final = 0
"""Member epoch of a member that joins."""
LEAVING: Final = -1
"""Member epoch of a member that leaves permanently."""
AWAY: Final = -2
"""Member epoch of a static member that leaves for a while."""
NO_MEMBER_EPOCH: Final = -1
"""Member epoch of a commit without a member."""
CONSUMER: Final = "consumer"
"""The protocol of a group whose members subscribe to topics."""


class GroupPartition(NamedTuple):
    """A partition in an assignment; a deleted topic of the same name has another topic id."""

    topic: str
    topic_id: str
    partition: int


Partitions = frozenset[GroupPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class TopicFacts(NamedTuple):
    """The facts about a topic that an assignment needs."""

    topic_id: str
    partition_count: int


class MemberState(StrEnum):
    """The progress of a member towards its target assignment."""

    STABLE = "stable"  # has its whole target assignment
    UNREVOKED = "unrevoked"  # must revoke partitions and has not confirmed yet
    UNRELEASED = "unreleased"  # waits for partitions that other members have not revoked


class GroupState(StrEnum):
    """States of a group, as operators see them."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The record of a group as a whole.

    Attributes:
        epoch: raised by every change of members, subscriptions or partitions.
        topics: existing topics that the members subscribe to, as of that epoch.
        empty_since_ms: milliseconds since 1970, UTC; -1 while the group has members, or if it never had members.
    """

    protocol: str = CONSUMER
    epoch: int = 0
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    empty_since_ms: int = -1


@dataclass(frozen=True, slots=True)
class TargetMetadata:
    """The target assignment: the group epoch for which it was computed, and the assignor."""

    epoch: int = 0
    assignor: str = ""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """The subscription of a member, as in its heartbeats.

    Attributes:
        instance_id: id of a static member, else empty.
        topics: names of the subscribed topics, in order, each once.
        assignor: name of the assignor; empty for the default of the broker.
    """

    instance_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    assignor: str


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The current assignment of a member.

    Attributes:
        epoch: the member epoch; AWAY for a static member that left for a while.
        previous_epoch: epoch that the member knew before this one; valid too, as the answer may have been lost.
        assigned: partitions that the member may read. Invariant: no other member holds any of them.
        revoking: partitions that the member must revoke. Invariant: no other member gets them before it confirms.
        sequence: of the heartbeat whose answer carried this assignment; earlier heartbeats report older assignments.
        joined: sequence of the heartbeat that joined; commits numbered below belong to an earlier membership.
    """

    epoch: int
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    sequence: int = 0
    joined: int = 0

    @property
    def held(self) -> Partitions:
        """All partitions that no other member may read."""
        return self.assigned | self.revoking if self.revoking else self.assigned


class Turn(NamedTuple):
    """The number of a commit: a delayed commit must not undo a later one of the same client.

    Attributes:
        committer_id: chosen by the client; empty if the client does not number its commits.
        sequence: rises with each commit of the client, and with each heartbeat of a member.
    """

    committer_id: str = ""
    sequence: int = 0

    def is_done_by(self, other: Turn) -> bool:
        """Whether `other` is this commit, or a later one of the same client."""
        return bool(self.committer_id) and self.committer_id == other.committer_id and self.sequence <= other.sequence

    def precedes(self, other: Turn) -> bool:
        """Whether `other` is a later commit of the same client."""
        return self.is_done_by(other) and self.sequence < other.sequence


UNNUMBERED: Final = Turn()


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a group in one partition.

    Attributes:
        offset: offset of the next record to read.
        leader_epoch: leader epoch of the record before, -1 if unknown (rule E4).
        topic_id, incarnation: of the partition at the commit (rule C7).
        committed_at_ms: milliseconds since 1970, UTC.
    """

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    incarnation: str
    committed_at_ms: int
    turn: Turn = UNNUMBERED


class GroupKey(NamedTuple):
    """Key of `GroupMetadata`."""

    group_id: str


class TargetMetadataKey(NamedTuple):
    """Key of `TargetMetadata`."""

    group_id: str


class MemberMetadataKey(NamedTuple):
    """Key of a `MemberMetadata`."""

    group_id: str
    member_id: str


class TargetAssignmentKey(NamedTuple):
    """Key of the target assignment of a member: `Partitions`."""

    group_id: str
    member_id: str


class CurrentAssignmentKey(NamedTuple):
    """Key of a `CurrentAssignment`."""

    group_id: str
    member_id: str


class OffsetKey(NamedTuple):
    """Key of a `Committed`."""

    group_id: str
    topic: str
    partition: int


Key = GroupKey | TargetMetadataKey | MemberMetadataKey | TargetAssignmentKey | CurrentAssignmentKey | OffsetKey
Value = GroupMetadata | TargetMetadata | MemberMetadata | Partitions | CurrentAssignment | Committed


class Change(NamedTuple):
    """One record to write: the new value of a key; None deletes it (a tombstone)."""

    key: Key
    value: Value | None
