# SPDX-License-Identifier: Apache-2.0
"""Operators' requests: reassignments, partitions that are added and removed, brokers that shut down.

Each request is sent once, by its own process with its own session. A refused or lost request is not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.document import draft_from_document
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.text import from_text, to_text
from tidemark.model import BrokerId, PartitionReassignment, SchemaText, TidemarkError, TopicDescription, TopicPartition
from tidemark.zookeeper import codecs, paths

from tests.simulation.engine import Node
from tests.simulation.invariants.schemas import OTHER_TOPIC, unknown_versions

if TYPE_CHECKING:
    from tests.simulation.network.ensemble import SimStore
    from tests.simulation.world import World

OTHER = TopicPartition(OTHER_TOPIC, 0)
"""A partition of a topic that is created and deleted."""
_SHUTDOWN_WAIT_MS = 2000
"""Limit of a controlled shutdown; the broker then stops without a release."""


def replicas_of(text: str) -> tuple[BrokerId, ...]:
    """ "2,0,1" as a plan has it."""
    return tuple(BrokerId(int(one)) for one in text.split(","))


def is_settled(world: World) -> bool:
    """No request, reassignment, seal or shutdown is in flight; all assigned replicas are in sync."""
    if any(process.wants_shutdown for process in world.brokers.values()):
        return False
    nodes = world.ensemble.nodes
    topics = [_read_topic(world, name) for name in world.ensemble.children(paths.TOPICS)]
    parents = [f"{one}/{topic.topic}" for one in (paths.PARTITIONS_ADD, paths.PARTITIONS_REMOVE) for topic in topics]
    assigned = {
        TopicPartition(topic.topic, index): replicas for topic in topics for index, replicas in topic.partitions.items()
    }
    if any(world.waits_for_people(one) for one in assigned) and not world.topic().original:
        return all(world.waits_for_people(one) or _is_whole(world, one, assigned[one]) for one in assigned)
    if paths.MOVES in nodes or any(world.ensemble.children(one) for one in (*parents, paths.TOPIC_DELETIONS)):
        return False
    if any(topic.original for topic in topics) or not all(_is_whole(world, *one) for one in assigned.items()):
        return False
    if world.open_requests or any(process.throttles() for process in world.brokers.values()):
        return False
    if unknown_versions(world):
        return False
    return all(
        set(machine.logs) == {one for one, replicas in assigned.items() if broker in replicas}
        for broker, machine in world.machines.items()
    )


def _is_whole(world: World, partition: TopicPartition, assigned: tuple[BrokerId, ...]) -> bool:
    """All assigned replicas are in sync, and one of them leads."""
    found = world.state(partition)
    if found is None or set(found.state.isr_ids) != set(assigned) or found.state.sealed:
        return False
    leader = world.brokers.get(found.state.leader)
    return leader is not None and leader.leading(partition) is not None


def _read_topic(world: World, name: str) -> TopicDescription:
    return codecs.decode_topic(paths.topic(name), world.ensemble.nodes[paths.topic(name)].data, name)


class Requests:
    """Carries out the requests of the plan."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.actions: dict[str, Callable[..., None]] = {
            "reassign": self._reassign,
            "cancel": self._cancel,
            "drop_moves": self._drop_moves,
            "add_partition": self._add_partition,
            "remove_partition": self._remove_partition,
            "make_topic": self._make_topic,
            "move_topic": self._move_topic,
            "evolve_topic": self._evolve_topic,
            "configure_topic": self._configure_topic,
            "delete_topic": self._delete_topic,
            "shutdown": self._shutdown,
        }

    def _ask(self, what: str, call: Callable[[SimStore], Awaitable[None]]) -> None:
        world = self._world

        async def ask() -> None:
            store = world.ensemble.sim_store(admin, world.session_timeout_ms)
            try:
                await store.start()
                await call(store)
            except TidemarkError as error:
                world.tell(f"{what} is not asked for: {error}")
            admin.alive = False
            world.open_requests -= 1

        admin = Node(world.engine, "admin")
        world.open_requests += 1
        admin.spawn(ask())

    def _reassign(self, target: str, throttle_bytes_per_s: int) -> None:
        world, replicas = self._world, replicas_of(target)
        partition = world.partitions[0]
        world.asked_lists[partition].add(replicas)
        move = PartitionReassignment(partition, replicas, (), throttle_bytes_per_s, request_id=f"at {world.engine.now}")
        self._ask("the move", lambda store: store.submit_moves([move]))

    def _cancel(self) -> None:
        self._ask("the cancellation", lambda store: store.cancel_moves([self._world.partitions[0]]))

    def _drop_moves(self) -> None:
        """Delete the node manually."""
        if paths.MOVES in self._world.ensemble.nodes:
            self._world.ensemble.commit([lambda tree: tree.delete(paths.MOVES, -1)])

    def _add_partition(self, replicas: str) -> None:
        world, topic = self._world, self._world.topic()
        partition = TopicPartition(topic.topic, len(topic.partitions))
        world.asked_lists.setdefault(partition, set()).add(replicas_of(replicas))
        self._ask("a partition", lambda store: store.request_partitions({partition: replicas_of(replicas)}))

    def _remove_partition(self, force: int) -> None:
        topic = self._world.topic()
        partition = TopicPartition(topic.topic, len(topic.partitions) - 1)
        if partition not in self._world.partitions:  # the partition with the records stays
            self._ask("a removal", lambda store: store.request_partition_removal({partition: bool(force)}))

    def _make_topic(self, replicas: str) -> None:
        """A topic without writes; it may have existed before, under another id."""
        number = f"{self._world.engine.now:032x}"
        configs = {"min.insync.replicas": "1"}
        topic = TopicDescription(OTHER.topic, number, {0: replicas_of(replicas)}, {0: number}, configs=configs)
        if self._world.recipe.typed:
            topic = replace(topic, schemas={1: self._schema(topic)})

        async def create(store: SimStore) -> None:
            await store.create_topic(topic)

        self._ask("a topic", create)

    def _schema(self, topic: TopicDescription) -> SchemaText:
        """A schema that differs from every other version, and that names its topic."""
        self._world.counts["schema"] += 1
        number = self._world.counts["schema"]
        first = {"name": "of", "type": "string", "nullable": False, "doc": topic.topic_id}
        second = {"name": f"n{number}", "type": ("int32", "string", "float64")[number % 3]}
        draft = draft_from_document({"columns": [first, second]})
        newest = topic.schemas.get(topic.schema_version)
        if newest is None:
            return SchemaText(to_text(first_version(draft)))
        return SchemaText(to_text(next_version(from_text(newest.text), draft, Compatibility.BACKWARD)))

    def _evolve_topic(self) -> None:
        """Try once to add a version, some time after the read of the version that it follows."""
        world = self._world

        async def evolve(store: SimStore) -> None:
            topic = (await store.topics([OTHER.topic])).get(OTHER.topic)
            if topic is None:
                return
            for _ in range(world.engine.dice("schemas").choice((0, 1, 5, 12))):
                await store.session.pause()
            made = await store.add_schema(topic, topic.schema_version + 1, self._schema(topic))
            world.counts["schema added" if made else "schema not added"] += 1
            if made:
                world.tell(f"version {topic.schema_version + 1} of {topic.topic_id}")

        self._ask("a version", evolve)

    def _configure_topic(self) -> None:
        resource = ConfigResource(ConfigKind.TOPIC, OTHER.topic)

        async def configure(store: SimStore) -> None:
            topic = (await store.topics([OTHER.topic])).get(OTHER.topic)
            if topic is not None:
                configs = {**topic.configs, "retention.ms": str(self._world.engine.now)}
                await store.write_configs(resource, configs, version=topic.configs_version)

        self._ask("a setting", configure)

    def _move_topic(self, target: str) -> None:
        self._ask("the move", lambda store: store.submit_moves([PartitionReassignment(OTHER, replicas_of(target))]))

    def _delete_topic(self) -> None:
        self._ask("the deletion", lambda store: store.request_topic_deletion(OTHER.topic))

    def _shutdown(self, named: int, down_ms: int) -> None:
        world = self._world
        broker = BrokerId(named) if named >= 0 else max(world.leader(), BrokerId(0))
        process = world.brokers.get(broker)
        if process is None:
            return

        def go() -> None:
            if world.brokers.get(broker) is process:
                world.tell(f"broker {broker} shuts down")
                world.ensemble.close_session(process.store.session.session_id)
                world.stop_broker(broker)
                world.engine.after(down_ms, lambda: world.start_broker(broker))

        process.wants_shutdown = True
        process.may_go = go
        process.after(_SHUTDOWN_WAIT_MS, go)
