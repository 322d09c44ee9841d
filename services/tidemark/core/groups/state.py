# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a group: values that never change in place, each under a key of the compacted topic.

The state of a group is exactly the last value of each of its keys: a replay gives the same state (docs/groups.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

JOINING: Final = 0
"""Member epoch of a member that joins."""
LEAVING: Final = -1
"""Member epoch of a member that leaves for good."""
AWAY: Final = -2
"""Member epoch of a static member that will be back soon."""
NO_MEMBER_EPOCH: Final = -1
"""Of a commit without a member."""
CONSUMER: Final = "consumer"
"""The kind of a group whose members subscribe to topics."""


class GroupPartition(NamedTuple):
    """A partition as groups hand it out: of a topic made anew under the same name it is another one."""

    topic: str
    topic_id: str
    partition: int


Partitions = frozenset[GroupPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class TopicFacts(NamedTuple):
    """What the assignment needs to know of a topic."""

    topic_id: str
    partition_count: int


class MemberState(StrEnum):
    """Where a member stands in the hand-over."""

    STABLE = "stable"  # it has all that it shall have
    UNREVOKED = "unrevoked"  # it was told to give up partitions and has not said that it did
    UNRELEASED = "unreleased"  # it waits for partitions that others have not given up


class GroupState(StrEnum):
    """What a group is about to do."""

    EMPTY = "empty"
    ASSIGNING = "assigning"
    RECONCILING = "reconciling"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The group itself.

    Attributes:
        epoch: raised by every change of members, subscriptions or partitions.
        topics: what the members subscribe to and exists, as of that epoch.
        empty_since_ms: since 1970, UTC; -1 while it has members, and when it never had any.
    """

    protocol: str = CONSUMER
    epoch: int = 0
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    empty_since_ms: int = -1


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group epoch for which it was last computed who shall read what, and by which assignor."""

    epoch: int = 0
    assignor: str = ""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """What a member said of itself.

    Attributes:
        instance_id: of a static member, else empty.
        topics: in order, each once.
        assignor: empty for the broker's choice.
    """

    instance_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    assignor: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member may read, and where it stands.

    Attributes:
        epoch: the member's; AWAY for a static member that will be back.
        previous_epoch: the one that the member knew when it came to this one: the answer may have been lost.
        assigned: what it may read; nobody else may.
        revoking: what it was told to give up; nobody may have it until the member says that it did.
        sequence: of the heartbeat at which it was last told; what it said before that it said of another holding.
        joined: of the heartbeat that it joined with: what it committed before that it committed in another life.
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
        """All that nobody else may read."""
        return self.assigned | self.revoking if self.revoking else self.assigned


class Turn(NamedTuple):
    """Which commit of which client one is: a commit may be long on its way, and must not undo a later one.

    Attributes:
        committer_id: made up by the client; empty where it does not number its commits.
        sequence: rises with each commit of that client, of a member also with each heartbeat.
    """

    committer_id: str = ""
    sequence: int = 0

    def is_done_by(self, other: Turn) -> bool:
        """Whether that is a later one of the same client, or this one."""
        return bool(self.committer_id) and self.committer_id == other.committer_id and self.sequence <= other.sequence


UNNUMBERED: Final = Turn()


@dataclass(frozen=True, slots=True)
class Committed:
    """How far a group has read in one partition.

    Attributes:
        offset: next to be read.
        leader_epoch: of the record before it, -1 when unknown (rule E4).
        topic_id, incarnation: of the partition that it was committed for (rule C7).
        committed_at_ms: since 1970, UTC.
    """

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str
    incarnation: str
    committed_at_ms: int
    turn: Turn = UNNUMBERED


class GroupKey(NamedTuple):
    """Of `GroupFacts`."""

    group_id: str


class AssignedKey(NamedTuple):
    """Of `Assigned`."""

    group_id: str


class SpecKey(NamedTuple):
    """Of a `MemberSpec`."""

    group_id: str
    member_id: str


class TargetKey(NamedTuple):
    """Of what a member shall read: `Partitions`."""

    group_id: str
    member_id: str


class HoldingKey(NamedTuple):
    """Of a `Holding`."""

    group_id: str
    member_id: str


class OffsetKey(NamedTuple):
    """Of a `Committed`."""

    group_id: str
    topic: str
    partition: int


Key = GroupKey | AssignedKey | SpecKey | TargetKey | HoldingKey | OffsetKey
Value = GroupFacts | Assigned | MemberSpec | Partitions | Holding | Committed


class Change(NamedTuple):
    """One record to write: the value that a key has from now on, None for none (a tombstone)."""

    key: Key
    value: Value | None
