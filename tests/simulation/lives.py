# SPDX-License-Identifier: Apache-2.0
"""One world from its plan to its end, and its result."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tests.simulation.invariants.replication import InvariantError
from tests.simulation.plan import Plan
from tests.simulation.world import World

logging.getLogger("tidemark").addHandler(logging.NullHandler())  # else every warning of a world goes to stderr


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a world: the invariant's name, or the assertion or error of the code that ran in it."""

    name: str
    message: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Life:
    """The end of a world: the world, and its failure, if any."""

    world: World
    failure: Failure | None


def live(plan: Plan, *, tracing: bool = False) -> Life:
    """Run the world to its end or its first failure; an error of the code under test is a failure too."""
    world = World(plan)
    if tracing:
        world.lines = []
    try:
        world.live()
    except InvariantError as error:
        return Life(world, Failure(error.name, str(error), world.engine.now))
    except Exception as error:  # noqa: BLE001 - the world looks for any error of the code under test
        kind = type(error).__name__
        return Life(world, Failure(kind, f"{kind}: {error}", world.engine.now))
    finally:
        world.close()
    return Life(world, None)
