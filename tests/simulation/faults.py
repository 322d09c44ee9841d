# SPDX-License-Identifier: Apache-2.0
"""Faults of nodes, links and disks, as the plan of a world names them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidemark.model import BrokerId, ElectionKind, TidemarkError
from tidemark.zookeeper import codecs, paths

from tests.simulation.admin_requests import Requests
from tests.simulation.disks.bit_flips import flip
from tests.simulation.disks.disk_errors import DiskTroubles
from tests.simulation.disks.losses import lose_power, rot, tear
from tests.simulation.disks.retention import delete_records
from tests.simulation.engine import Node
from tests.simulation.network.ensemble import ZOOKEEPER
from tests.simulation.plan import CONTROLLERS, Item

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults:
    """Carries out the faults of the plan on nodes, links and disks."""

    def __init__(self, world: World) -> None:
        self._world = world

    def happen(self, item: Item) -> None:
        actions: dict[str, Callable[..., None]] = {
            "crash": self._crash,
            "power": partial(self._crash, disk=lose_power),
            "rot": partial(self._crash, disk=rot),
            "flip": partial(self._crash, disk=flip),
            "crash_all": self._crash_all,
            "tear_all": self._tear_all,
            "pause": self._pause,
            "cut": self._cut,
            "isolate": self._isolate,
            "cut_zookeeper": lambda broker, way, ms: self._cut_from(self._broker(broker), ZOOKEEPER, way, ms),
            "cut_controller": self._cut_controller,
            "break": self._break,
            "elect": self._elect,
            "elect_last_known": self._elect,
            "depose": self._depose,
            "controller_crash": self._controller_crash,
            "controller_pause": self._controller_pause,
            "lost_answers": self._lost_answers,
            "settings": self._settings,
            "hurt_node": self._world.hurt_nodes.hurt,
            "set_back": lambda: self._world.hurt_nodes.hurt("older"),
            "unregister": lambda named: self._world.hurt_nodes.unregister(self._broker(named)),
            "delete_records": lambda percent: delete_records(self._world, percent),
            **DiskTroubles(self._world, self._broker).actions,
            **Requests(self._world).actions,
            **self._world.rows.actions,
        }
        actions[item.kind](*item.args)

    def _broker(self, named: int) -> BrokerId:
        leader = self._world.leader()
        return BrokerId(named) if named >= 0 else (leader if leader >= 0 else BrokerId(0))

    def _later(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._world.engine.after(delay_ms, work)

    def _crash(self, named: int, down_ms: int, disk: Callable[[World, BrokerId], None] | None = None) -> None:
        broker = self._broker(named)
        self._world.stop_broker(broker)
        if disk is not None:
            disk(self._world, broker)
        self._later(down_ms, lambda: self._world.start_broker(broker))

    def _crash_all(self, *down_ms: int) -> None:
        for broker, delay_ms in zip(self._world.machines, (*down_ms, down_ms[0]), strict=False):
            self._crash(broker, delay_ms)

    def _tear_all(self, batches: int, within_a_batch: int, down_ms: int, *others_ms: int) -> None:
        """Kill all processes, and cut the tail of the leader's log; that broker is down for `down_ms`.

        While a log lacks whole batches no second crash follows: only the replicas in sync now can show the loss.
        """
        if self._world.has_rotted and not within_a_batch:
            return
        broker = self._broker(-2)
        for machine in self._world.machines:
            self._world.stop_broker(machine)
        tear(self._world, broker, batches, within_a_batch=bool(within_a_batch))
        others = [one for one in self._world.machines if one != broker]
        for machine, delay_ms in ((broker, down_ms), *zip(others, others_ms, strict=False)):
            self._later(delay_ms, partial(self._world.start_broker, machine))

    def _pause(self, named: int, for_ms: int) -> None:
        process = self._world.brokers.get(self._broker(named))
        if process is not None:
            process.pause()
            self._later(for_ms, process.resume)

    def _cut_link(self, sender: str, receiver: str, for_ms: int) -> None:
        network = self._world.network
        network.cut(sender, receiver)
        self._later(for_ms, lambda: network.heal(sender, receiver))

    def _cut_from(self, broker: BrokerId, other: str, way: str, for_ms: int) -> None:
        if way in ("to", "both"):
            self._cut_link(f"b{broker}", other, for_ms)
        if way in ("from", "both"):
            self._cut_link(other, f"b{broker}", for_ms)

    def _pair(self, named: int, other: int) -> tuple[BrokerId, BrokerId]:
        one, two = self._broker(named), self._broker(other)
        return one, two if one != two else BrokerId((one + 1) % len(self._world.machines))

    def _cut(self, named: int, other: int, for_ms: int) -> None:
        one, two = self._pair(named, other)
        self._cut_link(f"b{one}", f"b{two}", for_ms)

    def _isolate(self, named: int, other: int, for_ms: int) -> None:
        one, two = self._pair(named, other)
        self._cut_link(f"b{one}", f"b{two}", for_ms)
        self._cut_link(f"b{two}", f"b{one}", for_ms)

    def _cut_controller(self, named: int, way: str, for_ms: int) -> None:
        for controller in CONTROLLERS:
            self._cut_from(self._broker(named), f"c{controller}", way, for_ms)

    def _depose(self, for_ms: int) -> None:
        """Cut the leader off from brokers and controllers, not from its clients and not from ZooKeeper."""
        leader = self._broker(-2)
        for other in (
            *(f"b{one}" for one in self._world.machines if one != leader),
            *(f"c{one}" for one in CONTROLLERS),
        ):
            self._cut_from(leader, other, "both", for_ms)

    def _break(self, named: int, other: int) -> None:
        one, two = self._pair(named, other)
        process = self._world.brokers.get(one)
        stream = process.outbound.get(two) if process is not None else None
        if stream is not None:
            stream.break_()

    def _elect(self, kind: str) -> None:
        """Request an election once; a refused or lost request is not repeated."""
        world = self._world

        async def ask() -> None:
            store = world.ensemble.sim_store(admin, world.session_timeout_ms)
            try:
                await store.start()
                await store.request_elections(ElectionKind(kind), [world.partitions[0]], f"at {world.engine.now}")
            except TidemarkError as error:
                world.tell(f"the election is not asked for: {error}")
            admin.alive = False

        admin = Node(world.engine, "admin")
        admin.spawn(ask())

    def _controller_crash(self, controller: int, down_ms: int) -> None:
        process = self._world.controllers.pop(BrokerId(controller), None)
        if process is not None:
            process.die()
        self._later(down_ms, lambda: self._world.start_controller(BrokerId(controller)))

    def _controller_pause(self, controller: int, for_ms: int) -> None:
        process = self._world.controllers.get(BrokerId(controller))
        if process is not None:
            process.pause()
            self._later(for_ms, process.resume)

    def _lost_answers(self, percent: int, for_ms: int) -> None:
        ensemble, usual = self._world.ensemble, self._world.recipe.lost_answers
        ensemble.lost_answers = percent / 100

        def end() -> None:
            if ensemble.lost_answers:
                ensemble.lost_answers = usual

        self._later(for_ms, end)

    def _settings(self, flush_policy: str, min_isr: int) -> None:
        """Change the topic's settings, never to weaker guarantees than the world's invariants require."""
        configs = {
            **self._world.recipe.topic_configs,
            "min.insync.replicas": str(min_isr),
            "flush.policy": flush_policy,
        }
        path, data = paths.topic_config(self._world.partitions[0].topic), codecs.encode_configs(configs)
        self._world.ensemble.commit([lambda tree: tree.set(path, data, -1)])
