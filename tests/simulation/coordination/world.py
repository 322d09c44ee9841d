# SPDX-License-Identifier: Apache-2.0
"""A world of brokers of which one at a time is coordinator: messages that are lost or late, and faults of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tests.simulation.coordination.coordinator import CoordinatorNode
from tests.simulation.engine import Engine, Node
from tests.simulation.network.links import Network

BROKERS = 3
WALL_MS = 1_700_000_000_000


class Item(NamedTuple):
    """A fault or change of a world; `number` chooses its node, `lasts_ms` its duration."""

    at_ms: int
    kind: str
    number: int
    lasts_ms: int = 0


def draw_items(seed: int, kinds: dict[str, int], count: int, until_ms: int) -> list[Item]:
    """`count` items before `until_ms`, not sorted, with kinds by their weights."""
    dice = Engine(seed).dice("plan")
    return [
        Item(dice.randrange(until_ms), kind, dice.randrange(1000), dice.choice((50, 300, 900, 1500, 2500)))
        for kind in dice.choices(list(kinds), list(kinds.values()), k=count)
    ]


class CoordinatorWorld:
    """Brokers, the log of their coordinator, and a network.

    Args:
        broker: makes a broker of its name.
        late_shares: possible shares of late messages, and of requests that arrive twice.
        late_ms: delays of such messages.
        peace_at_ms: no message is lost or late from then on.
    """

    def __init__(
        self,
        seed: int,
        plan: Iterable[Item],
        *,
        broker: Callable[[Any, str], Any],
        late_shares: Sequence[float],
        late_ms: Sequence[int],
        peace_at_ms: int,
    ) -> None:
        self.engine = Engine(seed)
        self.network = Network(self.engine)
        self.log: list[Any] = []
        self.brokers = [broker(self, f"b{index}") for index in range(BROKERS)]
        self.leader: Any = None
        self.leader_epoch = 0
        self.story: list[tuple[int, str]] = []
        self.refused: Counter[str] = Counter()
        self._late = self.engine.dice("late").choice(late_shares)
        self._late_ms = late_ms
        self._peace_at_ms = peace_at_ms
        for item in plan:
            self.engine.at(item.at_ms, lambda item=item: self._inject(item))  # type: ignore[misc]

    def situation(self) -> Any:
        """The facts that the core needs for a request."""
        raise NotImplementedError

    def wrote(self, changes: list[Any]) -> None:
        """These records of the coordinator are committed, even if the coordinator is deposed or killed."""
        self.log += changes

    def tell(self, sentence: str) -> None:
        self.story.append((self.engine.now, sentence))

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, sender: Node, receiver: Node, work: Callable[[], None], *, twice: bool = False) -> None:
        """Deliver a message; before peace, messages are lost, late, and out of order at times."""
        if self.engine.now >= self._peace_at_ms:
            self.engine.after(self.network.delay_ms(sender.name, receiver.name), lambda: receiver.run(work))
            return
        dice = self.engine.dice(f"loss {sender.name}")
        for _ in range(2 if twice and dice.random() < self._late else 1):
            if dice.random() < 0.03:
                continue
            late_ms = dice.choice(self._late_ms) if dice.random() < self._late else 0
            delay_ms = self.network.delay_ms(sender.name, receiver.name) + late_ms
            self.engine.after(delay_ms, lambda: self._arrive(sender, receiver, work))

    def _arrive(self, sender: Node, receiver: Node, work: Callable[[], None]) -> None:
        if self.network.carries(sender.name, receiver.name):
            receiver.run(work)

    # -- faults --------------------------------------------------------------------------------------------------

    def _inject(self, item: Item) -> None:
        sentence = getattr(self, "_" + item.kind.replace(" ", "_"))(item)
        if sentence:
            self.tell(f"== {sentence}")

    def _stop(self, node: Node, lasts_ms: int) -> str:
        node.pause()
        self.engine.after(lasts_ms, node.resume)
        return f"{node.name} is stopped for {lasts_ms} ms"

    def _cut(self, node: Node, item: Item) -> str:
        """Cut one direction between a client and all brokers."""
        ways = [(node.name, broker.name) for broker in self.brokers]
        if item.number % 2:
            ways = [(receiver, sender) for sender, receiver in ways]
        for way in ways:
            self.network.cut(*way)
            self.engine.after(item.lasts_ms, lambda way=way: self.network.heal(*way))  # type: ignore[misc]
        return f"nothing {'to' if item.number % 2 else 'from'} {node.name} for {item.lasts_ms} ms"

    def _replace_coordinator(self, item: Item) -> str:
        """Another broker becomes coordinator.

        The former one does not know this yet; any of its writes in flight may be in the log.
        """
        others = [broker for broker in self.brokers if broker is not self.leader]
        self._lead(others[item.number % len(others)])
        return f"{self.leader.name} is coordinator in epoch {self.leader_epoch}"

    def _kill_coordinator(self, item: Item) -> str:
        """Kill the coordinator's process; the process restarts immediately, without state in memory."""
        gone = self.leader
        gone.forget()
        return f"{gone.name} is killed; {self._replace_coordinator(item)}"

    def _fail_a_write(self, item: Item) -> str:
        self.leader.next_write_fails = True
        return f"a write of {self.leader.name} fails"

    def _lead(self, broker: CoordinatorNode) -> None:
        if self.leader is not None:
            self.leader.depose()
        self.leader_epoch += 1
        self.leader = broker
        broker.lead(self.leader_epoch)
