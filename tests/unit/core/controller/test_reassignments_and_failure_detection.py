# SPDX-License-Identifier: Apache-2.0
"""A move does not let go of replicas that answer for one that does not (rules M1, C6)."""

from __future__ import annotations

from tidemark.core.controller import events as ev
from tidemark.model import BrokerEpoch, BrokerId

from tests.unit.core.controller.moving_world import P, a_world, is_whole, isr, node


def test_a_target_that_does_not_answer_is_not_left_alone_with_the_partition() -> None:
    world = a_world(1, 2, m=2)
    world.move(P, 3)
    world.settle()
    world.now_ms += 60_000
    world.happens(ev.BrokerSuspected(BrokerId(3), BrokerEpoch(0)))
    world.leader_writes(P, 1, 3)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert node(world)[3] == [1, 2], "it goes on when broker 3 answers, or is gone"
    assert isr(world) == [1, 3], "below m nobody leaves for a suspicion"
    world.happens(ev.BrokerTrusted(BrokerId(3), BrokerEpoch(0)))
    world.now_ms += 60_000
    world.happens(ev.BrokerTrusted(BrokerId(3), BrokerEpoch(0)))
    world.settle(catching_up=True)
    assert isr(world) == [3]
    is_whole(world)
