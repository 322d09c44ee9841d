# SPDX-License-Identifier: Apache-2.0
"""The shipping storage on real files under a simulated broker; its answers are compared with the logs in memory.

Invariants read the logs in memory; every answer to the core comes from the real storage.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from tidemark.broker.logs.log_repairs import SuspectLog
from tidemark.broker.logs.suspect_logs import EVERYWHERE, OpenSegment, OpenSuspectLog
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    EpochEntry,
    ErrorCode,
    LeaderEpoch,
    Offset,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import RetentionLimits
from tidemark.record.envelope import Batch, split_batches
from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log import partition_log as storage_log
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import Patch
from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, snapshot_path
from tidemark.storage.segments.segment import Segment

from tests.crash.transactions import transactions_of
from tests.simulation.disks.machine import Machine, StoredLog
from tests.simulation.disks.machine_logs import MachineLogs
from tests.simulation.disks.repairs import MemoryLog
from tests.simulation.invariants.replication import InvariantError
from tests.simulation.records import Values, is_good, values_of

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode

_ANY_AGE_MS = 1 << 62


class FiledLogs(MachineLogs):
    """One process on one real directory."""

    def __init__(self, node: BrokerNode) -> None:
        super().__init__(node)
        assert self._machine.path is not None, "a world with files has a directory for each machine"
        self._configs = node.world.recipe.topic_configs
        self._manager: LogManager = open_logs(
            [self._machine.path], cluster_id="cluster", broker_id=BrokerId(node.broker_id)
        )
        self._files: dict[TopicPartition, PartitionLog] = {}
        self._cleaned: dict[TopicPartition, tuple[tuple[int, int, int] | None, int]] = {}
        """The state of a log when it was cleaned, and the time (seconds) at which its first tombstone may go."""

    def die(self) -> None:
        """A kill: written bytes stay, nothing is closed properly."""
        super().die()
        self._manager.close()
        self._files.clear()

    def _same(self, what: str, real: object, model: object) -> None:
        if real != model:
            raise InvariantError(
                f"STORAGE: {what} of broker {self._node.broker_id} is {real} on files, {model} in memory"
            )

    def _recover(self, effect: fx.OpenLog, log: StoredLog) -> ev.RecoveredLog:
        log.torn = log.torn or (log.torn_at_reboot and self._manager.previous[0].is_of_boot(self._machine.boot_id))
        log.torn_at_reboot = False
        model = log.recovered()
        self._files[effect.partition], real = self._manager.open(effect.partition, effect.identity, self._configs)
        is_empty = model.log_start_offset == model.log_end_offset and real.log_start_offset == real.log_end_offset
        if is_empty and real.log_start_offset < model.log_start_offset:
            # a batch that spans the start found no space; only the name of its segment is left
            log.start = log.durable_start = real.log_start_offset
            del log.values[real.log_start_offset :]
            model = log.recovered()
        self._same("the recovered start", real.log_start_offset, model.log_start_offset)
        self._same("the recovered end", real.log_end_offset, model.log_end_offset)
        self._same("the recovered high watermark", real.high_watermark, model.high_watermark)
        self._same("the recovered epochs", _epochs_of(real), _epochs_of(model))
        self._same("the recovered producers", _producers(real.producers), _producers(model.producers))
        self._same("the recovered damage", real.damaged is None, model.damaged is None)
        self._same("the recovered cut", real.cut, model.cut)
        self._same_aborted(effect.partition, log)
        return real

    def _write(self, log: StoredLog, effect: fx.AppendToLog, batches: tuple[Batch, ...]) -> None:
        super()._write(log, effect, batches)
        if batches:
            end = self._files[effect.partition].append(
                batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
            )
            self._same("the end after an append", end, log.end)

    def expired_until(self, partition: TopicPartition, retention_bytes: int, high_watermark: Offset) -> Offset:
        file = self._files.get(partition)
        if file is None:
            return Offset(0)
        limits = RetentionLimits(retention_ms=-1, retention_bytes=retention_bytes)
        return file.expired_until(limits, high_watermark=high_watermark, now_ms=self._node.engine.now)

    def _clean(self, partition: TopicPartition, log: StoredLog, high_watermark: int) -> None:
        """Run the shipping cleaner; check its result, and copy the result to the log in memory."""
        file, recipe = self._files[partition], self._node.world.recipe
        now_s, looked_at = self._node.engine.now // 1000, (log.end, log.cuts, high_watermark)
        before, horizon_s = self._cleaned.get(partition, (None, 0))
        if before == looked_at and horizon_s > now_s:
            return
        settings = CleanerSettings(
            delete_retention_ms=recipe.delete_retention_ms,
            dedupe_buffer_bytes=self._dice.choice((200, 1 << 20)),
            io_buffer_bytes=self._dice.choice((300, 1 << 20)),
        )
        done = clean_log(
            file, high_watermark, settings, now_us=self._node.engine.now * 1000, pace=lambda size_bytes: None
        )
        if not done.passes:
            return
        self._cleaned[partition] = (looked_at, done.earliest_horizon_s)
        first = file.segments.all[0].base_offset
        batches = [one for one in log.batches if one.envelope.next_offset <= first]
        for segment in file.segments.all:
            batches += split_batches(segment.log_path.read_bytes())
        values: Values = [*log.values[:first], *[None] * (log.end - first)]
        for batch in batches:
            if batch.envelope.next_offset > first:
                values[batch.envelope.base_offset : batch.envelope.next_offset] = values_of(batch)
        for offset, (left, was) in enumerate(zip(values, log.values, strict=True)):
            self._same(f"the cleaned record at {offset}", left, was if left is not None else None)
        log.batches, log.values = batches, values
        log.flushed = max(log.flushed, done.clean_point)
        log.cleanings += 1

    def _find_no_space(self, log: StoredLog, effect: fx.AppendToLog) -> ProducerStates:
        """Half of the bytes are written before the disk is full."""
        file = self._files[effect.partition]
        written = 0

        def write(descriptor: int, buffers: list[bytes | memoryview], total: int, position: int) -> None:
            nonlocal written
            written = os.pwrite(descriptor, b"".join(buffers)[: total // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with mock.patch.object(storage_log, "write_vector", write):
            try:
                file.append(
                    effect.batches, base_offset=effect.base_offset, leader_epoch=effect.leader_epoch, stamp=effect.stamp
                )
            except TidemarkError as error:
                self._same("the error of a full disk", error.code, ErrorCode.DISK_FULL)
        assert written, "something landed on the disk"
        real, model = file.truncate(file.log_end_offset), super()._find_no_space(log, effect)
        self._same("the end after an append that found no space", file.log_end_offset, log.end)
        self._same("the producers after an append that found no space", _producers(real), _producers(model))
        return real

    def _trim(self, log: StoredLog, effect: fx.AdvanceLogStart) -> None:
        super()._trim(log, effect)
        file = self._files[effect.partition]
        file.trim(effect.start_offset)
        self._same("the start after a trim", file.log_start_offset, log.start)

    def _cut(self, log: StoredLog, effect: fx.TruncateLog) -> ProducerStates:
        model = super()._cut(log, effect)
        real = self._files[effect.partition].truncate(effect.end_offset)
        self._same("the end after a cut", self._files[effect.partition].log_end_offset, log.end)
        self._same("the producers after a cut", _producers(real), _producers(model))
        self._same_aborted(effect.partition, log)
        return real

    def _start_anew(self, log: StoredLog, effect: fx.ResetLog) -> ProducerStates:
        self._files[effect.partition].reset(effect.start_offset, effect.epoch_below)
        return super()._start_anew(log, effect)

    def _end_damage(self, log: StoredLog, effect: fx.ClearDamage) -> None:
        super()._end_damage(log, effect)
        self._files[effect.partition].end_damage()

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
        good = [one for one in batches if not log.flipped or is_good(one)]
        kept = [one for one in model if one.envelope.base_offset not in log.flipped]
        self._same("the batches read", [_named(one) for one in good], [_named(one) for one in kept])
        return batches

    def aborted(self, partition: TopicPartition, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        return self._files[partition].aborted_transactions(start, end)

    def _same_aborted(self, partition: TopicPartition, log: StoredLog) -> None:
        if self._node.world.recipe.transactions:
            model = [one for one in transactions_of(log.batches) if not (one.is_open or one.commit)]
            real = self._files[partition].aborted_transactions(Offset(0), Offset(1 << 62))
            self._same("the aborted transactions", [*map(tuple, real)], [tuple(one)[:3] for one in model])

    def suspect(self, partition: TopicPartition) -> SuspectLog | None:
        model, file = super().suspect(partition), self._files.get(partition)
        return FiledSuspect(model, file) if isinstance(model, MemoryLog) and file is not None else None

    def roll(self, partition: TopicPartition) -> None:
        self._files[partition].roll_by_time(_ANY_AGE_MS)

    def _set_aside(self, effect: fx.CloseLog) -> None:
        assert effect.set_aside is not None
        self._files.pop(effect.partition, None)
        self._manager.set_aside(effect.partition, effect.set_aside)

    def _flush(self, log: StoredLog, effect: fx.AppendToLog | fx.OpenLog, end: int) -> None:
        super()._flush(log, effect, end)
        self._files[effect.partition].flush()

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        self._manager.confirm_registration(broker_epoch, boot_id)

    def sync(self) -> None:
        super().sync()
        self._manager.sync()

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        super().checkpoint(high_watermarks)
        self._manager.checkpoint(high_watermarks)


class FiledSuspect(OpenSuspectLog):
    """The log on files for a repair; the log in memory is updated at the end of the repair."""

    def __init__(self, model: MemoryLog, file: PartitionLog) -> None:
        holes = model.holes_until == EVERYWHERE
        super().__init__(file, model.identity, model.high_watermark, model.epochs, may_hold_holes=holes, leads=False)
        self._model = model

    def segments(self, offset: int) -> list[OpenSegment]:
        found = super().segments(offset)
        for one in found:
            one.replace = partial(self._replace_both, one.replace)  # type: ignore[method-assign]
        return found

    def _replace_both(self, replace: Callable[[Sequence[Patch]], bool], patches: Sequence[Patch]) -> bool:
        done, model = replace(patches), self._model.log
        for damaged, batches in patches if done else ():
            if batches is not None:
                healed = {one for one in model.flipped if damaged.start_offset <= one < damaged.end_offset}
                model.flipped -= healed
        return done


def lose_power_on_files(machine: Machine, dice: random.Random, *, same_boot: bool = False) -> None:
    """Truncate each log where the log in memory was truncated, and leave part of the next batch there."""
    assert machine.path is not None
    for partition, log in machine.logs.items():
        directory = Path(machine.path) / str(partition)
        if not directory.exists():
            assert not log.batches, "only a log that never had a record has no directory"
            continue
        bases = segment_offsets(directory)
        kept_bases = [base for base in bases if base <= log.end] or bases[:1]
        for base in bases[len(kept_bases) :]:
            Segment(directory, base).remove()
        for offset in segment_offsets(directory, SNAPSHOT_SUFFIX):
            if offset > log.end:
                snapshot_path(directory, offset).unlink()
        if not kept_bases:
            continue
        last = Segment(directory, kept_bases[-1])
        kept_bytes = sum(len(one.data) for one in log.batches if one.envelope.base_offset >= last.base_offset)
        lost_bytes = last.log_path.stat().st_size - kept_bytes
        last.remove_indexes()
        with last.log_path.open("rb+") as file:
            torn_bytes = dice.randrange(min(lost_bytes, 300)) if lost_bytes > 0 else 0
            file.truncate(kept_bytes + torn_bytes)
        log.torn, log.torn_at_reboot = same_boot and torn_bytes > 0, not same_boot and torn_bytes > 0


def _epochs_of(log: ev.RecoveredLog) -> tuple[LeaderEpoch, LeaderEpoch, tuple[EpochEntry, ...]]:
    """The epochs of the last deleted record and of the first remaining one, and all later entries."""
    epochs = LeaderEpochs(log.epochs)
    epochs.truncate_from_start(log.log_start_offset)
    later = tuple(entry for entry in epochs.entries if entry.start_offset > log.log_start_offset)
    return epochs.let_go, epochs.epoch_at(log.log_start_offset), later


def _named(batch: Batch) -> tuple[tuple[str | None, ...], int, int]:
    return values_of(batch), batch.envelope.base_offset, batch.envelope.leader_epoch


def _producers(states: ProducerStates) -> str:
    return repr(states)
