# SPDX-License-Identifier: Apache-2.0
"""Finds in the history of a consumer group violations of docs/groups.md.

The checker compares the journals of members with the records that coordinators wrote to `__consumer_offsets`. The
records have one order, which shows the first of two changes. A member may commit only while it is assigned the
partition, after the previous member confirmed the revocation. So the checker knows the offset at which the next member
begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.checks.group_coordinators import Commit, CoordinatorStory, tell_story
from tests.chaos.checks.group_history import GaveUp, Given, GroupHistory
from tests.chaos.checks.group_sessions import Session, read_sessions
from tests.chaos.checks.history import Offset, Partition


class GroupAnomaly(StrEnum):
    """Each anomaly has a forged history in the checker's own tests."""

    UNREAD = "unread"
    """A record is in the log at the end, and no member has processed it."""
    TWO_HOLDERS = "two holders"
    """By the coordinators' records, two members were assigned a partition at the same time."""
    TWO_IN_A_GENERATION = "two in a generation"
    """Two members got records of one partition in the same epoch."""
    NOT_ASSIGNED = "not assigned"
    """A member got records of a partition that, by the coordinators' records, was not assigned to it in its epoch."""
    READ_BY_TWO = "read by two"
    """A member requested and got records after their partition was assigned to another member."""
    BEGAN_ELSEWHERE = "began elsewhere"
    """A member did not begin at the group's committed offset."""
    REPEATED = "repeated"
    """A member processed records again, though the previous member had confirmed the revocation without an error."""
    COMMIT_LOST = "commit lost"
    """An acknowledged commit is missing from the coordinators' records."""
    COMMIT_WENT_BACK = "commit went back"
    """A commit below the previous commit."""
    COMMIT_BEYOND = "commit beyond"
    """A commit covers records that its member had not processed."""
    COMMIT_FOREIGN = "commit foreign"
    """A commit by a member that was evicted before, or for a partition that no member was assigned."""
    NEVER_TOLD = "never told"
    """The application got no `on_revoked` for a partition that it no longer reads."""
    GAVE_UP = "gave up"
    """A client raised an error and should have waited, or a condition did not become true in time."""


@dataclass(frozen=True, slots=True)
class GroupFinding:
    """One anomaly and its story."""

    anomaly: GroupAnomaly
    partition: Partition
    story: str

    def __str__(self) -> str:
        return f"group: {self.anomaly} in partition {self.partition}: {self.story}"


def check_group(history: GroupHistory) -> list[GroupFinding]:
    found: list[GroupFinding] = [GroupFinding(GroupAnomaly.GAVE_UP, -1, what) for what in history.unfinished]
    sessions: list[Session] = []
    for life, events in history.journals.items():
        told = read_sessions(life, events)
        sessions += told.sessions
        found += [
            *(
                GroupFinding(GroupAnomaly.NEVER_TOLD, where, f"{life} was not told: {what}")
                for where, what in told.silent
            ),
            *(
                GroupFinding(GroupAnomaly.NOT_ASSIGNED, one.partition, f"{life} was not told: {one}")
                for one in told.strange
            ),
            *(
                GroupFinding(GroupAnomaly.GAVE_UP, -1, f"{life}: {one.why}")
                for one in events
                if isinstance(one, GaveUp)
            ),
        ]
    story = tell_story(history.coordinator, history.topic)
    for session in sorted(sessions, key=lambda one: one.taken.at_s):
        session.hold = story.hold_of(session.member.member_id, session.partition, session.taken.epoch)
        if session.hold is not None:
            session.hold.lives.append(session)
    return [
        *found,
        *_of_reading(history, sessions),
        *_of_generations(sessions, story),
        *_of_overlaps(sessions),
        *(
            GroupFinding(GroupAnomaly.TWO_HOLDERS, partition, f"{one} and {other}, at record {at}")
            for partition, one, other, at in story.shared
        ),
        *_of_beginnings(sessions),
        *_of_commits(sessions, story),
    ]


def _of_reading(history: GroupHistory, sessions: list[Session]) -> Iterator[GroupFinding]:
    processed: defaultdict[Partition, set[Offset]] = defaultdict(set)
    for session in sessions:
        for one in session.processed:
            processed[session.partition].update(range(one.first, one.end))
    for partition, offsets in history.final.items():
        unread = sorted(set(offsets) - processed[partition])
        if unread:
            story = f"{len(unread)} records, from {unread[0]} to {unread[-1]}"
            yield GroupFinding(GroupAnomaly.UNREAD, partition, story)


