# SPDX-License-Identifier: Apache-2.0
"""Transactions in simulated time: coordinators that fail over, partitions, producers, sinks, readers, and faults.

The coordinator is `core.transactions.coordinator.TransactionCoordinator`; its driver is written for the simulator and
follows rules X10 to X17. The invariants are checked at each record that is committed or read.
"""

from __future__ import annotations

from tidemark.core.internal_topics import OFFSETS_TOPIC
from tidemark.core.transactions.requests import Abort, Situation, TransactionSettings
from tidemark.core.transactions.state import Change, TransactionPartition

from tests.simulation.coordination.coordinator import Reply, Request
from tests.simulation.coordination.world import BROKERS, WALL_MS, CoordinatorWorld, Item, draw_items
from tests.simulation.engine import Node
from tests.simulation.transactions.brokers import BrokerNode
from tests.simulation.transactions.clients import ClientNode, ProducerNode, ReaderNode, SinkNode
from tests.simulation.transactions.invariants import AllInvariants
from tests.simulation.transactions.offsets_leader import INPUTS, group_at
from tests.simulation.transactions.partition_log import TOPIC, PartitionLog
from tests.simulation.transactions.transforms import GROUP, GroupCall, TransformNode

TROUBLED_MS = 8_000
PEACE_MS = 5_000
PARTITIONS = 3
CLIENTS_MAX = 3
PRODUCERS = ("payments", "orders")
SINKS = ("counts",)
TRANSFORMS = ("sizes-0", "sizes-1")
_RESTART_MS = 150

KINDS = {
    "zombie": 4,
    "kill client": 4,
    "stop client": 5,
    "cut client": 3,
    "stop broker": 3,
    "replace coordinator": 5,
    "kill coordinator": 3,
    "fail a write": 4,
    "move leader": 8,
    "recreate topic": 1,
    "abort by operator": 1,
}
TRANSFORM_KINDS = {kind: weight for kind, weight in KINDS.items() if kind != "recreate topic"} | {"move offsets": 6}


def draw(seed: int, *, transforms: bool = False) -> list[Item]:
    """The faults of the world of that seed."""
    kinds, count = (TRANSFORM_KINDS, 25) if transforms else (KINDS, 40)
    return sorted(draw_items(seed, kinds, count, TROUBLED_MS))


