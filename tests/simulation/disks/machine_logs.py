# SPDX-License-Identifier: Apache-2.0
"""A process's work on the logs of its machine: in order, each effect answered once, nothing after a failure or death.

As broker/logs/append_threads.py does it, in simulated time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from tidemark.broker.logs.log_repairs import SuspectLog
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.envelope import Batch
from tidemark.record.transactions import AbortedTransaction

from tests.simulation.disks.cleaner_model import clean
from tests.simulation.disks.machine import StoredLog
from tests.simulation.disks.repairs import MemoryLog
from tests.simulation.records import is_good

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode

_LOOK_MS = 200


class MachineLogs:
    """Open logs of one process."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._machine = node.machine
        self._dice = node.engine.dice(f"disk {node.name}")
        self._open: dict[TopicPartition, tuple[ReplicaIdentity, StoredLog]] = {}
        self._pending: deque[fx.AppendToLog] = deque()
        self.has_failed = False
        """An effect was refused: the replica is offline until the process restarts or another broker leads."""
        self._flushing: set[TopicPartition] = set()
        self._full: set[TopicPartition] = set()
        """Partitions that found no space; appends are dropped until the core has received the error."""
        self._group_commit = node.world.recipe.group_commit
        self.handlers: dict[type, Callable[[Any], None]] = {
            fx.OpenLog: lambda effect: self._work(effect, self._do_open),
            fx.CloseLog: lambda effect: self._work(effect, self._do_close),
            fx.AppendToLog: self._append,
            fx.TruncateLog: lambda effect: self._work(effect, self._do_truncate),
            fx.ResetLog: lambda effect: self._work(effect, self._do_reset),
            fx.AdvanceLogStart: lambda effect: self._work(effect, self._do_trim),
            fx.ResumeLog: lambda effect: self._work(effect, self._do_resume),
            fx.ClearDamage: lambda effect: self._work(effect, self._do_end_damage),
            fx.SaveEpochs: lambda effect: self._work(effect, self._do_save_epochs),
            fx.ReadForFollower: self._read,
        }

    def die(self) -> None:
        """The append in flight may be written in part; the next opening of the log truncates a torn batch."""
        if self._pending and self._dice.random() < 0.5:
            effect = self._pending[0]
            log = self._opened(effect)
            count = self._dice.randint(0, len(effect.batches))
            if log is not None and effect.partition not in self._full and not self._machine.failed:
                self._write(log, effect, effect.batches[:count])

    def _work(self, effect: Any, do: Callable[[Any], None]) -> None:
        engine, machine = self._node.engine, self._machine
        slow_ms = self._dice.choice((50, 150, 400)) if engine.now < machine.slow_until_ms else 0
        machine.busy_until_ms = max(machine.busy_until_ms, engine.now + self._dice.choice((0, 0, 1, 3)) + slow_ms)
        life = self._node

        def run() -> None:
            if life.alive:
                do(effect)

        engine.at(machine.busy_until_ms, run)

    def _answer(self, event: ev.Event) -> None:
        """The threads continue while the event loop is suspended; their completions wait."""
        self._node.run(lambda: self._node.feed(event))

    def _opened(self, effect: Any) -> StoredLog | None:
        found = self._open.get(effect.partition)
        return found[1] if found is not None and found[0] == effect.identity else None

    def _fail(self, effect: Any) -> None:
        self.has_failed = True
        self._node.world.counts["log failed"] += 1
        if self._machine.ails:
            self._go_offline()
        self._open.pop(effect.partition, None)
        error = TidemarkError(ErrorCode.STORAGE_ERROR, "the simulated disk refused it")
        self._answer(ev.LogFailed(effect.partition, effect.identity, error))

    def _go_offline(self) -> None:
        if not self._machine.failed:
            self._machine.failed = True
            self._node.after(_LOOK_MS, self._give_up_directory)

    def can_sync(self) -> bool:
        """A sync that fails takes the directory offline, and is never tried again."""
        if self._machine.failing_syncs:
            self._node.world.counts["checkpoint refused"] += 1
            self._go_offline()
        return not self._machine.failed

    def _can_read(self) -> bool:
        """Whether the disk answers reads; a read that it does not answer takes the directory offline, too."""
        if self._machine.failing_reads:
            self._node.world.counts["read refused"] += 1
            self._go_offline()
        return not self._machine.failing_reads

    def _give_up_directory(self) -> None:
        """Take the directory offline, as broker/logs/offline_directories.py; with the last one the broker ends."""
        if not self._machine.failed:
            return
        for partition, (identity, _) in list(self._open.items()):
            self._fail(fx.OpenLog(partition, identity))
        if self._node.world.recipe.directories == 1:
            self._node.world.leaves(self._node)

    @property
    def _refuses(self) -> bool:
        return self._machine.failing or self._machine.failed

    def _do_open(self, effect: fx.OpenLog) -> None:
        if self._refuses or not self._can_read():
            self._fail(effect)
            return
        log = self._machine.log(effect.partition, effect.identity)
        if log.identity != effect.identity:  # storage sets the log aside (rule F4)
            del self._machine.logs[effect.partition]
            log = self._machine.log(effect.partition, effect.identity)
        self._full.discard(effect.partition)
        self._open[effect.partition] = (effect.identity, log)
        bad = len(log.flipped)
        found = self._recover(effect, log)
        self._node.world.counts["flips found"] += bad - len(log.flipped)
        self._answer(ev.LogOpened(effect.partition, effect.identity, found))
        if self._group_commit and found.flushed_offset < found.log_end_offset:
            self._flush_soon(effect, log)

    def _do_close(self, effect: fx.CloseLog) -> None:
        """Set aside or delete the log; another identity's log takes its place."""
        self._open.pop(effect.partition, None)
        log = self._machine.logs.get(effect.partition)
        if effect.set_aside is not None and log is not None and log.identity == effect.identity and not self._refuses:
            del self._machine.logs[effect.partition]
            self._set_aside(effect)

    def _append(self, effect: fx.AppendToLog) -> None:
        self._pending.append(effect)
        self._work(effect, self._do_append)

    def _do_append(self, effect: fx.AppendToLog) -> None:
        self._pending.popleft()
        log = self._opened(effect)
        if log is None or effect.partition in self._full:
            return
        if self._refuses:
            self._fail(effect)
            return
        if self._machine.full:
            self._full.add(effect.partition)
            producers = self._find_no_space(log, effect)
            error = TidemarkError(ErrorCode.DISK_FULL, "the simulated disk is full")
            self._answer(ev.LogFull(effect.partition, effect.identity, Offset(log.end), producers, error))
            return
        assert effect.base_offset == log.end, f"appends continue the log: {effect.base_offset} after {log.end}"
        self._write(log, effect, effect.batches)
        self._answer(ev.LogAppended(effect.partition, effect.identity, Offset(log.end)))
        if self._group_commit:
            self._flush_soon(effect, log)

    def configure(self, topic_configs: Mapping[str, Mapping[str, str]]) -> None:
        """Configure as broker/logs/append_threads.py: a topic that starts to flush flushes its earlier records too."""
        for configs in topic_configs.values():  # a world has one topic
            before, self._group_commit = self._group_commit, configs.get("flush.policy") == "group-commit"
            if self._group_commit and not before:
                for partition, (identity, log) in self._open.items():
                    self._flush_soon(fx.OpenLog(partition, identity), log)

    def _flush_soon(self, effect: fx.AppendToLog | fx.OpenLog, log: StoredLog) -> None:
        """One fdatasync for all appends meanwhile; it covers those written before it began, but no truncated ones."""
        if effect.partition in self._flushing:
            return
        self._flushing.add(effect.partition)
        node, engine = self._node, self._node.engine

        def begin() -> None:
            self._flushing.discard(effect.partition)
            end, cuts = log.end, log.cuts
            engine.after(self._dice.choice((1, 2, 10)), lambda: done(end, cuts))

        def done(end: int, cuts: int) -> None:
            if not node.alive or self._opened(effect) is not log:
                return
            if self._refuses or self._machine.failing_syncs:
                self._node.world.counts["flush refused"] += 1
                self._fail(effect)
                return
            if log.cuts != cuts:
                self._flush_soon(effect, log)
                return
            self._flush(log, effect, end)
            self._answer(ev.LogFlushed(effect.partition, effect.identity, Offset(log.flushed)))

        engine.after(self._dice.choice((0, 1, 4)), begin)

    def _do_truncate(self, effect: fx.TruncateLog) -> None:
        log = self._opened(effect)
        if log is not None:
            self._answer_cut(effect, log, self._cut(log, effect))

    def _do_trim(self, effect: fx.AdvanceLogStart) -> None:
        log = self._opened(effect)
        if log is not None:
            self._trim(log, effect)

    def _do_resume(self, effect: fx.ResumeLog) -> None:
        self._full.discard(effect.partition)

    def _do_end_damage(self, effect: fx.ClearDamage) -> None:
        log = self._opened(effect)
        if log is not None:
            self._end_damage(log, effect)

    def _do_reset(self, effect: fx.ResetLog) -> None:
        log = self._opened(effect)
        if log is not None:
            self._answer_cut(effect, log, self._start_anew(log, effect))

    def _answer_cut(self, effect: fx.TruncateLog | fx.ResetLog, log: StoredLog, producers: ProducerStates) -> None:
        self._answer(ev.LogTruncated(effect.partition, effect.identity, Offset(log.start), Offset(log.end), producers))

    def _do_save_epochs(self, effect: fx.SaveEpochs) -> None:
        log = self._opened(effect)
        if log is not None:
            self._save_epochs(log, effect)

    def _read(self, effect: fx.ReadForFollower) -> None:
        log = self._machine.logs.get(effect.partition)
        if log is None:
            return  # the log is being deleted
        whose = effect.follower, effect.partition, effect.leader_epoch, effect.offset
        try:
            if not self._can_read():
                raise TidemarkError(ErrorCode.STORAGE_ERROR, "the simulated disk does not answer")
            event = ev.FollowerReadDone(*whose, self._fetch(log, effect))
        except TidemarkError as error:
            event = ev.FollowerReadDone(*whose, (), error)
        self._node.after(self._dice.randrange(0, 4), lambda: self._node.feed(event))

    def read(self, partition: TopicPartition, offset: Offset, end_offset: Offset) -> tuple[Batch, ...]:
        """Read for a consumer, which takes no batch from the first flipped one on."""
        opened = self._open.get(partition)
        if opened is None or not self._can_read():
            return ()
        limits = offset, end_offset, 1 << 20
        batches = self._fetch(opened[1], fx.ReadForFollower(BrokerId(-1), partition, LeaderEpoch(-1), *limits))
        if not opened[1].flipped:
            return batches
        good = tuple(takewhile(is_good, batches))
        if len(good) < len(batches):
            self._node.world.counts["flips refused by consumers"] += 1
            self._node.repairs.repairs.suspect(partition, batches[len(good)].envelope.base_offset)
        return good

    def aborted(self, partition: TopicPartition, start: Offset, end: Offset) -> Sequence[AbortedTransaction]:
        """The aborted transactions that a read_committed fetch of this range names."""
        raise AssertionError("a log in memory has no index")

    def peek(
        self, partition: TopicPartition, identity: ReplicaIdentity, start: int, end: int
    ) -> tuple[StoredLog, tuple[Batch, ...]]:
        """Read for another broker: whole batches in [start, end), good or not."""
        opened = self._open.get(partition)
        if opened is None or opened[0] != identity or not self._can_read():
            raise TidemarkError(ErrorCode.NOT_A_REPLICA, "its log is not open")
        log, last = opened[1], Offset(min(end, opened[1].end))
        if not log.start <= start < last:
            return log, ()
        return log, self._fetch(
            log, fx.ReadForFollower(BrokerId(-1), partition, LeaderEpoch(-1), Offset(start), last, 1 << 20)
        )

    def suspect(self, partition: TopicPartition) -> SuspectLog | None:
        opened = self._open.get(partition)
        return None if opened is None else MemoryLog(self._node, partition, *opened)

    def roll(self, partition: TopicPartition) -> None:
        """A log in memory has no segments."""

    def clean_soon(self, partition: TopicPartition, high_watermark: int) -> None:
        """Clean as broker/logs/log_cleaner.py: by the present high watermark and offsets, a little later."""
        found = self._open.get(partition)
        if found is None:
            return
        log, cuts = found[1], found[1].cuts

        def run() -> None:
            current = self._open.get(partition)
            still = current is not None and current[1] is log and log.cuts == cuts
            if self._node.alive and still and not self._refuses:
                self._clean(partition, log, min(high_watermark, log.end))

        self._node.engine.after(self._dice.choice((0, 3, 30)), run)

    # -- the logs; `filed_logs` puts the shipping storage in their place ----------------------------------------------

    def _recover(self, effect: fx.OpenLog, log: StoredLog) -> ev.RecoveredLog:
        return log.recovered()

    def _write(self, log: StoredLog, effect: fx.AppendToLog, batches: tuple[Batch, ...]) -> None:
        log.append(batches, effect.leader_epoch, stamp=effect.stamp)

    def _find_no_space(self, log: StoredLog, effect: fx.AppendToLog) -> ProducerStates:
        """Refuse the append: the log has no part of it."""
        return log.producers()

    def _trim(self, log: StoredLog, effect: fx.AdvanceLogStart) -> None:
        log.trim(effect.start_offset)

    def expired_until(self, partition: TopicPartition, retention_bytes: int, high_watermark: Offset) -> Offset:
        """The log start at which the log has this number of bytes; in memory, batches are deleted one by one."""
        found = self._open.get(partition)
        start, left_bytes = 0, 0
        for batch in reversed(found[1].batches if found is not None else ()):
            left_bytes += batch.envelope.batch_length
            if left_bytes > retention_bytes and batch.envelope.next_offset <= high_watermark:
                start = batch.envelope.next_offset
                break
        return Offset(start)

    def _clean(self, partition: TopicPartition, log: StoredLog, high_watermark: int) -> None:
        ends = [one.envelope.next_offset for one in log.batches[:-1] if one.envelope.next_offset <= high_watermark]
        if ends:
            now_s = self._node.engine.now // 1000
            horizon_s = now_s + -(-self._node.world.recipe.delete_retention_ms // 1000)
            clean(log, self._dice.choice(ends[-4:]), now_s=now_s, horizon_s=horizon_s)

    def _cut(self, log: StoredLog, effect: fx.TruncateLog) -> ProducerStates:
        log.truncate(effect.end_offset)
        log.mark_cut(log.end)
        left = LeaderEpochs(log.epochs)
        left.truncate_from_end(Offset(log.end))
        log.epochs = left.entries  # before the core asks for that
        if self._node.world.recipe.unclean and log.start == log.end:
            log.values = [None] * log.end  # below the start, possibly of another lineage
        return log.producers()

    def _start_anew(self, log: StoredLog, effect: fx.ResetLog) -> ProducerStates:
        log.mark_cut(min(effect.start_offset, log.end))
        log.reset(effect.start_offset, effect.epoch_below)
        return log.producers()

    def _end_damage(self, log: StoredLog, effect: fx.ClearDamage) -> None:
        log.damage_over = True

    def _save_epochs(self, log: StoredLog, effect: fx.SaveEpochs) -> None:
        log.epochs = LeaderEpochs(log.epochs).continued_by(effect.entries).entries

    def _fetch(self, log: StoredLog, effect: fx.ReadForFollower) -> tuple[Batch, ...]:
        if effect.offset < log.start:
            raise TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{effect.offset} lies below {log.start}")
        return log.read(effect.offset, effect.end_offset, effect.max_bytes)

    def _set_aside(self, effect: fx.CloseLog) -> None:
        """Remove the log; a log in memory leaves no files."""

    def _flush(self, log: StoredLog, effect: fx.AppendToLog | fx.OpenLog, end: int) -> None:
        log.flushed = max(log.flushed, end)

    def confirm_registration(self, broker_epoch: BrokerEpoch, boot_id: str) -> None:
        """Logs in memory state the boot that wrote them."""

    def sync(self) -> None:
        """Everything written so far survives a power loss."""
        for log in self._machine.logs.values():
            log.flushed = log.end

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Sync, then write a checkpoint with the start of every open log, and the given high watermarks (rule R5)."""
        self.sync()
        for partition, (_, log) in self._open.items():
            log.checkpointed(high_watermarks.get(partition))
