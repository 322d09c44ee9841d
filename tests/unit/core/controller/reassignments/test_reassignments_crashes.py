# SPDX-License-Identifier: Apache-2.0
"""The controller fails at any point of a reassignment."""

from __future__ import annotations

import pytest
from tidemark.core.controller import effects as fx

from tests.unit.core.controller.worlds.reassignment_world import P, a_world, answers, is_whole, node


@pytest.mark.parametrize("target", [(4, 5, 3), (3, 2, 1), (2,), (1, 2, 3, 4), (1, 4)])
def test_the_next_controller_ends_a_reassignment_after_a_failure_at_any_point(target: tuple[int, ...]) -> None:
    for carried_out in (True, False):
        for cut in range(100):
            world = a_world(1, 2, 3)
            world.move(P, *target, throttle_bytes_per_s=1000)
            if not answers(world, cut):
                break
            if world.pending and carried_out:
                world.answer(world.pending.pop(0), lost=not isinstance(world.pending[:1], fx.ReadStates))
            world.fails_over()
            world.settle(catching_up=True)
            assert node(world) == (list(target), [], [], None), f"after {cut} answers"
            is_whole(world)
            assert not world.asked.refusals
        assert cut > 5


@pytest.mark.parametrize("cancelled_after", range(0, 16, 3))
def test_a_controller_failure_during_a_cancel_leaves_old_or_new_replicas(cancelled_after: int) -> None:
    for cut in range(60):
        world = a_world(1, 2, 3)
        world.move(P, 4, 5, 3)
        answers(world, cancelled_after)
        if P not in world.asked.moves:
            return
        world.cancel(P)
        if not answers(world, cut):
            break
        world.fails_over()
        world.settle(catching_up=True)
        assert node(world) in (([1, 2, 3], [], [], None), ([4, 5, 3], [], [], None)), f"after {cut} answers"
        is_whole(world)