class TransactionWorld(CoordinatorWorld):
    """Three brokers, three partitions, the clients of three transactional ids, and two readers.

    Args:
        transforms: two of the ids read an input as a group, and commit their offsets with their rows (rule X17).
    """

    def __init__(self, seed: int, plan: list[Item], *, transforms: bool = False) -> None:
        super().__init__(
            seed,
            plan,
            broker=BrokerNode,
            late_shares=(0.03, 0.1, 0.4),
            late_ms=(0, 0, 0, 20, 400, 1600),
            peace_at_ms=TROUBLED_MS,
        )
        self.invariants = AllInvariants()
        self.partitions = [self._new_partition(index, 0) for index in range(PARTITIONS)]
        self.offsets = self._offsets_log() if transforms else None
        self.clients: dict[str, ClientNode] = {}
        self.checkpoints: dict[str, int] = {}
        self.transactions = self.batches = self.fenced = 0
        self._readers = [ReaderNode(self, f"r{index}") for index in range(2)]
        self._started = self._producer_ids = self._topics = 0
        self._expiration_ms = self.engine.dice("expiration").choice((600, 10**9, 10**9))
        # An id that expires forgets which batches are committed, so a sink must return within the expiration time.
        self._names = (*PRODUCERS, *SINKS) if self._expiration_ms > PEACE_MS else (*PRODUCERS, "refunds")
        if transforms:  # an id that expires repeatedly commits nothing
            self._names, self._expiration_ms = (PRODUCERS[0], *TRANSFORMS), 10**9

    def live(self) -> None:
        """Live to the end of the peace; raises BrokenError, or an assertion of the core."""
        self._lead(self.brokers[0])
        for index, log in enumerate(self.partitions):
            log.lead(self.brokers[index % BROKERS])
        if self.offsets is not None:
            self._lead_offsets(self.offsets, self.brokers[-1])
        for name in self._names:
            self._start(name)
        for reader in self._readers:
            reader.start()
        self.engine.run(TROUBLED_MS)
        self.network.heal_all()
        for node in (*self.brokers, *self.clients.values()):
            node.resume()
        self.tell("peace")
        self.engine.run(TROUBLED_MS + PEACE_MS // 2)
        self.finish()
        self.engine.run(TROUBLED_MS + PEACE_MS)
        self.invariants.at_the_end(self)

    def finish(self) -> None:
        """End every client; timeouts end the open transactions."""
        for client in tuple(self.clients.values()):
            client.alive = False
        self.clients.clear()

    def situation(self) -> Situation:
        settings = TransactionSettings(expiration_ms=self._expiration_ms)
        return Situation(self.engine.now, WALL_MS + self.engine.now, settings)

    def next_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def wrote(self, changes: list[Change]) -> None:
        self.invariants.wrote(changes)
        super().wrote(changes)

    def log_of(self, key: TransactionPartition) -> PartitionLog:
        """The present incarnation of a partition."""
        if key.topic == OFFSETS_TOPIC:
            assert self.offsets is not None
            return self.offsets
        return self.partitions[key.partition]

    def committed_offsets(self) -> dict[int, int]:
        """The offsets that a new coordinator of the group would find, by input partition."""
        assert self.offsets is not None
        group = group_at(self.offsets, self).find(GROUP)
        found = {} if group is None else {where.partition: one.offset for where, one in group.offsets.items()}
        return dict.fromkeys(range(INPUTS), 0) | found

    # -- messages ------------------------------------------------------------------------------------------------

    def ask(self, sender: Node, request: Request, reply: Reply) -> None:
        """Send a request to the current coordinator. The request may arrive twice, and its answer may be lost."""
        coordinator = self.leader
        assert coordinator is not None

        def answer(found: object) -> None:
            self.send(coordinator, sender, lambda: reply(found))

        self.send(sender, coordinator, lambda: coordinator.request(request, answer), twice=True)

    def ask_group(self, sender: Node, call: GroupCall, reply: Reply) -> None:
        """Send a request to the current coordinator of the group.

        The request may arrive twice, and its answer may be lost.
        """
        assert self.offsets is not None
        coordinator = self.offsets.leader
        assert coordinator is not None

        def answer(found: object) -> None:
            self.send(coordinator, sender, lambda: reply(found))

        self.send(sender, coordinator, lambda: call(coordinator.groups, answer), twice=True)

    # -- clients -------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> ClientNode:
        self._started += 1
        kind = SinkNode if name in SINKS else TransformNode if name in TRANSFORMS else ProducerNode
        client: ClientNode = kind(self, name, f"{name}-{self._started}")
        self.clients[client.name] = client
        client.start()
        return client

    def ended(self, client: ClientNode) -> None:
        """Start another process of a transactional id, unless one runs."""
        self.clients.pop(client.name, None)
        self.engine.after(_RESTART_MS, lambda: self._restart(client.transactional_id))

    def _restart(self, name: str) -> None:
        running = any(client.transactional_id == name for client in self.clients.values())
        if not running and self.engine.now < TROUBLED_MS + PEACE_MS // 2:
            self._start(name)

    def _new_partition(self, index: int, incarnation: int) -> PartitionLog:
        return PartitionLog(self, TransactionPartition(TOPIC, f"id-{incarnation}", index))

    def _offsets_log(self) -> PartitionLog:
        return PartitionLog(self, TransactionPartition(OFFSETS_TOPIC, "offsets-id", PARTITIONS))

    def _lead_offsets(self, log: PartitionLog, broker: BrokerNode) -> None:
        log.lead(broker)
        broker.groups.lead()

    # -- faults --------------------------------------------------------------------------------------------------

    def _victim(self, item: Item) -> ClientNode | None:
        names = sorted(self.clients)
        return self.clients[names[item.number % len(names)]] if names else None

    def _zombie(self, item: Item) -> str:
        name = self._names[item.number % len(self._names)]
        if sum(client.transactional_id == name for client in self.clients.values()) >= CLIENTS_MAX:
            return ""
        return f"{self._start(name).name} starts beside the others of {name}"

    def _kill_client(self, item: Item) -> str:
        victim = self._victim(item)
        if victim is None:
            return ""
        victim.die()
        return f"{victim.name} is killed"

    def _stop_client(self, item: Item) -> str:
        victim = self._victim(item)
        return "" if victim is None else self._stop(victim, item.lasts_ms)

    def _stop_broker(self, item: Item) -> str:
        return self._stop(self.brokers[item.number % BROKERS], item.lasts_ms)

    def _cut_client(self, item: Item) -> str:
        victim = self._victim(item)
        return "" if victim is None else self._cut(victim, item)

    def _fail_a_write(self, item: Item) -> str:
        if self.offsets is not None and self.offsets.leader is not None and item.number % 2:
            self.offsets.leader.groups.next_write_fails = True
            return f"a write of the group's coordinator {self.offsets.leader.name} fails"
        return super()._fail_a_write(item)

    def _move_leader(self, item: Item) -> str:
        log = self.partitions[item.number % PARTITIONS]
        broker = self.brokers[item.number // PARTITIONS % BROKERS]
        log.lead(broker)
        return f"{broker.name} leads partition {log.key.partition} in epoch {log.leader_epoch}"

    def _move_offsets(self, item: Item) -> str:
        assert self.offsets is not None
        broker = self.brokers[item.number % BROKERS]
        self._lead_offsets(self.offsets, broker)
        return f"{broker.name} coordinates the group in epoch {self.offsets.leader_epoch}"

    def _recreate_topic(self, item: Item) -> str:
        self._topics += 1
        for log in self.partitions:
            log.deleted = True
        self.partitions = [self._new_partition(index, self._topics) for index in range(PARTITIONS)]
        for index, log in enumerate(self.partitions):
            log.lead(self.brokers[index % BROKERS])
        return f"the topic is deleted and created again, incarnation {self._topics}"

    def _abort_by_operator(self, item: Item) -> str:
        name = self._names[item.number % len(self._names)]
        operator = Node(self.engine, "operator")
        self.ask(operator, lambda core, now: core.abort(Abort(name), now), lambda _: None)
        return f"an operator aborts {name}"
