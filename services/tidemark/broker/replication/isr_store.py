# SPDX-License-Identifier: Apache-2.0
"""The leader's ISR writes and reads in ZooKeeper (rule R9), and its reports to the controller (rule R7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc

from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.core.replication.effects import ReadIsr, ReportIsrChange, ReportLogFailed, ResignLeadership, WriteIsr
from tidemark.core.replication.events import Event, IsrRead, IsrWriteFailed, IsrWritten
from tidemark.model import BrokerId, LeaderEpoch, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import MetadataStore, StateWrite, WriteOutcome
from tidemark.rpc.channel import open_channel
from tidemark.rpc.refs import ref_to_proto
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import ControllerServiceStub

_log = logging.getLogger(__name__)
_REREAD_S: Final = 0.2
_HINT_DELAY_S: Final = 0.02
_HINT_DEADLINE_S: Final = 2.0
_HINT_RETRY_S: Final = 0.5


class IsrStore:
    """Writes and reads the ISRs of many partitions at once; the core allows one request per partition at a time."""

    def __init__(
        self,
        broker_id: BrokerId,
        store: MetadataStore,
        epoch: OwnEpoch,
        submit: Callable[[Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._epoch = epoch
        self._submit = submit
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: list[WriteIsr] = []
        self._reads: list[ReadIsr] = []
        self._hints: set[TopicPartition] = set()
        self._given_up: dict[TopicPartition, LeaderEpoch] = {}
        self._failed: dict[TopicPartition, ReportLogFailed] = {}
        self._hinting = False

    def write(self, effect: WriteIsr) -> None:
        """Carry out `WriteIsr`."""
        self._writes.append(effect)
        if len(self._writes) == 1:
            self._spawn(self._write())

    def read(self, effect: ReadIsr) -> None:
        """Carry out `ReadIsr`."""
        self._reads.append(effect)
        if len(self._reads) == 1:
            self._spawn(self._read())

    def report(self, effect: ReportIsrChange) -> None:
        """Carry out `ReportIsrChange`: hints that come close together are sent together."""
        self._hints.add(effect.partition)
        self._send_soon()

    def give_up(self, effect: ResignLeadership) -> None:
        """Carry out `ResignLeadership`: the notice is sent with the hints."""
        self._given_up[effect.partition] = effect.leader_epoch
        self._send_soon()

    def report_failed(self, effect: ReportLogFailed) -> None:
        """Carry out `ReportLogFailed`: the notice is sent with the hints."""
        self._failed[effect.partition] = effect
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._hinting:
            self._hinting = True
            self._spawn(self._send_hints())

    async def stop(self) -> None:
        """Drop all requests: the session ends, and the next leader reads the nodes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        """Write all ISRs that were requested since this task was made; a returning broker causes thousands."""
        effects, self._writes = self._writes, []
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
        for effect in effects:
            if asked.setdefault(effect.partition, effect.identity) != effect.identity:
                self.read(effect)  # another incarnation: a separate request
        while True:
            try:
                found = await self._store.read_isrs(asked)
            except TidemarkError as error:
                _log.warning("ISR reads failed", extra={"count": len(asked), "why": str(error)})
                await asyncio.sleep(_REREAD_S)
                continue
            for partition in asked:
                self._submit(IsrRead(partition, found.get(partition)))
            return

    async def _send_hints(self) -> None:
        """Send until the active controller has accepted all; a new controller reads the nodes first."""
        await asyncio.sleep(_HINT_DELAY_S)
        while self._hints or self._given_up or self._failed:
            hints, self._hints = self._hints, set()
            given_up, self._given_up = self._given_up, {}
            failed, self._failed = self._failed, {}
            request = pb.ReportIsrChangesRequest(
                broker_id=self._broker_id,
                broker_epoch=self._epoch.value,
                partitions=[ref_to_proto(partition) for partition in hints],
                gives_up=[
                    pb.GivenUpLeadership(partition=ref_to_proto(partition), leader_epoch=leader_epoch)
                    for partition, leader_epoch in given_up.items()
                ],
                failed=[
                    pb.FailedReplica(
                        partition=ref_to_proto(one.partition), leader_epoch=one.leader_epoch, damaged=one.damaged
                    )
                    for one in failed.values()
                ],
            )
            try:
                controller = await self._store.controller()
                if controller is not None:
                    async with open_channel(controller.address) as channel:
                        stub: Any = ControllerServiceStub(channel)
                        await stub.ReportIsrChanges(request, timeout=_HINT_DEADLINE_S)
                    continue
                why = "there is no controller"
            except (TidemarkError, grpc.RpcError) as error:
                why = str(error).split("\n", maxsplit=1)[0]
            _log.debug("ISR hints not delivered", extra={"why": why})
            self._hints |= hints
            self._given_up = given_up | self._given_up
            self._failed = failed | self._failed
            await asyncio.sleep(_HINT_RETRY_S)
        self._hinting = False

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)  # the core would wait for ever for its answer
