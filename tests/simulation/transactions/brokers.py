# SPDX-License-Identifier: Apache-2.0
"""A simulated broker: the coordinator's core in a driver that follows rules X10-X16, and leadership of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.records import decode, encode
from tidemark.core.transactions.requests import Addition, Marker
from tidemark.core.transactions.state import Change, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.markers import EndMarker

from tests.simulation.coordination.coordinator import CoordinatorNode, Reply
from tests.simulation.transactions.offsets_leader import OffsetsLeader
from tests.simulation.transactions.partition_log import Entry, marker_entry

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

_MARKER_RETRY_MS = 100
CALL_MS = 150


class BrokerNode(CoordinatorNode):
    """Coordinates transactions at times, and leads partitions."""

    loads_ms = (5, 20, 200)

    def __init__(self, world: TransactionWorld, name: str) -> None:
        super().__init__(world, name)
        self.groups = OffsetsLeader(world, self)
        self._sent_ms: dict[tuple[str, TransactionPartition], int] = {}

    # -- the coordinator -----------------------------------------------------------------------------------------

    def _replay(self, changes: Sequence[Change], epoch: int) -> TransactionCoordinator:
        self._sent_ms = {}
        read = [decode(*encode(change)) for change in changes]
        return TransactionCoordinator.replay([one for one in read if one is not None], self.engine.now, epoch)

    def _expire(self, core: TransactionCoordinator) -> None:
        """Check timeouts and expiry, and repeat markers without an answer."""
        self._write(core.abort_overdue(self._world.situation()).changes, lambda _: None)
        self._write(core.expire(self._world.situation()).changes, lambda _: None)
        for name in tuple(core.prepared):
            self._send_markers(core, name)

    def _committed(self, core: TransactionCoordinator | None, changes: list[Change]) -> None:
        if core is None or core is not self._core:
            return
        for name in core.committed(changes):
            self._send_markers(core, name)

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
        """Append after the coordinator's answer: the epoch is checked once more, because a marker may have arrived."""
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
