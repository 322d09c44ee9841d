# SPDX-License-Identifier: Apache-2.0
"""Members of a group and its coordinator: answers get lost, members die, coordinators fail over, topics grow.

Each member behaves as docs/groups.md asks of clients; `reading` has its partitions.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit
from tidemark.core.groups.records import decode, encode
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import Change, Committed, GroupPartition, MemberState, TopicFacts
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

GROUP = "g"
SESSION_MS = 1000
_REJOIN = (ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH)


@dataclass
class Member:
    """A client.

    Attributes:
        whole: its next heartbeat states everything, as after an answer that was lost.
        heard_ms: when it sent the last heartbeat that was answered.
        revoke_by_ms: after an assignment, until when a heartbeat must be answered that states its partitions now.
    """

    member_id: str
    topics: tuple[str, ...]
    instance_id: str = ""
    epoch: int = 0
    reading: set[GroupPartition] = field(default_factory=set)
    to_give_up: set[GroupPartition] = field(default_factory=set)
    to_take: set[GroupPartition] = field(default_factory=set)
    whole: bool = True
    said: frozenset[GroupPartition] | None = None
    heard_ms: int = 0
    revoke_by_ms: int | None = None

    def drop_everything(self) -> None:
        """Stop reading and join again, after the member was fenced or timed out."""
        self.epoch, self.whole, self.revoke_by_ms = 0, True, None
        self.reading, self.to_give_up, self.to_take = set(), set(), set()


class GroupWorld:
    """One group. `log` has the records of the topic."""

    def __init__(self, topics: dict[str, TopicFacts], **settings: object) -> None:
        self.topics = topics
        self.settings = GroupSettings(session_timeout_ms=SESSION_MS)._replace(**settings)  # type: ignore[arg-type]
        self.now_ms = 0
        self.hidden_topics: tuple[str, ...] = ()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.coordinator = GroupCoordinator()
        self.members: dict[str, Member] = {}
        self.next_number = 0
        self.delayed: list[Commit] = []
        self.commits: dict[GroupPartition, tuple[str, int]] = {}

    @property
    def situation(self) -> Situation:
        return Situation(self.topics, self.settings, self.now_ms, 1_000_000_000 + self.now_ms, self.hidden_topics)

    @property
    def group(self) -> Group:
        return self.coordinator.group(GROUP)

    def write(self, outcome: Outcome[Any]) -> None:
        """Write the records to the log."""
        self.log.extend(encode(change) for change in outcome.changes)

    def fail_over(self, *, compacted: bool = False) -> None:
        """Fail over to another coordinator."""
        if compacted:
            last = dict(reversed(item) for item in ((index, key) for index, (key, _) in enumerate(self.log)))
            self.log = [record for index, record in enumerate(self.log) if last[record[0]] == index]
        changes = [_decoded(key, value) for key, value in self.log]
        self.coordinator = GroupCoordinator.replay([one for one in changes if one is not None], self.now_ms)

    def add(self, *topics: str, instance_id: str = "") -> Member:
        """Add a member that joins with its next heartbeat."""
        self.next_number += 1
        member = Member(f"m{self.next_number}", topics, instance_id, heard_ms=self.now_ms)
        self.members[member.member_id] = member
        return member

    def beat(
        self, member: Member, *, answer_lost: bool = False, repeated: bool = False, written: float = 1.0
    ) -> HeartbeatAnswer | None:
        """Send a heartbeat and apply its answer; None without an answer, or if it was refused.

        `written`: how much of its records the coordinator wrote before another took over; 1: all, and it lives.
        """
        sent_ms = self.now_ms
        owned = frozenset(member.reading)
        tells = member.whole or owned != member.said
        request = Heartbeat(
            GROUP,
            member.member_id,
            member.epoch,
            instance_id=member.instance_id,
            rebalance_timeout_ms=SESSION_MS,
            topics=member.topics if member.whole else None,
            owned=owned if tells else None,
        )
        try:
            outcome = self.coordinator.heartbeat(request, self.situation)
            if repeated:  # the answer was lost, and the client sent the same request again
                self.write(outcome)
                outcome = self.coordinator.heartbeat(request, self.situation)
        except TidemarkError as error:
            if error.code in _REJOIN:
                member.drop_everything()
            return None
        if written < 1:
            member.whole = True
            self.log.extend(encode(change) for change in outcome.changes[: int(written * len(outcome.changes))])
            self.fail_over()
            return None
        self.write(outcome)
        if answer_lost:
            member.whole = True
            return None
        answer = outcome.answer
        heard_before_ms, member.revoke_by_ms = member.heard_ms, None
        member.heard_ms, member.epoch, member.said, member.whole = sent_ms, answer.member_epoch, owned, False
        if answer.assignment is not None:
            member.to_give_up = member.reading - answer.assignment
            member.to_take = set(answer.assignment - member.reading)
            member.said, member.revoke_by_ms = None, heard_before_ms + SESSION_MS
        self.follow(member)
        return answer

    def follow(self, member: Member) -> None:
        """Revoke partitions first, then take the new ones."""
        member.reading -= member.to_give_up
        member.reading |= member.to_take
        member.to_give_up, member.to_take = set(), set()
        self.check_each_partition_has_one_reader()

    def leave(self, member: Member, epoch: int = -1) -> None:
        """Stop reading, then leave."""
        member.reading = set()
        request = Heartbeat(GROUP, member.member_id, epoch, instance_id=member.instance_id)
        with contextlib.suppress(TidemarkError):  # the member was removed already
            self.write(self.coordinator.heartbeat(request, self.situation))
        del self.members[member.member_id]

    def kill(self, member: Member) -> None:
        """Stop the member without a leave."""
        del self.members[member.member_id]

    def advance(self, ms: int) -> None:
        """Let time pass; a member without an answer for a session stops reading by itself."""
        self.now_ms += ms
        for member in self.members.values():
            revokes_too_long = member.revoke_by_ms is not None and self.now_ms >= member.revoke_by_ms
            if revokes_too_long or self.now_ms - member.heard_ms >= SESSION_MS:
                member.drop_everything()
        self.write(self.coordinator.remove_overdue(self.situation))
        self.check_each_partition_has_one_reader()

    def commit(self, member: Member, *, delayed: bool = False) -> None:
        """Commit each partition one record further; `delayed`: the request arrives late."""
        group = self.coordinator.find(GROUP)
        known = {} if group is None else group.offsets
        asked = {}
        for partition in member.reading:
            where = TopicPartition(partition.topic, partition.partition)
            before = known.get(where)
            at = before.offset + 1 if before is not None and before.topic_id == partition.topic_id else 0
            asked[where] = Committed(at, -1, "", partition.topic_id, "", self.situation.wall_ms)
        request = Commit(GROUP, member.member_id, member.epoch, member.instance_id, asked)
        if delayed:
            self.delayed.append(request)
        else:
            self.deliver(request)

    def deliver(self, request: Commit) -> None:
        """A commit arrives; it counts only if no other member committed since."""
        exist = {
            where: one
            for where, one in request.offsets.items()
            if where.topic in self.topics and self.topics[where.topic].topic_id == one.topic_id
        }
        request = replace(request, offsets=exist)  # the broker itself refuses offsets of deleted topics
        try:
            outcome = self.coordinator.commit(request, self.situation)
        except TidemarkError:
            return
        self.write(outcome)
        for where, committed in request.offsets.items():
            if where in outcome.answer:
                continue
            partition = GroupPartition(where.topic, committed.topic_id, where.partition)
            by, at = self.commits.get(partition, (request.member_id, -1))
            assert committed.offset >= at or by == request.member_id, f"{request.member_id} takes {by}'s commit back"
            self.commits[partition] = (request.member_id, committed.offset)

    def settle(self, rounds: int = 30) -> None:
        """All members send heartbeats until nothing changes and every partition has a reader."""
        self.write(self.coordinator.refresh_topics(self.situation))
        for _ in range(rounds):
            self.advance(SESSION_MS // 10)
            for member in tuple(self.members.values()):
                self.beat(member)
        self.check_everything_is_read()

    def check_each_partition_has_one_reader(self) -> None:
        readers: dict[GroupPartition, str] = {}
        for member in self.members.values():
            for partition in member.reading:
                other = readers.setdefault(partition, member.member_id)
                assert other == member.member_id, f"{partition} is read by {other} and {member.member_id}"

    def check_everything_is_read(self) -> None:
        if not self.members:
            return
        read = {partition for member in self.members.values() for partition in member.reading}
        wanted = {topic for member in self.members.values() for topic in member.topics} & self.topics.keys()
        assert read == {
            GroupPartition(topic, self.topics[topic].topic_id, index)
            for topic in wanted
            for index in range(self.topics[topic].partition_count)
        }
        for member_id, member in self.members.items():
            assert self.group.current(member_id).state is MemberState.STABLE
            assert member.reading == self.group.target(member_id)

    def check_replay(self) -> None:
        """A replay of the log gives the state of the coordinator."""
        before = _values(self.coordinator)
        changes = [_decoded(key, value) for key, value in self.log]
        replayed = GroupCoordinator.replay([one for one in changes if one is not None], self.now_ms)
        assert _values(replayed) == before


@lru_cache(maxsize=1 << 14)
def _decoded(key: bytes, value: bytes | None) -> Change | None:
    """A change is immutable, and replays read most records repeatedly."""
    return decode(key, value)


def _values(coordinator: GroupCoordinator) -> dict[object, object]:
    return {(type(change.key), change.key): change.value for group in coordinator.groups for change in group.values()}


def random_steps(world: GroupWorld, dice: random.Random) -> list[tuple[int, Callable[[], object]]]:
    """(weight, step) of the possible next steps."""
    members = list(world.members.values())
    steps: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: world.fail_over(compacted=dice.random() < 0.5)),
        (3, lambda: world.advance(dice.choice((10, 100, 100, 700)))),
        (1, lambda: world.write(world.coordinator.refresh_topics(world.situation))),
        (1, lambda: _change_topics(world, dice)),
    ]
    if world.delayed:
        steps.append((2, lambda: world.deliver(world.delayed.pop(dice.randrange(len(world.delayed))))))
    if len(members) < 6:
        topics = tuple(sorted(dice.sample(["a", "b", "c"], dice.randint(1, 3))))
        steps.append((3, lambda: world.add(*topics, instance_id=dice.choice(("", "", f"i{world.next_number}")))))
    if members:
        one = dice.choice(members)
        steps += [
            (12, lambda: world.beat(one)),
            (2, lambda: world.beat(one, answer_lost=True)),
            (2, lambda: world.beat(one, repeated=True)),
            (3, lambda: world.commit(one)),
            (2, lambda: world.commit(one, delayed=True)),
            (1, lambda: world.beat(one, written=dice.random())),
            (1, lambda: world.leave(one)),
            (1, lambda: world.kill(one)),
            (1, lambda: _subscribe(one, dice)),
            (1, lambda: _bounce(world, one)),
        ]
    return steps


def _change_topics(world: GroupWorld, dice: random.Random) -> None:
    topic = dice.choice(("a", "b", "c"))
    facts = world.topics.get(topic)
    if facts is None:
        world.topics[topic] = TopicFacts(f"{topic}-{dice.random()}", dice.randint(1, 8))
    elif dice.random() < 0.3:
        del world.topics[topic]
    else:
        world.topics[topic] = facts._replace(partition_count=facts.partition_count + 1)


def _subscribe(member: Member, dice: random.Random) -> None:
    member.topics = tuple(sorted(dice.sample(["a", "b", "c"], dice.randint(1, 3))))
    member.whole = True


def _bounce(world: GroupWorld, member: Member) -> None:
    """A static member leaves and returns under another member id."""
    if member.instance_id:
        world.leave(member, epoch=-2)
        world.add(*member.topics, instance_id=member.instance_id)
