# SPDX-License-Identifier: Apache-2.0
"""A consumer group in simulated time: coordinators that are replaced, members that keep to docs/groups.md, and a plan.

The coordinator is `core.groups.coordinator.GroupCoordinator`; the node that drives it keeps to step G8, as
`broker.coordination.shard` does. Invariants are checked whenever a record is read or appended:

ONE-OWNER: two members never read a partition at the same time. COMMITS-KEPT: an acknowledged commit stays; offsets
never go back, and never above the records that were read. READ-ALL: no record is skipped. SETTLED: by the end of peace
every partition is read.
"""

from __future__ import annotations

from collections import defaultdict

from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import (
    Change,
    Committed,
    CurrentAssignment,
    CurrentAssignmentKey,
    OffsetKey,
    TopicFacts,
    Turn,
)

from tests.simulation.coordination.lives import BrokenError
from tests.simulation.coordination.world import WALL_MS, CoordinatorWorld, Item, draw_items
from tests.simulation.groups.nodes import GROUP, SESSION_MS, TOPIC, GroupCoordinatorNode, MemberNode

TROUBLED_MS = 12_000
PEACE_MS = 6_000


def draw(seed: int, count: int = 40) -> list[Item]:
    """The plan of the world of that seed."""
    kinds = {
        "join": 5,
        "leave": 3,
        "kill": 3,
        "stop member": 5,
        "cut member": 4,
        "replace coordinator": 5,
        "kill coordinator": 2,
        "stop coordinator": 3,
        "fail a write": 4,
        "grow": 2,
    }
    items = draw_items(seed, kinds, count, TROUBLED_MS)
    return sorted([*items, Item(0, "join", 0), Item(1, "join", 1)])


class GroupWorld(CoordinatorWorld):
    """Brokers of which one at a time is coordinator, members, and the committed ones of their records."""

    def __init__(self, seed: int, plan: list[Item]) -> None:
        super().__init__(
            seed,
            plan,
            broker=GroupCoordinatorNode,
            late_shares=(0.03, 0.3, 0.5),
            late_ms=(0, 0, 400, 1600),
            peace_at_ms=TROUBLED_MS,
        )
        self.topics = {TOPIC: TopicFacts("id", 3)}
        self.settings = GroupSettings(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
        self.members: dict[str, MemberNode] = {}
        self.committed: dict[int, Committed] = {}
        """The committed offset of each partition."""
        self.held: dict[str, frozenset[int]] = {}
        self.read_to: defaultdict[int, int] = defaultdict(int)
        self.reads = self.commits = self.handed_over = 0
        self._joined = 0

    def live(self) -> None:
        """Live to the end, in peace; raises BrokenError, or an assertion of the core."""
        self._lead(self.brokers[0])
        self.engine.run(TROUBLED_MS)
        self.network.heal_all()
        for node in (*self.brokers, *self.members.values()):
            node.resume()
        self.tell("peace")
        self.engine.run(TROUBLED_MS + PEACE_MS)
        self._check_settled()

    def situation(self) -> Situation:
        return Situation(dict(self.topics), self.settings, self.engine.now, WALL_MS + self.engine.now)

    # -- reports of members and coordinators ---------------------------------------------------------------------------

    def wrote(self, changes: list[Change]) -> None:
        for key, value in changes:
            match key, value:
                case CurrentAssignmentKey(_, member), CurrentAssignment() | None:
                    self.handed_over += 1
                    self.held[member] = frozenset() if value is None else frozenset(one.partition for one in value.held)
                case OffsetKey(_, _, partition), Committed():
                    self._committed_one(partition, value)
        super().wrote(changes)

    def _committed_one(self, partition: int, value: Committed) -> None:
        """No commit goes back, even after a long time in flight in which its member committed more."""
        self.commits += 1
        before = self.committed.get(partition, value)
        author = value.turn.committer_id
        told = f"{author} commits {value.offset} of partition {partition}"
        if partition not in self.held.get(author, ()):
            raise BrokenError("COMMITS-KEPT", f"{told}, which it does not hold")
        if value.offset < before.offset:
            raise BrokenError("COMMITS-KEPT", f"{told}, where {before.turn.committer_id} has committed {before.offset}")
        if value.offset > self.read_to[partition]:
            raise BrokenError("COMMITS-KEPT", f"{told}, read to {self.read_to[partition]}")
        self.committed[partition] = value

    def acknowledged(self, partition: int, offset: int, turn: Turn) -> None:
        """An acknowledged commit stays, unless a later commit of the same member replaced it."""
        known = self.committed.get(partition)
        if known is None or (known.offset < offset and not turn.is_done_by(known.turn)):
            told = f"{offset} of partition {partition} was acknowledged to {turn.committer_id}"
            raise BrokenError("COMMITS-KEPT", f"{told}, remembered is {known}")

    def reads_one(self, member: MemberNode, partition: int, offset: int) -> None:
        for other in self.members.values():
            if other is not member and partition in other.reading and not other.may_be_out:
                raise BrokenError("ONE-OWNER", f"partition {partition} is read by {other.name} and {member.name}")
        if offset > self.read_to[partition]:
            told = f"{member.name} passes over [{self.read_to[partition]}, {offset}) of {partition}"
            raise BrokenError("READ-ALL", told)
        self.read_to[partition] = max(self.read_to[partition], offset + 1)
        self.reads += 1

    def _check_settled(self) -> None:
        readers = {
            partition: member.name
            for member in self.members.values()
            if not member.may_be_out
            for partition in member.reading
        }
        unread = set(range(self.topics[TOPIC].partition_count)) - readers.keys()
        if self.members and unread:
            raise BrokenError("SETTLED", f"after {PEACE_MS} ms of peace no member reads {sorted(unread)}; {readers}")

    # -- the items of the plan -----------------------------------------------------------------------------------------

    def _one(self, item: Item) -> MemberNode | None:
        names = sorted(self.members)
        return self.members[names[item.number % len(names)]] if names else None

    def _join(self, item: Item) -> str:
        if len(self.members) >= 4:
            return ""
        member = MemberNode(self, f"m{self._joined}")
        self._joined += 1
        self.members[member.name] = member
        member.start()
        return f"{member.name} joins {GROUP}"

    def _leave(self, item: Item) -> str:
        member = self._one(item)
        if member is None or len(self.members) < 2:
            return ""
        member.leave()
        return f"{member.name} leaves"

    def _kill(self, item: Item) -> str:
        member = self._one(item)
        if member is None or len(self.members) < 2:
            return ""
        member.alive = False
        del self.members[member.name]
        return f"{member.name} is killed"

    def _stop_member(self, item: Item) -> str:
        member = self._one(item)
        return "" if member is None else self._stop(member, item.lasts_ms)

    def _cut_member(self, item: Item) -> str:
        member = self._one(item)
        return "" if member is None else self._cut(member, item)

    def _stop_coordinator(self, item: Item) -> str:
        return self._stop(self.leader, item.lasts_ms)

    def _grow(self, item: Item) -> str:
        facts = self.topics[TOPIC]
        if facts.partition_count >= 6:
            return ""
        self.topics[TOPIC] = facts._replace(partition_count=facts.partition_count + 1)
        return f"the topic has {facts.partition_count + 1} partitions"
