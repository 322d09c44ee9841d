# SPDX-License-Identifier: Apache-2.0
"""Logs that change their directory repeatedly, during all other faults of a cluster (rules M3, R6)."""

from __future__ import annotations

import pytest
from tidemark.core.replication import events as ev

from tests.simulation.lives import live
from tests.simulation.nodes.broker import BrokerNode
from tests.simulation.plan import draw
from tests.simulation.recipes import RECIPES

WORLDS = 5
MOVES_MIN = 50
_MOVE_MS = 60


class Moves:
    """Gives cores, at random times, other directories of logs; the records stay where the world has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        begin = BrokerNode.__init__

        def begin_and_move(node: BrokerNode, *arguments: object) -> None:
            begin(node, *arguments)  # type: ignore[arg-type]
            dice = node.engine.dice(f"moves {node.name}")

            def move() -> None:
                for view in node.core.queries.replicas():
                    if dice.random() < 0.5:
                        self.count += 1
                        node.feed(ev.LogMoved(view.partition, view.identity, dice.randrange(3)))
                node.after(dice.randrange(1, _MOVE_MS), move)

            node.after(dice.randrange(1, _MOVE_MS), move)

        monkeypatch.setattr(BrokerNode, "__init__", begin_and_move)


@pytest.mark.parametrize("name", ["mixed", "group-commit"])
def test_every_invariant_holds_and_replication_never_runs_out_of_credit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = Moves(monkeypatch)
    acknowledged = 0
    for seed in range(WORLDS):
        life = live(draw(seed, RECIPES[name]))
        assert life.failure is None, life.failure
        acknowledged += life.world.clients.acknowledged
    assert moves.count > MOVES_MIN * WORLDS
    assert acknowledged > 10 * WORLDS
