# SPDX-License-Identifier: Apache-2.0
"""The nodes of a simulated group: brokers that run the coordinator's core, and members that follow docs/groups.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, check_committer
from tidemark.core.groups.records import decode, encode
from tidemark.core.groups.state import JOINING, LEAVING, Change, Committed, GroupPartition, Turn
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

from tests.simulation.coordination.coordinator import CoordinatorNode, Reply, Request
from tests.simulation.engine import Node

if TYPE_CHECKING:
    from tests.simulation.groups.world import GroupWorld

GROUP = "g"
TOPIC = "a"
SESSION_MS = 1000
REBALANCE_MS = 1500
_CALL_MS = 300
_BEAT_MS = 100
_READ_MS = 20
_COMMIT_MS = 130
_REJOIN = frozenset({ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH})


class GroupCoordinatorNode(CoordinatorNode):
    """Coordinates the group at times."""

    loads_ms = (5, 50, 300)

    def _replay(self, changes: Sequence[Change], epoch: int) -> GroupCoordinator:
        read = [decode(*encode(change)) for change in changes]
        return GroupCoordinator.replay([one for one in read if one is not None], self.engine.now)

    def _expire(self, core: GroupCoordinator) -> None:
        for sweep in (core.remove_overdue, core.refresh_topics):
            self._write(sweep(self._world.situation()).changes, lambda _: None)


class MemberNode(Node):
    """One member; `reading` has the position of each partition that it reads."""

    def __init__(self, world: GroupWorld, name: str) -> None:
        super().__init__(world.engine, name)
        self.reading: dict[int, int] = {}
        self._world = world
        self._dice = world.engine.dice(f"member {name}")
        self._epoch = JOINING
        self._wanted: frozenset[int] | None = None
        self._whole = True
        self._heard_ms = self.engine.now
        self._confirm_by_ms: int | None = None
        self._beat = 0
        self._sequence = 0
        self._hand_over = 0
        self._handing_over = False

    @property
    def may_be_out(self) -> bool:
        """Whether the session of the member has expired by its own clock, which started before the coordinator's."""
        now_ms = self.engine.now
        slow = self._confirm_by_ms is not None and now_ms > self._confirm_by_ms
        return slow or now_ms - self._heard_ms > SESSION_MS

    def start(self) -> None:
        self._say()
        self.after(_READ_MS, self._read)
        self.after(_COMMIT_MS, self._commit_now_and_then)

    def leave(self) -> None:
        """Read nothing any more, and send the leave request, which may be lost too."""
        self._commit(frozenset(self.reading), lambda _: None)
        self.reading = {}
        if self._epoch > JOINING:
            leaving = Heartbeat(GROUP, self.name, LEAVING, sequence=self._next_sequence())
            self._ask(self._change(leaving), lambda _: None)
        self.alive = False
        del self._world.members[self.name]

    # -- heartbeats

    def _say(self) -> None:
        """Send a heartbeat, one at a time; after a lost answer the next heartbeat states everything."""
        self._beat += 1
        number, said_ms = self._beat, self.engine.now
        owned = frozenset(self.reading) | (self._wanted or frozenset())
        beat = Heartbeat(
            GROUP,
            self.name,
            self._epoch,
            rebalance_timeout_ms=REBALANCE_MS if self._whole else 0,
            topics=(TOPIC,) if self._whole else None,
            owned=frozenset(GroupPartition(TOPIC, "id", one) for one in owned) if self._whole else None,
            sequence=self._next_sequence(),
        )
        said = owned if self._whole else None
        self._whole = False
        self._ask(self._change(beat), lambda answer: self._answered(number, said_ms, said, answer))
        self.after(_CALL_MS, lambda: self._answered(number, said_ms, said, None))

    def _answered(self, number: int, said_ms: int, said: frozenset[int] | None, answer: Any) -> None:
        if number != self._beat:
            return  # the request timed out, or this is its second answer
        self._beat += 1
        match answer:
            case HeartbeatAnswer():
                self._take(said_ms, said, answer)
            case TidemarkError() if answer.code in _REJOIN:
                self._lose()
            case _:
                self._whole = True
        if self.may_be_out and self._epoch != JOINING:
            self._lose()
        self.after(1 if self._whole and isinstance(answer, HeartbeatAnswer) else _BEAT_MS, self._say)

    def _take(self, said_ms: int, said: frozenset[int] | None, answer: HeartbeatAnswer) -> None:
        before_ms, self._heard_ms = self._heard_ms, said_ms
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._wanted = frozenset(one.partition for one in answer.assignment)
            self._follow()
        if self._wanted is not None:
            if said is not None and said <= self._wanted:
                self._confirm_by_ms = None
            elif not self.reading.keys() <= self._wanted and self._confirm_by_ms is None:
                self._confirm_by_ms = before_ms + REBALANCE_MS

    def _lose(self) -> None:
        """The partitions may belong to other members: this member joins again."""
        self._epoch, self._wanted, self._whole = JOINING, None, True
        self.reading, self._confirm_by_ms = {}, None
        self._hand_over += 1
        self._handing_over = False

    # -- hand-over

    def _follow(self) -> None:
        """Finish and commit revoked partitions and stop reading them; then read new ones from the committed offsets."""
        if self._handing_over or self._wanted is None:
            return
        self._handing_over = True
        number = self._hand_over
        gone = frozenset(self.reading) - self._wanted
        if not gone:
            self._take_up(number)
            return
        work_ms = self._dice.choice((0, 0, 20, 200, 2000))
        self.after(work_ms, lambda: self._done_with(number, gone))

    def _done_with(self, number: int, gone: frozenset[int]) -> None:
        if self._is_on(number):
            self._commit(gone, lambda _: self._give_up(number, gone))

    def _is_on(self, number: int) -> bool:
        return number == self._hand_over

    def _give_up(self, number: int, gone: frozenset[int]) -> None:
        if not self._is_on(number):
            return
        for partition in gone:
            self.reading.pop(partition, None)
        self._take_up(number)

    def _take_up(self, number: int) -> None:
        wanted = self._wanted or frozenset()
        added = wanted - self.reading.keys()
        if not added:
            self._handed_over(number)
            return
        epoch = self._epoch

        def look(core: GroupCoordinator, now: Situation) -> Outcome[dict[int, int]]:
            group = core.find(GROUP) or Group(GROUP)
            check_committer(group, self.name, epoch, "")
            known = {where.partition: one.offset for where, one in group.offsets.items()}
            return Outcome({partition: known.get(partition, 0) for partition in added}, ())

        self._ask(look, lambda answer: self._begin(number, answer), again=lambda: self._take_up(number))

    def _begin(self, number: int, answer: Any) -> None:
        if not self._is_on(number):
            return
        if isinstance(answer, TidemarkError):
            if answer.code in _REJOIN:
                self._lose()
            else:
                self.after(_BEAT_MS, lambda: self._take_up(number) if self._is_on(number) else None)
            return
        for partition, offset in answer.items():
            if partition in (self._wanted or frozenset()) and partition not in self.reading:
                self.reading[partition] = offset
        self._handed_over(number)

    def _handed_over(self, number: int) -> None:
        if not self._is_on(number):
            return
        self._hand_over += 1
        self._handing_over = False
        self._whole = True
        if self._wanted is not None and self.reading.keys() != self._wanted:
            self._follow()

    # -- records and commits

    def _read(self) -> None:
        """Read one record of each partition; none of a partition that is being revoked."""
        if not self.may_be_out:
            for partition in sorted(self.reading):
                if self._wanted is not None and partition in self._wanted:
                    self._world.reads_one(self, partition, self.reading[partition])
                    self.reading[partition] += 1
        self.after(_READ_MS, self._read)

    def _commit_now_and_then(self) -> None:
        self._commit(frozenset(self.reading), lambda _: None)
        self.after(_COMMIT_MS, self._commit_now_and_then)

    def _commit(self, partitions: frozenset[int], then: Reply) -> None:
        """Commit the positions of these, in the epoch that it has now; call `then` in any case."""
        wall_ms = self._world.situation().wall_ms
        turn = Turn(self.name, self._next_sequence())
        offsets = {one: self.reading[one] for one in partitions if one in self.reading}
        asked = Commit(
            GROUP,
            self.name,
            self._epoch,
            "",
            {TopicPartition(TOPIC, one): Committed(at, -1, "", "id", "", wall_ms) for one, at in offsets.items()},
            turn,
        )
        done = False

        def answered(answer: Any) -> None:
            nonlocal done
            if not isinstance(answer, TidemarkError | None):
                for one, at in offsets.items():
                    if TopicPartition(TOPIC, one) not in answer:
                        self._world.acknowledged(one, at, turn)
            if not done:
                done = True
                then(answer)

        self._ask(lambda core, now: core.commit(asked, now), answered)
        self.after(_CALL_MS, lambda: answered(None))

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _change(self, beat: Heartbeat) -> Request:
        return lambda core, now: core.heartbeat(beat, now)

    def _ask(self, change: Request, then: Reply, *, again: Callable[[], None] | None = None) -> None:
        """Send a request to the coordinator, if it is known; the request may arrive twice, and late."""
        coordinator = self._world.leader
        if coordinator is None:
            return
        answered = False

        def reply(answer: Any) -> None:
            self._world.send(coordinator, self, lambda: arrived(answer))

        def arrived(answer: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                then(answer)

        def give_up() -> None:
            nonlocal answered
            if again is not None and not answered:
                answered = True
                again()

        self._world.send(self, coordinator, lambda: coordinator.request(change, reply), twice=True)
        self.after(_CALL_MS, give_up)
