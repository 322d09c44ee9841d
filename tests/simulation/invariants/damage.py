# SPDX-License-Identifier: Apache-2.0
"""Batches whose bits flipped are repaired (rule T6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.replication import Invariant

if TYPE_CHECKING:
    from tests.simulation.world import World


class Heals(Invariant):
    """At peace each batch of each log equals the batch that was written: an in-sync replica always had a valid copy."""

    name = "HEALS"

    def at_the_end(self, world: World) -> None:
        for broker, machine in world.machines.items():
            for partition, log in machine.logs.items():
                if log.flipped:
                    self.fails(f"{partition}: broker {broker} holds damaged batches at {sorted(log.flipped)}")
