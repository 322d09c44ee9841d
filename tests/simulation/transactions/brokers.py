# SPDX-License-Identifier: Apache-2.0
"""A simulated broker: the coordinator's core in a driver that keeps to X10-X16, and leadership of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.records import decode, encode
from tidemark.core.transactions.requests import Addition, Marker, Outcome, Situation
from tidemark.core.transactions.state import Change, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.markers import EndMarker

from tests.simulation.engine import Node
from tests.simulation.transactions.offsets_leader import OffsetsLeader
from tests.simulation.transactions.partition_log import Entry, marker_entry

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

_SWEEP_MS = 50
_STOOD_STILL_MS = 100
_MARKER_RETRY_MS = 100
CALL_MS = 150

Reply = Callable[[Any], None]
Request = Callable[[TransactionCoordinator, Situation], Outcome[Any]]


class BrokerNode(Node):
    """Coordinates transactions now and then, and leads partitions; an answer waits until all changes are committed."""

    def __init__(self, world: TransactionWorld, name: str) -> None:
        super().__init__(world.engine, name)
        self.next_write_fails = False
        self.groups = OffsetsLeader(world, self)
        self._world = world
        self._epoch = 0
        self._core: TransactionCoordinator | None = None
        self._writes: list[tuple[list[Change], Callable[[bool], None]]] = []
        self._due_ms = 0
        self._sent_ms: dict[tuple[str, TransactionPartition], int] = {}

    # -- the coordinator -----------------------------------------------------------------------------------------

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
        """Another broker becomes coordinator: of the writes in flight some are in the log, in order, and no later."""
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

    def _write(self, changes: Iterable[Change], then: Callable[[bool], None]) -> None:
        self._writes.append((list(changes), then))
        if len(self._writes) == 1:
            self._write_next()

    def _write_next(self) -> None:
        epoch, first = self._epoch, self._writes[0]
        delay_ms = self.engine.dice("write").choice((1, 2, 5, 30)) if first[0] else 0
        self.engine.after(delay_ms, lambda: self._written(epoch, first))

    def _written(self, epoch: int, write: tuple[list[Change], Callable[[bool], None]]) -> None:
        """The replicas have the records, whether the process is stopped or not."""
        if not self._leads or self._epoch != epoch or not self._writes or self._writes[0] is not write:
            self.run(lambda: write[1](False))
            return
        if self.next_write_fails and write[0]:
            self._fail()
            return
        core = self._core
        self._world.wrote(write[0])
        del self._writes[0]
        self.run(lambda: self._committed(core, write[0]))
        self.run(lambda: write[1](True))
        if self._writes:
            self._write_next()

    def _committed(self, core: TransactionCoordinator | None, changes: list[Change]) -> None:
        if core is None or core is not self._core:
            return
        for name in core.committed(changes):
            self._send_markers(core, name)

    def _fail(self) -> None:
        """Load the state again: writes in flight may be in the log or not."""
        self.next_write_fails = False
        waiting = [then for _, then in self._writes]
        self.depose()
        self._core = None
        for then in waiting:
            self.run(lambda then=then: then(False))  # type: ignore[misc]
        self._load(self._epoch)

    def _load(self, epoch: int) -> None:
        self.after(self.engine.dice("load").choice((5, 20, 200)), lambda: self._loaded(epoch))

    def _loaded(self, epoch: int) -> None:
        if not self._leads or self._epoch != epoch or self._core is not None:
            return
        read = [decode(*encode(change)) for change in self._world.log]
        self._core = TransactionCoordinator.replay([one for one in read if one is not None], self.engine.now, epoch)
        self._sent_ms = {}
        self._sweep(self._core)

    def _sweep(self, core: TransactionCoordinator) -> None:
        """Check timeouts and expiry, and repeat markers without an answer; stopped time counts for no transaction."""
        if not self._leads or self._core is not core:
            return
        late_ms = self.engine.now - self._due_ms
        self._due_ms = self.engine.now + _SWEEP_MS
        if late_ms > _STOOD_STILL_MS:
            core.excuse(late_ms)
        self._write(core.abort_overdue(self._world.situation()).changes, lambda _: None)
        self._write(core.expire(self._world.situation()).changes, lambda _: None)
        for name in tuple(core.prepared):
            self._send_markers(core, name)
        self.after(_SWEEP_MS, lambda: self._sweep(core))

    def _send_markers(self, core: TransactionCoordinator, name: str) -> None:
        for marker in core.markers(name):
            for key in marker.partitions:
                if self.engine.now - self._sent_ms.get((name, key), -_MARKER_RETRY_MS) >= _MARKER_RETRY_MS:
                    self._sent_ms[name, key] = self.engine.now
                    self._send_marker(marker, key)

    def _send_marker(self, marker: Marker, key: TransactionPartition) -> None:
        log = self._world.log_of(key)
        if log.key != key:  # the topic of the transaction was deleted (rule X15)
            self._marked(marker, key)
            return
        leader = log.leader
        assert leader is not None

        def answered(error: TidemarkError | None) -> None:
            if error is None:
                self._world.send(leader, self, lambda: self._marked(marker, key))

        self._world.send(self, leader, lambda: leader.write_marker(marker, key, answered), twice=True)

    def _marked(self, marker: Marker, key: TransactionPartition) -> None:
        self._sent_ms.pop((marker.transactional_id, key), None)
        name, producer = marker.transactional_id, marker.producer
        self.request(lambda core, now: core.marked(name, producer, [key], now), lambda _: None)

    # -- the leader of a partition -------------------------------------------------------------------------------

    def write_marker(self, marker: Marker, key: TransactionPartition, reply: Reply) -> None:
        """A marker of a coordinator (rules X2, X12)."""
        log = self._world.log_of(key)
        if log.key != key or log.leader is not self:
            reply(TidemarkError(ErrorCode.NOT_LEADER, "not here"))
            return
        entry = marker_entry(marker.producer, marker.commit, marker.coordinator_epoch)
        try:
            is_new = log.state.producers.check_marker(
                entry.envelope, EndMarker(marker.commit, marker.coordinator_epoch)
            )
        except TidemarkError as error:
            reply(error)
            return

        def committed(error: TidemarkError | None) -> None:
            if error is None and log is self._world.offsets:
                self.groups.on_marker(*entry.producer, commit=marker.commit)
            reply(error)

        if is_new:
            log.append(entry, committed)
        else:
            log.when_committed(len(log.entries), committed)

    def produce(self, name: str, key: TransactionPartition, entry: Entry, reply: Reply) -> None:
        """Append a pending batch; the coordinator is asked before the first one of a transaction (rule X11)."""
        log = self._world.partitions[key.partition]
        if log.key != key or log.leader is not self:
            reply(TidemarkError(ErrorCode.NOT_LEADER, "not here"))
            return
        try:
            original = log.state.producers.check(entry.envelope)
        except TidemarkError as error:
            self._world.refused[error.code] += 1
            reply(error)
            return
        if original is not None:
            log.when_committed(original.last_offset + 1, reply)
        elif log.state.producers.has_open(*entry.producer):
            log.append(entry, reply)
        else:
            self.verify(Addition(name, entry.producer, (key,)), lambda: self._append(key, entry, reply), reply)

    def _append(self, key: TransactionPartition, entry: Entry, reply: Reply) -> None:
        """Append after the coordinator's answer: the epoch is checked once more, since a marker may have come."""
        log = self._world.partitions[key.partition]
        if log.key != key or log.leader is not self:
            reply(TidemarkError(ErrorCode.NOT_LEADER, "not here any more"))
            return
        try:
            original = log.state.producers.check(entry.envelope)
        except TidemarkError as error:
            reply(error)
            return
        if original is not None:
            log.when_committed(original.last_offset + 1, reply)
        else:
            log.append(entry, reply)

    def verify(self, addition: Addition, then: Callable[[], None], reply: Reply) -> None:
        done = False

        def answered(answer: Any) -> None:
            nonlocal done
            if done:
                return
            done = True
            if isinstance(answer, TidemarkError):
                reply(answer)
            else:
                then()

        self._world.ask(self, lambda core, now: core.add_partitions(addition, now), answered)
        self.after(CALL_MS, lambda: answered(TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no answer")))


def _in_doubt() -> TidemarkError:
    return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown")
