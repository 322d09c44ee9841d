# SPDX-License-Identifier: Apache-2.0
"""A leader's ISR writes and reads in ZooKeeper (rule R9), and its notices to the controller (rule R7), over ports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from tidemark.broker.replication.controller_hints import ControllerHints
from tidemark.core.replication.effects import ReadIsr, ReportIsrChange, ReportLogFailed, ResignLeadership, WriteIsr
from tidemark.core.replication.events import Event, IsrRead, IsrWriteFailed, IsrWritten
from tidemark.model import LeaderEpoch, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import Scheduler, StateWrite, WriteOutcome
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)
_REREAD_MS: Final = 200
_WRITES_AT_ONCE: Final = 500
"""ISR changes in one call: two to four multis; to encode more would keep the event loop busy for too long."""
_HINT_DELAY_MS: Final = 20
_HINT_RETRY_MS: Final = 500


class IsrStore:
    """Batches writes and reads. The core has at most one ISR change of each partition in flight.

    Writes gather while a call writes others, so the number of calls does not follow the speed of the machine. Reads at
    the same time share a call.

    Args:
        scheduler: of this writer alone; `stop` cancels all its tasks.
        fail: called with an unexpected error: the core waits for an answer that never comes.
    """

    def __init__(
        self,
        store: MetadataStore,
        hints: ControllerHints,
        scheduler: Scheduler,
        submit: Callable[[Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._hints = hints
        self._scheduler = scheduler
        self._submit = submit
        self._fail = fail
        self._writes: list[WriteIsr] = []
        self._writing = False
        self._reads: list[ReadIsr] = []
        self._changed: dict[TopicPartition, None] = {}
        """Ordered, so that a simulation is the same for each run of its seed."""
        self._resigned: dict[TopicPartition, ResignLeadership] = {}
        self._failed: dict[TopicPartition, ReportLogFailed] = {}
        self._hinting = False

    def write(self, effect: WriteIsr) -> None:
        """Write an ISR to ZooKeeper, as `WriteIsr` states; one call is in flight at a time."""
        self._writes.append(effect)
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())

    def read(self, effect: ReadIsr) -> None:
        """Read an ISR from ZooKeeper, as `ReadIsr` states; reads at the same time share a call."""
        self._reads.append(effect)
        if len(self._reads) == 1:
            self._spawn(self._read())

    def report(self, effect: ReportIsrChange) -> None:
        """Send `ReportIsrChange` to the controller; hints at the same time share a call."""
        self._changed[effect.partition] = None
        self._send_soon()

    def resign(self, effect: ResignLeadership) -> None:
        """Send `ResignLeadership` to the controller with the next hints."""
        self._resigned[effect.partition] = effect
        self._send_soon()

    def report_failed(self, effect: ReportLogFailed) -> None:
        """Send `ReportLogFailed` to the controller with the next hints."""
        self._failed[effect.partition] = effect
        self._send_soon()

    async def stop(self) -> None:
        """Cancel all work: the session ends, and the next leader reads the nodes."""
        await self._scheduler.stop()

    def _send_soon(self) -> None:
        if not self._hinting:
            self._hinting = True
            self._spawn(self._send_hints())

    async def _write_all(self) -> None:
        """Write the changes that gathered together: thousands when a broker restarts."""
        while self._writes:
            effects, self._writes = self._writes[:_WRITES_AT_ONCE], self._writes[_WRITES_AT_ONCE:]
            await self._write(effects)
        self._writing = False

    async def _write(self, effects: list[WriteIsr]) -> None:
        writes = [
            StateWrite(effect.partition, effect.identity, effect.state, effect.expected_version, dict(effect.joining))
            for effect in effects
        ]
        try:
            results = await self._store.write_isrs(writes)
        except TidemarkError as error:
            _log.warning("ISR writes got no answer", extra={"count": len(writes), "why": str(error)})
            for write in writes:
                self._submit(IsrWriteFailed(write.partition, unknown=True))
            return
        for write, result in zip(writes, results, strict=True):
            if result.outcome is WriteOutcome.WRITTEN:
                self._submit(IsrWritten(write.partition, result.version))
            else:
                self._submit(IsrWriteFailed(write.partition, unknown=result.outcome is WriteOutcome.UNKNOWN))

    async def _read(self) -> None:
        effects, self._reads = self._reads, []
        asked: dict[TopicPartition, ReplicaIdentity] = {}
        led: dict[TopicPartition, LeaderEpoch] = {}
        for effect in effects:
            if asked.setdefault(effect.partition, effect.identity) != effect.identity:
                self.read(effect)  # the topic was recreated in the meantime, so the read is separate
            else:
                led[effect.partition] = effect.leader_epoch
        told = False
        while asked:
            unreadable: set[TopicPartition] = set()
            try:
                found = await self._store.read_isrs(asked, unreadable=unreadable)
            except TidemarkError as error:
                _log.warning("ISR reads failed", extra={"count": len(asked), "why": str(error)})
                await self._scheduler.sleep_ms(_REREAD_MS)
                continue
            unreadable.update(one for one, node in found.items() if node.state.leader_epoch < led[one])
            for partition in asked:
                if partition not in unreadable:
                    self._submit(IsrRead(partition, found.get(partition)))
            asked = {partition: identity for partition, identity in asked.items() if partition in unreadable}
            if asked and not told:
                told = self._report_unreadable(asked)
            if asked:
                await self._scheduler.sleep_ms(_REREAD_MS)

    def _report_unreadable(self, partitions: Iterable[TopicPartition]) -> bool:
        """Report nodes that do not parse. The controller rebuilds such nodes where possible (rule Z4)."""
        for partition in partitions:
            _log.error("the state of a partition led here is unreadable", extra={"partition": str(partition)})
            self.report(ReportIsrChange(partition))
        return True

    async def _send_hints(self) -> None:
        """Retry until the active controller accepts the hints; a new controller reads the nodes first."""
        await self._scheduler.sleep_ms(_HINT_DELAY_MS)
        while self._changed or self._resigned or self._failed:
            changed, self._changed = self._changed, {}
            resigned, self._resigned = self._resigned, {}
            failed, self._failed = self._failed, {}
            try:
                await self._hints.send(changed, resigned.values(), failed.values())
            except TidemarkError as error:
                _log.debug("ISR hints not delivered", extra={"why": error.message})
                self._changed = changed | self._changed
                self._resigned = resigned | self._resigned
                self._failed = failed | self._failed
                await self._scheduler.sleep_ms(_HINT_RETRY_MS)
        self._hinting = False

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._scheduler.spawn(work, self._fail)
