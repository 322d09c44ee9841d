"""The shipping storage on real files under a simulated broker; what it answers is compared with the logs in memory.

The logs in memory stay the truth that invariants look at; every answer the core gets is the real storage's.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from tidemark.core import effects as fx
from tidemark.core import events as ev
from tidemark.core.producer_state import ProducerStates
from tidemark.model import BrokerId, ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, split_batches
from tidemark.storage.log import PartitionLog
from tidemark.storage.manager import LogManager, open_logs
from tidemark.storage.segment import LOG_SUFFIX

from tests.simulation.disk import Machine, StoredLog
from tests.simulation.invariants import InvariantError
from tests.simulation.machine_logs import MachineLogs
from tests.simulation.records import values_of

if TYPE_CHECKING:
    from tests.simulation.broker_node import BrokerNode


class FiledLogs(MachineLogs):
    """One process on one real directory."""

    def __init__(self, node: BrokerNode) -> None:
        super().__init__(node)
        assert self._machine.path is not None, "a world with files has a directory for each machine"
        self._configs = {"flush.policy": "group-commit"} if node.world.recipe.group_commit else {}
        self._manager: LogManager = open_logs(
            [self._machine.path], cluster_id="cluster", broker_id=BrokerId(node.broker_id)
        )
        self._files: dict[TopicPartition, PartitionLog] = {}

    def die(self) -> None:
        """A kill: what was written stays, nothing is closed properly."""
        super().die()
        self._manager.close()
        self._files.clear()

    def _same(self, what: str, real: object, model: object) -> None:
        if real != model:
            raise InvariantError(
                f"STORAGE: {what} of broker {self._node.broker_id} is {real} on files, {model} in memory"
            )

    def _recover(self, effect: fx.OpenLog, log: StoredLog) -> ev.RecoveredLog:
        model = log.recovered()
        self._files[effect.partition], real = self._manager.open(effect.partition, effect.identity, self._configs)
        self._same("the recovered start", real.log_start_offset, model.log_start_offset)
        self._same("the recovered end", real.log_end_offset, model.log_end_offset)
        self._same("the recovered high watermark", real.high_watermark, model.high_watermark)
        self._same("the recovered epochs", real.epochs, model.epochs)
        self._same("the recovered producers", _producers(real.producers), _producers(model.producers))
        self._same("the recovered damage", real.damaged is None, model.damaged is None)
        return real

    def _write(self, log: StoredLog, effect: fx.AppendToLog, batches: tuple[Batch, ...]) -> None:
        super()._write(log, effect, batches)
        if batches:
            end = self._files[effect.partition].append(
                batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
            )
            self._same("the end after an append", end, log.end)

    def _find_no_space(self, log: StoredLog, effect: fx.AppendToLog) -> ProducerStates:
        """Half of what is written lands on the disk before it is full."""
        file = self._files[effect.partition]
        written = 0

        def write(descriptor: int, buffers: list[bytes | memoryview], total: int, position: int) -> None:
            nonlocal written
            written = os.pwrite(descriptor, b"".join(buffers)[: total // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with mock.patch.object(file, "_write", write):
            try:
                file.append(
                    effect.batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
                )
            except TidemarkError as error:
                self._same("what a full disk is called", error.code, ErrorCode.DISK_FULL)
        assert written, "something landed on the disk"
        real, model = file.truncate(file.log_end_offset), super()._find_no_space(log, effect)
        self._same("the end after an append that found no space", file.log_end_offset, log.end)
        self._same("the producers after an append that found no space", _producers(real), _producers(model))
        return real

    def _trim(self, log: StoredLog, effect: fx.TrimLog) -> None:
        super()._trim(log, effect)
        file = self._files[effect.partition]
        file.trim(effect.start_offset)
        self._same("the start after a trim", file.log_start_offset, log.start)

    def _cut(self, log: StoredLog, effect: fx.TruncateLog) -> ProducerStates:
        model = super()._cut(log, effect)
        real = self._files[effect.partition].truncate(effect.end_offset)
        self._same("the end after a cut", self._files[effect.partition].log_end_offset, log.end)
        self._same("the producers after a cut", _producers(real), _producers(model))
        return real

    def _start_anew(self, log: StoredLog, effect: fx.ResetLog) -> ProducerStates:
        self._files[effect.partition].reset(effect.start_offset)
        return super()._start_anew(log, effect)

    def _save_epochs(self, log: StoredLog, effect: fx.SaveEpochs) -> None:
        super()._save_epochs(log, effect)
        self._files[effect.partition].save_epochs(effect.entries)

    def _fetch(self, log: StoredLog, effect: fx.ReadForFollower) -> tuple[Batch, ...]:
        file = self._files.get(effect.partition)
        if file is None:
            return ()
        data = file.read(effect.offset, end_offset=effect.end_offset, max_bytes=effect.max_bytes)
        assert data is not None, "a read that may wait gives bytes"
        batches = split_batches(data)
        model = log.read(effect.offset, effect.end_offset, 1 << 30)[: len(batches)]
        self._same("what is read", [_named(one) for one in batches], [_named(one) for one in model])
        return batches

    def _set_aside(self, effect: fx.CloseLog) -> None:
        assert effect.set_aside is not None
        self._files.pop(effect.partition, None)
        self._manager.set_aside(effect.partition, effect.set_aside)

    def _flush(self, log: StoredLog, effect: fx.AppendToLog | fx.OpenLog, end: int) -> None:
        super()._flush(log, effect, end)
        self._files[effect.partition].flush()

    def sync(self) -> None:
        super().sync()
        self._manager.sync()

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        super().checkpoint(high_watermarks)
        self._manager.checkpoint(high_watermarks)


def lose_power_on_files(machine: Machine, dice: random.Random) -> None:
    """Cut each log where the log in memory was cut, and leave the next batch torn there."""
    assert machine.path is not None
    for partition, log in machine.logs.items():
        left_bytes = sum(len(batch.data) for batch in log.batches)
        paths = sorted((Path(machine.path) / str(partition)).glob(f"*{LOG_SUFFIX}"))
        assert paths or not left_bytes, "only what has held nothing has no directory"
        torn = False
        for path in paths:
            size_bytes = path.stat().st_size
            lost_bytes = size_bytes - left_bytes
            if torn:
                path.unlink()
            elif lost_bytes > 0:
                with path.open("rb+") as file:
                    file.truncate(left_bytes + dice.randrange(min(lost_bytes, 300)))
                torn = True
            left_bytes -= min(left_bytes, size_bytes)


def _named(batch: Batch) -> tuple[tuple[str | None, ...], int, int]:
    return values_of(batch), batch.envelope.base_offset, batch.envelope.leader_epoch


def _producers(states: ProducerStates) -> str:
    return repr(states)