def _of_generations(sessions: list[Session], story: CoordinatorStory) -> Iterator[GroupFinding]:
    readers: defaultdict[tuple[Partition, int], dict[str, Given]] = defaultdict(dict)
    strangers: set[tuple[str, Partition, int]] = set()
    for session in sessions:
        for given in session.given:
            epoch = given.epoch
            if epoch is None:
                continue
            who = readers[session.partition, epoch]
            who.setdefault(session.identity, given)
            stranger = (session.member.member_id, session.partition, epoch)
            if stranger not in strangers and not story.held(*stranger):
                strangers.add(stranger)
                told = f"{session.life} was given {given.first} in epoch {epoch}, in which it did not hold it"
                yield GroupFinding(GroupAnomaly.NOT_ASSIGNED, session.partition, told)
    for (partition, epoch), who in readers.items():
        if len(who) > 1:
            told = ", ".join(f"{name} was given [{one.first}, {one.end})" for name, one in who.items())
            yield GroupFinding(GroupAnomaly.TWO_IN_A_GENERATION, partition, f"in epoch {epoch} {told}")


def _of_overlaps(sessions: list[Session]) -> Iterator[GroupFinding]:
    """A member gets no records of a partition that it requests after another member was assigned it in a later epoch.

    A member that was suspended may report an assignment of an earlier epoch, from an answer that arrived during the
    suspension.
    """
    by_partition: defaultdict[Partition, list[Session]] = defaultdict(list)
    for session in sorted(sessions, key=lambda one: one.taken.at_s):
        by_partition[session.partition].append(session)
    for partition, ordered in by_partition.items():
        for index, session in enumerate(ordered):
            for following in ordered[index + 1 :]:
                taken = following.taken
                late = [one for one in session.given if one.asked_s > taken.at_s and max(one.epochs) < taken.epoch]
                if late and following.life != session.life:
                    behind_s = late[-1].asked_s - taken.at_s
                    told = f"{following.life} had it, and {session.life} was given more {behind_s:.3f} s later"
                    yield GroupFinding(GroupAnomaly.READ_BY_TWO, partition, told)
                    break


def _of_beginnings(sessions: list[Session]) -> Iterator[GroupFinding]:
    """Each member begins at the committed offset of its time of assignment, or at a later commit."""
    promised: defaultdict[Partition, list[Session]] = defaultdict(list)
    for session in sessions:
        promised[session.partition].append(session)
    for session in sessions:
        hold = session.hold
        if session.start is None or hold is None:
            continue
        may = {hold.began_at}
        if hold.lives[0] is not session:
            may |= {one.offset for one in hold.commits}
        if session.start not in may:
            told = f"{session.life} began at {session.start} in epoch {session.taken.epoch}, the group was at {may}"
            yield GroupFinding(GroupAnomaly.BEGAN_ELSEWHERE, session.partition, told)
        for before in promised[session.partition]:
            if _is_before(before, session) and before.promised > session.start:
                told = f"{before.life} had processed all before {before.promised}, {session.life} began at "
                yield GroupFinding(GroupAnomaly.REPEATED, session.partition, f"{told}{session.start}")


def _is_before(one: Session, other: Session) -> bool:
    return one.hold is not None and other.hold is not None and one.hold.position < other.hold.position


def _of_commits(sessions: list[Session], story: CoordinatorStory) -> Iterator[GroupFinding]:
    boundaries: defaultdict[tuple[str, Partition], set[Offset]] = defaultdict(set)
    for session in sessions:
        mine = boundaries[session.member.member_id, session.partition]
        mine.update(one.end for one in session.processed)
        if session.start is not None:
            mine.add(session.start)
    highest: dict[Partition, Commit] = {}
    for commit in story.commits:
        before = highest.setdefault(commit.partition, commit)
        if commit.offset < before.offset:
            told = f"{commit} came after {before}"
            yield GroupFinding(GroupAnomaly.COMMIT_WENT_BACK, commit.partition, told)
        highest[commit.partition] = commit
        mine = boundaries[commit.member_id, commit.partition] | {commit.began_at}
        if not commit.member_id:
            yield GroupFinding(GroupAnomaly.COMMIT_FOREIGN, commit.partition, f"no member held it: {commit}")
        elif commit.offset > max(mine):
            told = f"its holder had processed up to {max(mine)}: {commit}"
            yield GroupFinding(GroupAnomaly.COMMIT_BEYOND, commit.partition, told)
        elif commit.offset not in mine:
            yield GroupFinding(GroupAnomaly.COMMIT_FOREIGN, commit.partition, f"its holder was never there: {commit}")
    known = {(one.member_id, one.partition, one.offset) for one in story.commits}
    for session in sessions:
        for told_of in session.by_hand:
            if (session.member.member_id, session.partition, told_of.offset) not in known:
                told = f"{told_of.offset} was acknowledged to {session.life}"
                yield GroupFinding(GroupAnomaly.COMMIT_LOST, session.partition, told)
