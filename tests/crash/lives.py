# SPDX-License-Identifier: Apache-2.0
"""A life of one log, drawn from a seed, on a recorded disk: the content and the durable offsets after each step."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import BrokerEpoch, LeaderEpoch, Offset, TidemarkError
from tidemark.ports import RetentionLimits
from tidemark.record.envelope import Batch, Codec, split_batches
from tidemark.storage.directories.checkpoint_files import Checkpoints
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.log import durability, replayed_state
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.cleaning import SegmentCleaning
from tidemark.storage.log.partition_log import PartitionLog

from tests.crash.recorder import Recorder
from tests.crash.transactions import compare_states, marker_of, stable_offset
from tests.unit.storage.batches import BROKER, CLUSTER, IDENTITY, PARTITION, at, make_marker
from tests.unit.storage.log.test_cleaner import keyed

CONFIGS = {
    "segment.bytes": "3000",
    "segment.ms": "50",
    "index.interval.bytes": "600",
    "file.delete.delay.ms": "0",
}
STEP_MS = 7
TRANSACTIONAL = (11, 12)
"""Ids of the producers that write in transactions."""


class Version(NamedTuple):
    """The content of the log; `end` exclusive.

    Attributes:
        batches: also deleted batches below `start`, which may come back until a checkpoint states the log start.
        history: also the batches that compaction removed or changed, in their first form, for producer states.
    """

    start: int
    end: int
    batches: tuple[Batch, ...]
    history: tuple[Batch, ...]

    @property
    def names(self) -> frozenset[tuple[int, int, int]]:
        return frozenset(named(batch) for batch in self.batches)

    @property
    def first(self) -> int:
        """Base offset of the first batch, including a deleted batch that may come back."""
        return self.batches[0].envelope.base_offset if self.batches else self.end

    def below(self, end: int) -> tuple[Batch, ...]:
        return tuple(batch for batch in self.batches if batch.envelope.next_offset <= end)

    def producers_at(self, end: int) -> ProducerStates:
        states = ProducerStates()
        for batch in self.history_below(end):
            states.observe(batch.envelope, marker=marker_of(batch))
        return states

    def history_below(self, end: int) -> tuple[Batch, ...]:
        return tuple(batch for batch in self.history if batch.envelope.next_offset <= end)


class Writer(NamedTuple):
    """The next batch of a producer; `is_open`: the producer has an open transaction."""

    producer_epoch: int = 0
    sequence: int = 0
    is_open: bool = False


class Note(NamedTuple):
    """The state of a life between two steps.

    Attributes:
        version: number of the version that the log is in.
        promised_end: everything below is on disk (exclusive), as of version `promised_version` or later.
        high_watermark: the last high watermark that a completed checkpoint wrote.
        last_high_watermark: the highest that a start may find: of the last completed checkpoint, or of one in progress.
        log_start: the last log start that a completed checkpoint wrote.
        lowest_cut: the lowest end of the truncations so far.
        cut_unsynced: the log was truncated, without a sync since.
        may_doubt: after a power loss, a start may mark the replica damaged without a loss.
    """

    doing: str
    version: int
    promised_end: int
    promised_version: int
    high_watermark: int = 0
    last_high_watermark: int = 0
    log_start: int = 0
    lowest_cut: int = 1 << 62
    cut_unsynced: bool = False
    may_doubt: bool = False


class Life:
    """Steps drawn from a seed. Invariant: high watermark <= log end; only a reset truncates below it.

    The first checkpoint after a reset may get a high watermark from before the reset.
    """

    def __init__(self, root: Path, seed: int, recorder: Recorder) -> None:
        self._root = root
        self._seed = seed
        self._rng = random.Random(seed)
        self._recorder = recorder
        self.versions = [Version(0, 0, (), ())]
        self._note = Note("the beginning", 0, 0, 0)
        self._high_watermark = self._high_watermark_of_before = 0
        self._epoch = 0
        self._broker_epoch = 0
        self._now_ms = 1_000_000
        self._writers: dict[int, Writer] = {}
        self._logs: LogManager
        self._log: PartitionLog

    @property
    def _end(self) -> int:
        return int(self._log.log_end_offset)

    def live(self, steps: int | Sequence[Callable[[Life], None]]) -> None:
        """Run this number of steps drawn from the seed, or these steps."""
        self._recorder.mark(self._note)
        self._open()
        for step in self._chosen(steps) if isinstance(steps, int) else steps:
            self._now_ms += STEP_MS
            step(self)
            self._settle()
        self._logs.close()
        self._done("the end")

    def _chosen(self, steps: int) -> Iterator[Callable[[Life], None]]:
        choices: list[tuple[Callable[[Life], None], int]] = [
            (Life.append, 14),
            (Life._flush, 4),
            (Life.checkpoint, 4),
            (Life._roll_by_time, 1),
            (Life._become_leader, 2),
            (Life._truncate, 3),
            (Life._trim, 2),
            (Life._retain, 1),
            (Life.clean, 3),
            (Life.reset, 1),
            (Life._stop_cleanly, 1),
            (Life._be_killed, 2),
            (Life._move, 2 * (directories_of(self._seed) - 1)),
            (Life._checkpoint_without_space, 3 * (self._seed % 5 == 3)),
        ]
        for _ in range(steps):
            yield self._rng.choices([one for one, _ in choices], [weight for _, weight in choices])[0]

    def _settle(self) -> None:
        """The deleter's thread does its work before the next step."""
        self._logs._deleter.submit(lambda: None).result()

    def _open(self) -> None:
        self._high_watermark_of_before = 0
        self._logs = open_directories(self._root, self._seed)
        self._log, recovered = self._logs.open(PARTITION, IDENTITY, CONFIGS)
        assert recovered.damaged is None
        self._logs.confirm_registration(BrokerEpoch(self._broker_epoch), "boot")
        self._broker_epoch += 1

    # -- notes

    def _seen(self) -> Version:
        before = self.versions[-1]
        batches = in_files(self._log)
        start, end = int(self._log.log_start_offset), self._end
        read = batches_of(self._log)
        assert read == tuple(one for one in batches if one.envelope.next_offset > start)
        known = {batch.envelope.base_offset for batch in before.history}
        history = [batch for batch in before.history if batch.envelope.next_offset <= end]
        history += [batch for batch in batches if batch.envelope.base_offset not in known]
        first = batches[0].envelope.base_offset if batches else start
        gone = [batch for batch in before.batches if batch.envelope.base_offset < min(first, start)]
        exactly = directories_of(self._seed) == 1
        compare_states(self._log, self._log.state().producers, history, read, exactly=exactly)
        return Version(start, end, (*gone, *batches), tuple(history))

    def _done(self, doing: str, **changes: Any) -> None:
        """Record the state after a step, or within one."""
        if self._log.broken is None:
            seen = self._seen()
            if seen != self.versions[-1]:
                self.versions.append(seen)
            flushed = max((one.envelope.next_offset for one in seen.below(int(self._log.flushed_offset))), default=0)
            if flushed > self._note.promised_end or (flushed == self._note.promised_end and changes.get("durable")):
                changes = {"promised_end": flushed, "promised_version": len(self.versions) - 1, **changes}
        if "high_watermark" in changes:
            changes["last_high_watermark"] = changes["high_watermark"]
        if changes.pop("durable", False):
            changes["cut_unsynced"] = False
        self._note = self._note._replace(doing=doing, version=len(self.versions) - 1, **changes)
        self._recorder.mark(self._note)

    def _begin(self, doing: str, **changes: Any) -> None:
        """Record the begin of a step that lowers a durable offset."""
        self._note = self._note._replace(doing=doing, **changes)
        self._recorder.mark(self._note)

    def _begin_vouching(self, doing: str, log: PartitionLog) -> int:
        """Record that a step writes the high watermark of this log; returns that high watermark."""
        written = min(self._high_watermark, log.durability.high_watermark_max)
        self._begin(doing, last_high_watermark=max(self._note.last_high_watermark, written))
        return written

    # -- steps

    def _batch(self) -> Batch:
        rng = self._rng
        producer = rng.choice((-1, 1, 2, 3, *TRANSACTIONAL, *TRANSACTIONAL))
        writer = self._writers.get(producer, Writer())
        if producer in TRANSACTIONAL and rng.random() < (0.4 if writer.is_open else 0.05):
            return self._marker(producer, writer)
        records: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(rng.randrange(1, 6)):
            value = None if rng.random() < 0.15 else rng.randbytes(rng.randrange(120))
            records.append((b"key-%d" % rng.randrange(8), value))
        named: dict[str, Any] = {}
        if producer > 0:
            pending = producer in TRANSACTIONAL
            named = {"producer_id": producer, "producer_epoch": writer.producer_epoch, "pending": pending}
            named["base_sequence"] = writer.sequence
            self._writers[producer] = Writer(writer.producer_epoch, writer.sequence + len(records), pending)
        return keyed(records, codec=rng.choice(list(Codec)), **named)

    def _marker(self, producer: int, writer: Writer) -> Batch:
        ended = self._writers[producer] = Writer(writer.producer_epoch + 1)
        commit = self._rng.random() < 0.5
        return make_marker(producer_id=producer, producer_epoch=ended.producer_epoch, commit=commit)

    def append(self) -> None:
        batches = [self._batch() for _ in range(self._rng.choice((1, 1, 1, 2, 5, 9)))]
        self._epoch += self._rng.random() < 0.1
        self._log.append(batches, base_offset=Offset(self._end), leader_epoch=LeaderEpoch(self._epoch), stamp=True)
        self._done("appended")

    def _flush(self) -> None:
        self._log.flush()
        self._advance()
        self._done("flushed", durable=True)

    def _advance(self) -> None:
        ends = [one.envelope.next_offset for one in self.versions[-1].batches]
        self._high_watermark = self._rng.choice(
            [self._high_watermark, *(end for end in ends if end > self._high_watermark)]
        )

    def checkpoint(self) -> None:
        self._advance()
        told, self._high_watermark_of_before = max(self._high_watermark, self._high_watermark_of_before), 0
        written = self._begin_vouching("checkpointing", self._log)
        self._logs.checkpoint({PARTITION: Offset(told)})
        self._settle()
        start = int(self._log.log_start_offset)
        self._done("checkpointed", durable=True, high_watermark=written, log_start=start)

    def _checkpoint_without_space(self) -> None:
        """A mark releases the trimmed files; the repeated checkpoint finds no space, either, or succeeds."""
        self._trim()
        failures = [OSError(errno.ENOSPC, "no space") for _ in range(self._rng.choice((1, 2)))]
        write = Checkpoints.write_temporaries

        def without_space(points: Checkpoints, directory: Path, newer: Any) -> list[tuple[Path, Path]]:
            if failures:
                raise failures.pop()
            return write(points, directory, newer)

        had_trimmed = self._log.segments.has_trimmed
        with pytest.MonkeyPatch.context() as patch, suppress(TidemarkError):
            patch.setattr(Checkpoints, "write_temporaries", without_space)
            self.checkpoint()
            return
        self._settle()
        assert not self._log.segments.has_trimmed, "the mark releases the files"
        self._done("released", **({"log_start": int(self._log.log_start_offset)} if had_trimmed else {}))

    def _roll_by_time(self) -> None:
        self._log.roll_by_time(self._now_ms)
        self._done("rolled by time")

    def _become_leader(self) -> None:
        self._epoch += 1
        epochs = LeaderEpochs(self._log.state().epochs)
        epochs.assign(LeaderEpoch(self._epoch), Offset(self._end))
        self._log.save_epochs(epochs.entries)
        self._done("became leader")

    def _truncate(self) -> None:
        target = self._rng.randint(max(self._high_watermark, int(self._log.log_start_offset)), self._end)
        whole = [one.envelope.next_offset for one in self.versions[-1].below(target)]
        reached = max(whole, default=min(self.versions[-1].start, self.versions[-1].first))
        lowered = {
            "promised_end": min(self._note.promised_end, max(whole, default=0)),
            "log_start": min(self._note.log_start, reached),  # the start of a batch that spans the log start
        }
        self._begin(f"truncating to {target}", **lowered, **self._cut_at(reached))
        self._log.truncate(Offset(target))
        self._high_watermark = min(self._high_watermark, self._end)
        self._epoch += 1
        self._forget_writers()
        self._done("truncated")

    def _cut_at(self, end: int) -> dict[str, Any]:
        return {"lowest_cut": min(self._note.lowest_cut, end), "cut_unsynced": True}

    def _forget_writers(self) -> None:
        states = self.versions[-1].producers_at(self._end)
        self._writers = {
            producer: Writer(
                entry.producer_epoch, entry.batches[-1].last_sequence + 1 if entry.batches else 0, entry.is_open
            )
            for producer, entry in states.entries.items()
        }

    def _trim(self) -> None:
        start = int(self._log.log_start_offset)
        if self._high_watermark >= start:
            self._log.trim(Offset(self._rng.randint(start, self._high_watermark)))
            self._done("trimmed")

    def _retain(self) -> None:
        limits = RetentionLimits(retention_ms=-1, retention_bytes=5000)
        start = self._log.expired_until(limits, high_watermark=Offset(self._high_watermark), now_ms=self._now_ms)
        self._log.trim(start)
        self._done("retained")

    def clean(self) -> None:
        replace = SegmentCleaning.replace

        def noted(log: SegmentCleaning, *arguments: Any, **named: Any) -> bool:
            done = replace(log, *arguments, **named)
            self._done("swapped")
            return done

        settings = CleanerSettings(dedupe_buffer_bytes=1 << 20, io_buffer_bytes=2000, delete_retention_ms=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentCleaning, "replace", noted)
            stable = stable_offset(self.versions[-1].history_below(self._end), self._high_watermark)
            clean_log(self._log, stable, settings, now_us=self._now_ms * 1000_000, pace=lambda _: None)
        self._done("cleaned")

    def reset(self) -> None:
        """Reset past the end, or after an unclean election to below the start."""
        start = int(self._log.log_start_offset)
        if start and self._rng.random() < 0.5:
            start = self._rng.randrange(start)
        else:
            start = self._end + self._rng.randint(1, 5)
        note, cut = self._note, self._cut_at(min(start, self._end))
        lowered = {"high_watermark": min(note.high_watermark, start), "log_start": min(note.log_start, start)}
        self._begin(f"resetting to {start}", promised_end=0, may_doubt=True, **lowered, **cut)
        self._log.reset(Offset(start))
        self._high_watermark, self._high_watermark_of_before = start, self._high_watermark
        self._writers.clear()
        self.versions.append(Version(start, start, (), ()))
        self._done("reset")
        if start and self._rng.random() < 0.5:  # compaction left a batch that spans the leader's log start
            batch = at(self._batch(), start - 1, self._epoch)
            if batch.envelope.next_offset > start:
                epoch = LeaderEpoch(self._epoch)
                self._log.append([batch], base_offset=Offset(start), leader_epoch=epoch, stamp=False)
        self._done("reset and begun", may_doubt=False)
        if self._rng.random() < 0.5:
            self.append()
            self.checkpoint()

    def _stop_cleanly(self) -> None:
        written = self._begin_vouching("stopping", self._log)
        self._logs.close_clean(BrokerEpoch(self._broker_epoch - 1), {PARTITION: Offset(self._high_watermark)})
        self._done(
            "stopped",
            durable=True,
            promised_end=self.versions[-1].end if self.versions[-1].batches else 0,
            promised_version=self._note.version,
            high_watermark=written,
            log_start=self.versions[-1].start,
        )
        self._open()
        self._done("started")

    def _move(self) -> None:
        """Move to the other directory (rule M3) during appends and a truncation; some moves are left incomplete."""
        where = self._logs.directory_of(PARTITION)
        assert where is not None
        future = self._logs.mover.begin(PARTITION, 1 - where, CONFIGS)
        self._done("copying")
        for number in range(self._rng.randint(0, 8)):
            future.copy(1500)
            (self.append, self.checkpoint, self._truncate)[number % 3]()
        if self._rng.random() < 0.25:
            return
        while not future.copy(3000).caught_up:
            pass
        written, self._high_watermark_of_before = self._begin_vouching("moving", future.log), 0
        self._log = self._logs.mover.finish(future, Offset(self._high_watermark))
        start = int(self._log.log_start_offset)
        self._done("moved", durable=True, high_watermark=written, log_start=start)

    def _be_killed(self) -> None:
        self._logs.close()
        self._open()
        # only batches that no checkpoint trimmed may come back
        self._done("started after a kill")


