# SPDX-License-Identifier: Apache-2.0
"""A consumer group in simulated time: coordinators that are replaced, members that keep to docs/groups.md, and a plan.

The coordinator is `core.groups.coordinator.GroupCoordinator`; the node that drives it keeps to step G8, as
`broker.coordination.shard` does. Invariants are checked whenever a record is read or appended:

ONE-OWNER: two members never read a partition at once. COMMITS-KEPT: an acknowledged commit is remembered; offsets
never go back, and never beyond the records read. READ-ALL: no record is skipped. SETTLED: in peace every partition
is read in the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

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

from tests.simulation.engine import Engine, Node
from tests.simulation.groups.nodes import GROUP, SESSION_MS, TOPIC, CoordinatorNode, MemberNode
from tests.simulation.network.links import Network

TROUBLED_MS = 12_000
PEACE_MS = 6_000
BROKERS = 3
_WALL_MS = 1_700_000_000_000


class Item(NamedTuple):
    """A fault or change of a world; `number` chooses its member or broker, `lasts_ms` its duration."""

    at_ms: int
    kind: str
    number: int
    lasts_ms: int = 0


class BrokenError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, name: str, story: str) -> None:
        super().__init__(f"{name}: {story}")
        self.name = name


def draw(seed: int, count: int = 40) -> list[Item]:
    """The plan of the world of that seed."""
    dice = Engine(seed).dice("plan")
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
    items = [
        Item(dice.randrange(TROUBLED_MS), kind, dice.randrange(1000), dice.choice((50, 300, 900, 1500, 2500)))
        for kind in dice.choices(list(kinds), list(kinds.values()), k=count)
    ]
    return sorted([*items, Item(0, "join", 0), Item(1, "join", 1)])


class GroupWorld:
    """Brokers of which one at a time is coordinator, members, and the committed ones of their records."""

    def __init__(self, seed: int, plan: list[Item]) -> None:
        self.engine = Engine(seed)
        self.network = Network(self.engine)
        self.topics = {TOPIC: TopicFacts("id", 3)}
        self.settings = GroupSettings(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
        self.log: list[Change] = []
        self.brokers = [CoordinatorNode(self, f"b{index}") for index in range(BROKERS)]
        self.leader: CoordinatorNode | None = None
        self.leader_epoch = 0
        self.members: dict[str, MemberNode] = {}
        self.story: list[tuple[int, str]] = []
        self.committed: dict[int, Committed] = {}
        """The committed offset of each partition."""
        self.held: dict[str, frozenset[int]] = {}
        self.read_to: defaultdict[int, int] = defaultdict(int)
        self.reads = self.commits = self.refused = self.handed_over = 0
        self._joined = 0
        self._late = self.engine.dice("late").choice((0.03, 0.3, 0.5))
        """How often a message comes late, and a request twice."""
        for item in plan:
            self.engine.at(item.at_ms, lambda item=item: self._inject(item))  # type: ignore[misc]

    def live(self) -> None:
        """Live to the end, in peace; raises BrokenError, or an assertion of the core."""
        self._lead(self.brokers[0])
        self.engine.run(TROUBLED_MS)
        self.network.heal_all()
        for node in (*self.brokers, *self.members.values()):
            node.resume()
        if self.leader is None:
            self._lead(self.brokers[0])
        self.tell("peace")
        self.engine.run(TROUBLED_MS + PEACE_MS)
        self._check_settled()

    def tell(self, sentence: str) -> None:
        self.story.append((self.engine.now, sentence))

    def situation(self) -> Situation:
        return Situation(dict(self.topics), self.settings, self.engine.now, _WALL_MS + self.engine.now)

    def send(self, sender: Node, receiver: Node, work: Callable[[], None], *, twice: bool = False) -> None:
        """Deliver a message; before peace, messages are lost or late now and then, in any order."""
        if self.engine.now >= TROUBLED_MS:
            self.engine.after(self.network.delay_ms(sender.name, receiver.name), lambda: receiver.run(work))
            return
        dice = self.engine.dice(f"loss {sender.name}")
        for _ in range(2 if twice and dice.random() < self._late else 1):
            if dice.random() < 0.03:
                continue
            late_ms = dice.choice((0, 0, 400, 1600)) if dice.random() < self._late else 0
            delay_ms = self.network.delay_ms(sender.name, receiver.name) + late_ms
            self.engine.after(delay_ms, lambda: self._arrive(sender, receiver, work))

    def _arrive(self, sender: Node, receiver: Node, work: Callable[[], None]) -> None:
        if self.network.carries(sender.name, receiver.name):
            receiver.run(work)

    # -- reports of members and coordinators ---------------------------------------------------------------------------

    def wrote(self, changes: list[Change]) -> None:
        """These records are committed, even if their coordinator is deposed or killed."""
        for key, value in changes:
            match key, value:
                case CurrentAssignmentKey(_, member), CurrentAssignment() | None:
                    self.handed_over += 1
                    self.held[member] = frozenset() if value is None else frozenset(one.partition for one in value.held)
                case OffsetKey(_, _, partition), Committed():
                    self._committed_one(partition, value)
        self.log += changes

    def _committed_one(self, partition: int, value: Committed) -> None:
        """No commit goes back, not even one long in flight while its member committed more."""
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
        """An acknowledged commit is remembered, unless a later commit of the same member replaced it."""
        known = self.committed.get(partition)
        if known is None or (known.offset < offset and not turn.is_done_by(known.turn)):
            told = f"{offset} of partition {partition} was acknowledged to {turn.committer_id}"
            raise BrokenError("COMMITS-KEPT", f"{told}, remembered is {known}")

    def reads_one(self, member: MemberNode, partition: int, offset: int) -> None:
        """A member reads a record."""
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

    def _inject(self, item: Item) -> None:
        told = getattr(self, "_" + item.kind.replace(" ", "_"))(item)
        if told:
            self.tell(f"== {told}")

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

    def _stop(self, node: Node, lasts_ms: int) -> str:
        node.pause()
        self.engine.after(lasts_ms, node.resume)
        return f"{node.name} is stopped for {lasts_ms} ms"

    def _cut_member(self, item: Item) -> str:
        member = self._one(item)
        if member is None:
            return ""
        ways = [(member.name, broker.name) for broker in self.brokers]
        if item.number % 2:
            ways = [(receiver, sender) for sender, receiver in ways]
        for way in ways:
            self.network.cut(*way)
            self.engine.after(item.lasts_ms, lambda way=way: self.network.heal(*way))  # type: ignore[misc]
        return f"nothing {'to' if item.number % 2 else 'from'} {member.name} for {item.lasts_ms} ms"

    def _replace_coordinator(self, item: Item) -> str:
        """The deposed coordinator does not know this yet, and may be stopped; the log may have its writes in flight."""
        others = [broker for broker in self.brokers if broker is not self.leader and broker.alive]
        successor = others[item.number % len(others)]
        self._lead(successor)
        return f"{successor.name} is coordinator in epoch {self.leader_epoch}"

    def _kill_coordinator(self, item: Item) -> str:
        """Kill the coordinator's process; it restarts at once, with nothing in memory."""
        if self.leader is None:
            return ""
        gone = self.leader
        gone.forget()
        return f"{gone.name} is killed; {self._replace_coordinator(item)}"

    def _stop_coordinator(self, item: Item) -> str:
        return "" if self.leader is None else self._stop(self.leader, item.lasts_ms)

    def _fail_a_write(self, item: Item) -> str:
        if self.leader is None:
            return ""
        self.leader.next_write_fails = True
        return f"a write of {self.leader.name} fails"

    def _grow(self, item: Item) -> str:
        facts = self.topics[TOPIC]
        if facts.partition_count >= 6:
            return ""
        self.topics[TOPIC] = facts._replace(partition_count=facts.partition_count + 1)
        return f"the topic has {facts.partition_count + 1} partitions"

    def _lead(self, broker: CoordinatorNode) -> None:
        if self.leader is not None:
            self.leader.depose()
        self.leader_epoch += 1
        self.leader = broker
        broker.lead(self.leader_epoch)
