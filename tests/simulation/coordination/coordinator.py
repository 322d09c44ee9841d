# SPDX-License-Identifier: Apache-2.0
"""A simulated coordinator of groups or transactions: it writes in order, and loads its state again after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.model import ErrorCode, TidemarkError

from tests.simulation.engine import Node

if TYPE_CHECKING:
    from tests.simulation.coordination.world import CoordinatorWorld

_SWEEP_MS = 50
_STOOD_STILL_MS = 100

Reply = Callable[[Any], None]
Request = Callable[[Any, Any], Any]
"""A request of the coordinator's core: takes the core and the situation, and returns an outcome."""


class CoordinatorNode(Node):
    """Leads the coordinator's log at times; answers a request when all its changes are committed."""

    loads_ms: tuple[int, ...]
    """Possible durations of a load."""

    def __init__(self, world: CoordinatorWorld, name: str) -> None:
        super().__init__(world.engine, name)
        self.next_write_fails = False
        self._world: Any = world
        self._epoch = 0
        self._core: Any = None
        self._writes: list[tuple[list[Any], Callable[[bool], None]]] = []
        self._due_ms = 0

    def _replay(self, changes: Sequence[Any], epoch: int) -> Any:
        """The core with the state of the log."""
        raise NotImplementedError

    def _expire(self, core: Any) -> None:
        """Write the changes that are due by time."""
        raise NotImplementedError

    def _committed(self, core: Any, changes: list[Any]) -> None:
        """The changes of a core, which may be replaced by now, are committed."""

    @property
    def _leads(self) -> bool:
        """Whether this coordinator leads, by its lease; a deposed coordinator does not answer."""
        return self._world.leader is self and self._world.leader_epoch == self._epoch

    def lead(self, epoch: int) -> None:
        """The broker becomes coordinator."""
        self._epoch = epoch
        self._writes, self._core = [], None
        self.next_write_fails = False
        self._due_ms = self.engine.now + _SWEEP_MS
        self._load(epoch)

    def depose(self) -> None:
        """Another broker becomes coordinator: the log has the first few of the writes in flight, and no later write."""
        in_flight = [change for changes, _ in self._writes for change in changes]
        kept = self.engine.dice("cut").randrange(len(in_flight) + 1)
        self._world.wrote(in_flight[:kept])
        self._writes = []

    def forget(self) -> None:
        """The process is killed and starts again."""
        self.depose()
        self._core = None
        self._epoch = -1

    def request(self, request: Request, reply: Reply) -> None:
        """Carry out a request as `Shard.change` does."""
        if not self._leads or self._core is None:
            reply(TidemarkError(ErrorCode.COORDINATOR_LOADING, "not here, or not yet"))
            return
        try:
            outcome = request(self._core, self._world.situation())
        except TidemarkError as error:
            self._world.refused[error.code] += 1
            reply(error)
            return
        self._write(outcome.changes, lambda well: reply(outcome.answer if well and self._leads else _in_doubt()))

    def _write(self, changes: Iterable[Any], then: Callable[[bool], None]) -> None:
        self._writes.append((list(changes), then))
        if len(self._writes) == 1:
            self._write_next()

    def _write_next(self) -> None:
        epoch, first = self._epoch, self._writes[0]
        delay_ms = self.engine.dice("write").choice((1, 2, 5, 30)) if first[0] else 0
        self.engine.after(delay_ms, lambda: self._written(epoch, first))

    def _written(self, epoch: int, write: tuple[list[Any], Callable[[bool], None]]) -> None:
        """The replicas have the records, whether the process is stopped or not."""
        changes, then = write
        if not self._leads or self._epoch != epoch or not self._writes or self._writes[0] is not write:
            self.run(lambda: then(False))
            return
        if self.next_write_fails and changes:
            self._fail()
            return
        core = self._core
        self._world.wrote(changes)
        del self._writes[0]
        self.run(lambda: self._committed(core, changes))
        self.run(lambda: then(True))
        if self._writes:
            self._write_next()

    def _fail(self) -> None:
        """Load the state again; a write in flight may be in the log, or missing."""
        self.next_write_fails = False
        waiting = [then for _, then in self._writes]
        self.depose()
        self._core = None
        for then in waiting:
            self.run(lambda then=then: then(False))  # type: ignore[misc]
        self._load(self._epoch)

    def _load(self, epoch: int) -> None:
        self.after(self.engine.dice("load").choice(self.loads_ms), lambda: self._loaded(epoch))

    def _loaded(self, epoch: int) -> None:
        if not self._leads or self._epoch != epoch or self._core is not None:
            return
        self._core = self._replay(self._world.log, epoch)
        self._sweep(self._core)

    def _sweep(self, core: Any) -> None:
        """Check timeouts as the broker does.

        Time for which the process was stopped evicts no member and aborts no transaction.
        """
        if not self._leads or self._core is not core:
            return
        late_ms = self.engine.now - self._due_ms
        self._due_ms = self.engine.now + _SWEEP_MS
        if late_ms > _STOOD_STILL_MS:
            core.excuse(late_ms)
        self._expire(core)
        self.after(_SWEEP_MS, lambda: self._sweep(core))


def _in_doubt() -> TidemarkError:
    return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown")
