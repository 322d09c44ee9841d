# SPDX-License-Identifier: Apache-2.0
"""One controller process: the shipping loop, terms and core over simulated time, ZooKeeper and links to brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidemark.controller.loop import ControllerLoop
from tidemark.controller.term import ActiveTerm, policy_of
from tidemark.core.config import ControllerConfig
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore
from tidemark.core.messages import PartitionCommand
from tidemark.model import BrokerId, ControllerEpoch, TidemarkError
from tidemark.ports import ControllerTerm

from tests.simulation.engine import Node
from tests.simulation.nodes.controller_links import SimChannels, SimHeartbeats
from tests.simulation.scheduler import SimScheduler

if TYPE_CHECKING:
    from tests.simulation.world import World

_IN_STORY = frozenset(
    {
        "leader_elected",
        "unclean_election",
        "partition_offline",
        "broker_suspected",
        "broker_leaving",
        "move_begun",
        "move_ended",
        "request_refused",
        "partitions_added",
        "partitions_removed",
        "topic_deleted",
    }
)
"""Kinds of `Observed` that a story has."""


class _TracedCore(ControllerCore):
    """Counts and traces the events and effects of the core."""

    def __init__(self, node: ControllerNode, config: ControllerConfig) -> None:
        super().__init__(config, policy_of)
        self._node = node
        self._epoch = config.controller_epoch

    def handle(self, event: ev.ControllerEvent, now_ms: int) -> list[fx.ControllerEffect]:
        node, world = self._node, self._node.world
        try:
            world.stepped(node, event)
            effects = super().handle(event, now_ms)
        except Exception as error:
            world.engine.fail(error)  # the driver may catch errors, as in production
            raise
        for effect in effects:
            world.trace(node, "->", effect)
            if isinstance(effect, fx.Resign):
                world.tell(f"controller {self._epoch} resigns: {effect.why}")
        return effects


class _StoryObserver:
    """`ControllerObserver`: adds to the story; an unexpected error ends the world."""

    def __init__(self, world: World, controller_id: BrokerId) -> None:
        self._world = world
        self._controller_id = controller_id
        self._epoch = ControllerEpoch(-1)

    def term_begins(self, epoch: ControllerEpoch, queue_size: Callable[[], int]) -> None:
        self._epoch = epoch
        self._world.tell(f"controller {self._controller_id} is elected, epoch {epoch}")

    def observed(self, effect: fx.Observed) -> None:
        if effect.kind in _IN_STORY:
            fields = ", ".join(f"{key} {value}" for key, value in effect.fields.items())
            self._world.tell(f"controller {self._epoch}: {effect.kind} ({fields})")

    def failed(self, error: BaseException, event: ev.ControllerEvent | None) -> None:
        self._world.engine.fail(error)
        raise error

    def term_ends(self) -> None:
        return

    def waited(self, seconds: float) -> None:
        return

    def handled(self, event: ev.ControllerEvent, seconds: float) -> None:
        return

    def leaders_confirmed(self, broker: int, partitions: Iterable[PartitionCommand]) -> None:
        return

    def left_isrs(self, by_reason: Mapping[str, int]) -> None:
        return

    def counts(self, counts: Mapping[str, int]) -> None:
        return


class ControllerNode(Node):
    """A controller process, from its start to its death."""

    def __init__(self, world: World, controller_id: BrokerId) -> None:
        super().__init__(world.engine, f"c{controller_id}")
        self.world = world
        self.controller_id = controller_id
        self.dice = world.engine.dice(f"links {self.name}")
        self.store = world.ensemble.sim_store(self, world.session_timeout_ms)
        self._observer = _StoryObserver(world, controller_id)
        self.loop = ControllerLoop(
            controller_id,
            self.name,
            store=self.store,
            clock=world.clock,
            scheduler=SimScheduler(self),
            observer=self._observer,
            new_term=self._new_term,
        )
        self.after(self.engine.dice(self.name).randrange(40, 90), lambda: self.spawn(self._run()))

    def takes_hints(self) -> ActiveTerm | None:
        """The term that takes hints of brokers now, as controller/service.py decides."""
        term = self.loop.term
        return term if term is not None and term.has_begun and self.loop.is_within_lease() else None

    def die(self) -> None:
        self.alive = False

    async def _run(self) -> None:
        while True:
            try:
                await self.store.start()
                break
            except TidemarkError:
                await self.sleep(100)
        await self.loop.run()

    def _new_term(self, won: ControllerTerm, cluster_id: str) -> ActiveTerm:
        config = ControllerConfig(
            self.controller_id,
            won.epoch,
            cluster_id,
            session_timeout_ms=self.world.session_timeout_ms,
            election_wait_ms=self.world.recipe.election_wait_ms,
        )
        return ActiveTerm(
            won,
            _TracedCore(self, config),
            store=self.store,
            channels=SimChannels(self, won.epoch),
            heartbeats=partial(SimHeartbeats, self),
            clock=self.world.clock,
            scheduler=SimScheduler(self),
            observer=self._observer,
            stopwatch_s=lambda: self.engine.now / 1000,
        )