def named(batch: Batch) -> tuple[int, int, int]:
    """The identity of a batch in every version of the log: offsets and epoch."""
    return batch.envelope.base_offset, batch.envelope.next_offset, batch.envelope.leader_epoch


def directories_of(seed: int) -> int:
    """Number of log directories of a life: every second life has two, and moves between them."""
    return 1 + seed % 2


def open_directories(root: Path, seed: int) -> LogManager:
    paths = [root / name for name in "ab"[: directories_of(seed)]]
    return open_logs(paths, cluster_id=CLUSTER, broker_id=BROKER, stray_grace_ms=1 << 40, open_files_max=64)


def batches_of(log: PartitionLog, *, until: int | None = None) -> tuple[Batch, ...]:
    """Every batch below `until`, or below the log end, in order; there may be holes between the batches."""
    found: list[Batch] = []
    offset, end = log.log_start_offset, log.log_end_offset if until is None else Offset(until)
    while offset < end:
        data = log.read(offset, end_offset=end, max_bytes=1 << 20)
        if not data:
            break
        found += split_batches(data)
        offset = Offset(found[-1].envelope.next_offset)
    return tuple(found)


def in_files(log: PartitionLog) -> tuple[Batch, ...]:
    """Every batch of the segments, also those below the log start in the first segment."""
    found: list[Batch] = []
    for segment in log.segments.all if log.has_directory else ():
        found += split_batches(segment.log_path.read_bytes()[: segment.size_bytes])
    return tuple(found)


@contextmanager
def small_intervals() -> Iterator[None]:
    """Lower the bounds, so that a short life has the events of a long one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayed_state, "snapshot_due", lambda batches, states: batches >= 4)
        patch.setattr(durability, "_INDEX_BEHIND_ENTRIES", 2)
        yield
