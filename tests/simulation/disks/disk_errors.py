# SPDX-License-Identifier: Apache-2.0
"""Faults of a disk under a running process: slowness, no space, errors of writes, syncs and reads, flipped bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.model import BrokerId

from tests.simulation.disks.bit_flips import flip, flip_uncommitted
from tests.simulation.disks.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.world import World


class DiskTroubles:
    """Carries out the disk faults of the plan; `broker` resolves the broker of an item."""

    def __init__(self, world: World, broker: Callable[[int], BrokerId]) -> None:
        self._world = world
        self._broker = broker

    @property
    def actions(self) -> dict[str, Callable[..., None]]:
        return {
            "slow_disk": self._slow,
            "full_disk": self._full,
            "failed_disk": lambda named, for_ms: self._fail(named, for_ms, "failing"),
            "failed_sync": lambda named, for_ms: self._fail(named, for_ms, "failing_syncs"),
            "failed_read": lambda named, for_ms: self._fail(named, for_ms, "failing_reads"),
            "flip_alive": self._flip,
            "flip_uncommitted": lambda *_: flip_uncommitted(self._world),
        }

    def _machine(self, named: int) -> Machine:
        return self._world.machines[self._broker(named)]

    def _slow(self, named: int, for_ms: int) -> None:
        self._machine(named).slow_until_ms = self._world.engine.now + for_ms

    def _fail(self, named: int, for_ms: int, what: str) -> None:
        """Writes, syncs and reads fail until an operator repairs the disk and restarts the process."""
        world, broker = self._world, self._broker(named)
        machine = world.machines[broker]
        setattr(machine, what, True)

        def repair() -> None:
            setattr(machine, what, False)
            if machine.failed:
                world.stop_broker(broker)
                world.start_broker(broker)

        world.engine.after(for_ms, repair)

    def _full(self, named: int, for_ms: int) -> None:
        machine = self._machine(named)
        machine.full = True

        def make_room() -> None:
            machine.full = False

        self._world.engine.after(for_ms, make_room)

    def _flip(self, named: int, _: int) -> None:
        broker = self._broker(named)
        if broker in self._world.brokers:
            flip(self._world, broker)
