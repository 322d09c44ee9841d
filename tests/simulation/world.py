# SPDX-License-Identifier: Apache-2.0
"""A cluster of three or four brokers and two controllers over a simulated ZooKeeper, and its run from a plan."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tidemark.core.config import ReplicationConfig
from tidemark.core.replication import effects as fx
from tidemark.model import BrokerId, ReplicaIdentity, TidemarkError, TopicDescription, TopicPartition, VersionedState
from tidemark.zookeeper import codecs, paths

from tests.simulation.admin_requests import is_settled
from tests.simulation.clients.consumers import Reader
from tests.simulation.clients.follower_fetch import NearReader
from tests.simulation.clients.producers import Clients
from tests.simulation.clients.rows import Rows
from tests.simulation.clients.transactions import CommittedReader
from tests.simulation.disks.machine import Machine
from tests.simulation.disks.repairs import scrub
from tests.simulation.engine import Engine, Node
from tests.simulation.faults import Faults
from tests.simulation.hurt_nodes import HurtNodes
from tests.simulation.invariants.catalogue import all_invariants
from tests.simulation.invariants.moment import look
from tests.simulation.invariants.replication import InvariantError, OneLeader
from tests.simulation.network.ensemble import Ensemble
from tests.simulation.network.links import Network
from tests.simulation.nodes.broker import BrokerNode
from tests.simulation.nodes.controller import ControllerNode
from tests.simulation.plan import CONTROLLERS, START_MS, Item, Plan
from tests.simulation.records import Values, agree

PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("a" * 32, "b" * 32)
PEACE_MS = 20_000
PEOPLE_MS = 1500
"""Time without faults before operators replace damaged replicas."""


_state_path = cache(paths.state)


class _Clock:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now_ms(self) -> int:
        return self._engine.now

    def wall_us(self) -> int:
        return self._engine.now * 1000


class World:
    """One run, by `live`; a broken invariant raises `InvariantError`."""

    session_timeout_ms = 1000
    replication = ReplicationConfig(
        replica_lag_time_max_ms=800,
        replica_fetch_max_bytes=300,
        replica_directory_credit_bytes=1000,
        replica_heartbeat_interval_ms=100,
    )

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.engine = Engine(plan.seed)
        self.clock = _Clock(self.engine)
        self.network = Network(self.engine)
        self.ensemble = Ensemble(self.engine, self.network)
        self.ensemble.lost_answers = plan.recipe.lost_answers
        self.machines = {BrokerId(one): Machine(one, self.engine.dice(f"power {one}")) for one in self.recipe.brokers}
        self.brokers: dict[BrokerId, BrokerNode] = {}
        self.controllers: dict[BrokerId, ControllerNode] = {}
        self.partitions = (PARTITION,)
        """Partitions that records are written to; others are created and deleted empty."""
        self.asked_lists = {PARTITION: {tuple(BrokerId(one) for one in self.recipe.replicas)}}
        """Replica lists that were requested for a partition."""
        self.invariants = all_invariants()
        self._checks = [one.check for one in self.invariants if one.is_checked(self.recipe)]
        self.clients = Clients(self)
        self.rows = Rows(self)
        self.released_front = 0
        """The highest log start that any leader released; records below are not needed."""
        self.released_fronts: dict[tuple[TopicPartition, int], int] = {}
        """The same by partition and lineage."""
        self.steps = 0
        self.counts: Counter[str] = Counter()
        """Number of occurrences of rare events."""
        self.open_requests = 0
        """Operators' requests that have not ended."""
        """Number of reads from followers that returned records."""
        self.story: list[tuple[int, str]] = []
        self.lines: list[str] | None = None
        self._lives = dict.fromkeys(self.machines, 0)
        self._power_losses = 0
        self.has_rotted = False
        """A disk lost records, or a bit flipped, since all replicas had caught up."""
        self._offline_after_ms = 0
        self.offline_at_the_end = False
        self._topic: tuple[int, TopicDescription] | None = None
        self._seen: dict[TopicPartition, tuple[int, VersionedState]] = {}
        self.hurt_nodes = HurtNodes(self)
        self._directory = _memory_directory() if plan.recipe.files else None
        for broker, machine in self.machines.items():
            if self._directory is not None:
                machine.path = Path(self._directory.name) / str(broker)
        self._make_tree()
        self.ensemble.on_commit = self.check
        for broker in self.machines:
            self.start_broker(broker)
        for controller in CONTROLLERS:
            self.start_controller(BrokerId(controller))

    def _make_tree(self) -> None:
        """The layout's parents, and one topic as the admin service writes it."""
        configs = self.recipe.topic_configs
        topic = TopicDescription(
            PARTITION.topic,
            IDENTITY.topic_id,
            {PARTITION.partition: tuple(BrokerId(one) for one in self.recipe.replicas)},
            {PARTITION.partition: IDENTITY.incarnation},
            configs=configs,
        )
        nodes: dict[str, bytes] = {}
        for path in (*paths.PARENTS, paths.TOPIC_CONFIGS):
            parts = path.strip("/").split("/")
            nodes.update({"/" + "/".join(parts[: depth + 1]): b"" for depth in range(len(parts))})
        nodes[paths.topic(topic.topic)] = codecs.encode_topic(topic)
        nodes["/" + paths.CLUSTER_ID.strip("/").split("/")[0]] = b""
        nodes[paths.CLUSTER_ID] = codecs.encode_cluster_id("simulated")
        nodes[paths.CONTROLLER_EPOCH] = codecs.encode_number("epoch", 0)
        nodes[paths.topic_config(topic.topic)] = codecs.encode_configs(configs)
        self.ensemble.commit([_creation(path, data) for path, data in nodes.items()])

    def close(self) -> None:
        """Delete real files, if any, and end other processes."""
        for controller in self.controllers.values():
            controller.die()
        for close in self.engine.at_end:
            close()
        if self._directory is not None:
            for process in self.brokers.values():
                process.logs.die()
            self._directory.cleanup()

    # -- the state of the world --------------------------------------------------------------------------------------

    def state(self, partition: TopicPartition) -> VersionedState | None:
        """The partition's node; decoded once for each version. None: it does not exist, or was written manually."""
        path = _state_path(partition)
        node = self.ensemble.nodes.get(path)
        if node is None or self.hurt_nodes.is_hurt(partition):
            return None
        known = self._seen.get(partition)
        if known is None or known[0] != node.modified_zxid:
            decoded = VersionedState(codecs.decode_state(path, node.data), node.version)
            if not self.hurt_nodes.wrote(partition, decoded.state.leader_epoch, node.data):
                return None
            known = self._seen[partition] = (node.modified_zxid, decoded)
        return known[1]

    def topic(self) -> TopicDescription:
        """The topic's node; decoded once for each version."""
        path = paths.topic(PARTITION.topic)
        node = self.ensemble.nodes[path]
        if self._topic is None or self._topic[0] != node.modified_zxid:
            self._topic = (node.modified_zxid, codecs.decode_topic(path, node.data, PARTITION.topic))
        return self._topic[1]

    def assigned(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        return self.topic().partitions[partition.partition]

    def broker_epoch(self, broker: BrokerId) -> int:
        node = self.ensemble.nodes.get(paths.broker_epoch(broker))
        return node.version if node is not None else -1

    def leader(self) -> BrokerId:
        self.state(PARTITION)
        seen = self._seen.get(PARTITION)  # the last readable state, if the node is hurt
        return seen[1].state.leader if seen is not None else BrokerId(-1)

    def values(self, broker: BrokerId, partition: TopicPartition) -> Values:
        log = self.machines[broker].logs.get(partition)
        return log.values if log is not None else []

    def led_by(self, partition: TopicPartition, leader_epoch: int) -> tuple[BrokerId, int]:
        """The broker that led in a leader epoch, and the number of its process; -1: no broker led."""
        leaders = next(one for one in self.invariants if isinstance(one, OneLeader)).leaders
        return leaders.get((partition, leader_epoch), (BrokerId(-1), -1))

    def session_is_live(self, process: BrokerNode) -> bool:
        return self.ensemble.sessions.get(process.store.session.session_id) is process.store.session  # type: ignore[comparison-overlap]

    # -- telling -----------------------------------------------------------------------------------------------------

    def stepped(self, node: Node, event: Any) -> None:
        self.steps += 1
        if self.lines is not None:
            self.trace(node, "<-", event)

    def trace(self, node: Node, arrow: str, what: Any) -> None:
        if self.lines is not None:
            self.lines.append(f"{self.engine.now:6} {node.name} {arrow} {what}")

    def tell(self, sentence: str) -> None:
        self.story.append((self.engine.now, sentence))

    def check(self) -> None:
        for partition in self.partitions:
            moment = look(self, partition)
            for check in self._checks:
                check(self, moment)
        if (self._power_losses or self.has_rotted) and self.caught_up():
            self._power_losses, self.has_rotted = 0, False

    # -- brokers and controllers -------------------------------------------------------------------------------------

    def start_broker(self, broker: BrokerId) -> None:
        if broker not in self.brokers:
            self._lives[broker] += 1
            self.brokers[broker] = BrokerNode(self, broker, self._lives[broker])

    def stop_broker(self, broker: BrokerId) -> None:
        process = self.brokers.pop(broker, None)
        if process is not None:
            process.die()

    def exits(self, process: BrokerNode, error: TidemarkError) -> None:
        """A process that cannot continue ends; its supervisor restarts it."""
        self.tell(f"broker {process.broker_id} exits: {error.message}")
        self.stop_broker(process.broker_id)
        self.engine.after(300, lambda: self.start_broker(process.broker_id))

    def leaves(self, process: BrokerNode) -> None:
        """The last log directory has failed; the process restarts after an operator has repaired it."""
        self.tell(f"broker {process.broker_id} leaves: no log directory is left")
        self.stop_broker(process.broker_id)

    def start_controller(self, controller: BrokerId) -> None:
        if controller not in self.controllers:
            self.controllers[controller] = ControllerNode(self, controller)

    # -- produce -----------------------------------------------------------------------------------------------------

    def acks_of(self, request_id: int) -> int:
        return self.clients.acks_of(request_id)

    def released(self, process: BrokerNode, effect: fx.ReplyToProduce, error: TidemarkError | None) -> None:
        promises = error is None and self.acks_of(effect.request_id) != 0
        for invariant in self.invariants:
            if promises:
                invariant.on_release(self, process, effect.partition)
        self.clients.answered(process, effect, error)

    def acked(self, process: BrokerNode, partition: TopicPartition, offset: int, value: str) -> None:
        for invariant in self.invariants:
            invariant.on_ack(self, process, partition, offset, value)

    # -- a life ------------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run the plan, then wait without faults until all replicas are in sync again."""
        for item in self.plan.items:
            self.engine.at(item.at_ms, lambda item=item: self._happen(item))  # type: ignore[misc]
        for goes_on in (False, True):
            Reader(self, goes_on=goes_on).start()
            if self.recipe.near:
                NearReader(self, goes_on=goes_on).start()
            if self.recipe.transactions:
                CommittedReader(self, goes_on=goes_on).start()
        self.engine.run(START_MS + self.recipe.duration_ms)
        self._make_peace()

    def _happen(self, item: Item) -> None:
        if item.kind == "produce":
            value, records, acks, to = item.args
            self.clients.produce(str(value), int(records), int(acks), BrokerId(int(to)))
        elif item.kind == "append":
            self.clients.append(int(item.args[0]))
        elif item.kind == "transact":
            self.clients.transact(int(item.args[0]))
        else:
            self.tell(f"== {item}")
            Faults(self).happen(item)

    def _make_peace(self) -> None:
        self.tell("== peace")
        self.network.heal_all()
        self.ensemble.lost_answers = 0.0
        for process in (*self.brokers.values(), *self.controllers.values()):
            process.resume()
        for broker, machine in self.machines.items():
            running = self.brokers.get(broker)
            if machine.ails or machine.failed or (running is not None and running.logs.has_failed):
                machine.repair()
                self.stop_broker(broker)
            machine.slow_until_ms = 0
            machine.full = False
            self.start_broker(broker)
        for controller in CONTROLLERS:
            self.start_controller(BrokerId(controller))
        self.clients.end_transactions()
        until_ms = self.engine.now + PEACE_MS
        self._offline_after_ms = self.engine.now + PEACE_MS // 2
        while self.engine.now < until_ms:
            self.engine.run(self.engine.now + 250)
            if self.engine.now > until_ms - PEACE_MS + PEOPLE_MS:
                scrub(self)
            alike = self.caught_up() and self._fronts_follow() and self._is_committed()
            settled = alike and is_settled(self) and self.clients.done()
            if settled or self._is_offline():
                break
        else:
            ends = {broker: len(self.values(broker, PARTITION)) for broker in self.machines}
            for invariant in self.invariants[-5:]:  # requests that are not fulfilled
                invariant.at_the_end(self)
            asked = [path for path in self.ensemble.nodes if path.startswith("/admin/") and path not in paths.PARENTS]
            raise InvariantError(
                f"LIVENESS: not at peace: {self.state(PARTITION)}, ends {ends}, {self.clients}, {self.topic()}, {asked}"
            )
        if self.offline_at_the_end:
            return
        self.engine.run(self.engine.now + self.recipe.quiet_ms)
        self.check()
        for invariant in self.invariants:
            invariant.at_the_end(self)

    def _is_offline(self) -> bool:
        """Rule T4: all brokers are live, no eligible replica is left, and only an operator may choose a leader."""
        if self.engine.now < self._offline_after_ms or not self.waits_for_people(PARTITION):
            return False
        self.offline_at_the_end = True
        return True

    def waits_for_people(self, partition: TopicPartition) -> bool:
        """Whether an operator must act: no live eligible replica, or no replica that proves the state of the node."""
        if self.hurt_nodes.is_hurt(partition):
            return self.hurt_nodes.waits_for_people(partition)
        found = self.state(partition)
        if found is None or found.state.leader >= 0 or self.recipe.unclean:
            return False
        records = {one: self.ensemble.nodes.get(paths.broker_epoch(one)) for one in self.machines}
        for entry in found.state.elr:
            node = records[entry.broker_id]
            assert node is not None, "a replica in sync has registered"
            path = paths.broker_epoch(entry.broker_id)
            if codecs.decode_broker_epoch(path, node.data, node.version).unclean_at <= entry.broker_epoch:
                return False
        return True

    def caught_up(self) -> bool:
        """All replicas are in sync under their registrations, with the same log."""
        found, assigned = self.state(PARTITION), self.assigned(PARTITION)
        if found is None or found.state.leader < 0 or set(found.state.isr_ids) != set(assigned):
            return False
        if not all(self.machines[one.broker_id].keeps_promise_of(one.broker_epoch) for one in found.state.isr):
            return False
        leader = self.values(found.state.leader, PARTITION)
        replicas = [self.values(broker, PARTITION) for broker in assigned]
        return all(len(values) == len(leader) and agree(values, leader) for values in replicas)

    def _fronts_follow(self) -> bool:
        """No log starts below its leader's."""
        found = self.state(PARTITION)
        assert found is not None, "a caught-up partition has a leader"
        logs = {one: self.machines[one].logs.get(PARTITION) for one in self.assigned(PARTITION)}
        led = logs[found.state.leader]
        return led is not None and all(log is not None and log.start >= led.start for log in logs.values())

    def _is_committed(self) -> bool:
        """The leader's high watermark is its log end: each follower has fetched in the leader's epoch."""
        found = self.state(PARTITION)
        assert found is not None, "a caught-up partition has a leader"
        process = self.brokers.get(found.state.leader)
        log = None if process is None else process.replica_log(PARTITION)
        return log is not None and log.high_watermark == log.log_end_offset

    def may_lose_power(self) -> bool:
        """The budget of losses: m-1 machines between two catch-ups; any number if acknowledgements wait for disks."""
        return self.recipe.group_commit or self._power_losses < self.recipe.min_isr - 1

    def count_power_loss(self) -> None:
        self._power_losses += 1


def _memory_directory() -> tempfile.TemporaryDirectory[str]:
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="tidemark-world-", dir=memory if memory.is_dir() else None)


def _creation(path: str, data: bytes) -> Callable[[Any], Any]:
    return lambda tree: tree.create(path, data, 0)
