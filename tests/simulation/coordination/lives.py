# SPDX-License-Identifier: Apache-2.0
"""The end of a world of coordinators, and the report of a failure."""

from __future__ import annotations

from typing import Any, NamedTuple


class BrokenError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name}: {sentence}")
        self.name = name


class Life(NamedTuple):
    """A world at its end; `broken`: the invariant that did not hold, with the evidence."""

    kind: str
    world: Any
    broken: tuple[str, str] | None

    @property
    def story(self) -> str:
        """The faults and the failure, one a line."""
        lines = [f"{at_ms:7} ms  {sentence}" for at_ms, sentence in self.world.story]
        end = "every invariant holds" if self.broken is None else f"{self.world.engine.now:7} ms  {self.broken[1]}"
        return "\n".join([f"world of {self.kind}, seed {self.world.engine.seed}", *lines, end])


def live_out(kind: str, world: Any) -> Life:
    """Run a world to its end, or until an invariant fails."""
    try:
        world.live()
    except BrokenError as broken:
        return Life(kind, world, (broken.name, str(broken)))
    except AssertionError as error:
        return Life(kind, world, ("an assertion of the core", f"an assertion of the core: {error}"))
    return Life(kind, world, None)
