# SPDX-License-Identifier: Apache-2.0
"""Divides the journal of a member into sessions: one for each time that the member read a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.checks.group_coordinators import Hold
from tests.chaos.checks.group_history import (
    Closed,
    CommittedByHand,
    Event,
    Given,
    LetGo,
    Named,
    Processed,
    Taken,
    Troubled,
)
from tests.chaos.checks.history import Offset, Partition

_LATE_COMMIT_S = 12.0
"""Longest time between a revocation and the failure of a commit that was in flight."""


@dataclass(slots=True)
class Session:
    """The time for which a member reads a partition, from `on_assigned` to the next callback.

    Attributes:
        ended: None without a callback: the member was killed, or still reads.
        is_troubled: its client reported an error in this time, or was killed before a report; the processed records are
            possibly not committed.
        hold: the assignment by which the member reads; None if none is known.
    """

    life: str
    member: Named
    partition: Partition
    taken: Taken
    given: list[Given] = field(default_factory=list)
    processed: list[Processed] = field(default_factory=list)
    by_hand: list[CommittedByHand] = field(default_factory=list)
    ended: LetGo | None = None
    is_troubled: bool = False
    hold: Hold | None = None

    @property
    def start(self) -> Offset | None:
        """The first offset that the member got."""
        return self.given[0].first if self.given else None

    @property
    def identity(self) -> str:
        """The id that differs between the readers of one generation."""
        return self.member.instance_id or self.member.member_id

    @property
    def promised(self) -> Offset:
        """The group must continue at this offset or above; 0: any offset is correct."""
        if self.member.commits_by_hand:
            return max((one.offset for one in self.by_hand), default=0)
        in_good_order = self.ended is not None and not self.ended.lost and not self.is_troubled
        return max((one.end for one in self.processed), default=0) if in_good_order else 0


@dataclass(slots=True)
class Told:
    """Sessions and errors of one journal.

    Attributes:
        silent: partitions that the member lost without a callback, with the evidence.
        strange: events of partitions that were never assigned to it.
    """

    sessions: list[Session] = field(default_factory=list)
    silent: list[tuple[Partition, str]] = field(default_factory=list)
    strange: list[Given | Processed | CommittedByHand] = field(default_factory=list)


def read_sessions(life: str, events: Sequence[Event]) -> Told:
    """Sessions and errors of one process run of a member."""
    told = Told()
    member = next((one for one in events if isinstance(one, Named)), Named(0.0, ""))
    last: dict[Partition, Session] = {}
    for event in events:
        match event:
            case Taken(_, _, partitions):
                for partition in partitions:
                    if partition in last and last[partition].ended is None:
                        told.silent.append((partition, "took it up again"))
                    last[partition] = Session(life, member, partition, event)
                    told.sessions.append(last[partition])
            case LetGo(_, _, partitions):
                for partition in partitions:
                    if partition in last and last[partition].ended is None:
                        last[partition].ended = event
            case Given() | Processed() | CommittedByHand():
                # A member may still process records that it had fetched before it lost the partition.
                if event.partition in last:
                    _add(last[event.partition], event)
                else:
                    told.strange.append(event)
            case Closed():
                told.silent += [(partition, "left") for partition, one in last.items() if one.ended is None]
            case _:
                pass
    troubles = [one.at_s for one in events if isinstance(one, Troubled)]
    has_left = any(isinstance(one, Closed) for one in events)
    lived_to_s = float("inf") if has_left else max((one.at_s for one in events), default=0.0)
    for session in told.sessions:
        until_s = float("inf") if session.ended is None else session.ended.at_s + _LATE_COMMIT_S
        session.is_troubled = lived_to_s < until_s or any(session.taken.at_s <= at_s <= until_s for at_s in troubles)
    return told


def _add(session: Session, event: Given | Processed | CommittedByHand) -> None:
    match event:
        case Given():
            session.given.append(event)
        case Processed():
            session.processed.append(event)
        case CommittedByHand():
            session.by_hand.append(event)
