# SPDX-License-Identifier: Apache-2.0
"""What a log lets its move into another directory see and do (rule M3): where it was cut, its state, its new place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import NO_EPOCH, EpochEntry, Offset, TidemarkError
from tidemark.ports import TimestampOffset
from tidemark.storage.files import DELETED_SUFFIX
from tidemark.storage.log.reader import NOT_CUT
from tidemark.storage.log.retention import FrontOfLog
from tidemark.storage.recovery.cleaner_point import read_clean_point, write_clean_point


class LogState(NamedTuple):
    """All that two copies of a log must agree on beside their batches."""

    log_start_offset: Offset
    log_end_offset: Offset
    epochs: tuple[EpochEntry, ...]
    producers: ProducerStates


class MovableLog(FrontOfLog):
    """A log that may be copied into another directory, and give way to its copy there.

    Readers that still have the log that gave way are served by its successor.
    """

    _lowest_cut: int = NOT_CUT
    _successor: MovableLog | None = None

    def _count_cut(self, end_offset: int) -> None:
        """A cut begins; under `_lock`."""
        self._cuts += 1
        self._lowest_cut = min(self._lowest_cut, end_offset)
        self._uncovered_cut = min(self._uncovered_cut, end_offset)

    def take_lowest_cut(self) -> int:
        """The lowest end that the log was cut to since this was asked before; past every offset if it was not.

        What a copy holds at or past it may not be what the log holds there.
        """
        with self._lock:
            lowest, self._lowest_cut = self._lowest_cut, NOT_CUT
            return lowest

    @property
    def is_damaged(self) -> bool:
        """Something is missing of it, or no checkpoint knows yet that this is over (rule T5)."""
        return self._damaged_until is not None

    def end_damage(self) -> None:
        """As the port says."""
        if self._damaged_until is not None:
            self._damaged_until = 0

    @property
    def _damage_over(self) -> bool:
        return self._damaged_until is not None and self._end >= self._damaged_until

    @property
    def path(self) -> Path:
        """Of its directory."""
        return self._path

    @property
    def clean_point(self) -> int:
        """Below it (exclusive) every record has been held against all others (rule L1)."""
        return read_clean_point(self._path)

    def state(self) -> LogState:
        """As of one instant."""
        with self._lock:
            start, epochs = Offset(self._start), LeaderEpochs(self._epochs.entries)
            epochs.truncate_from_start(start)
            return LogState(start, Offset(self._end), epochs.entries, ProducerStates(self._producers.entries))

    # -- the copy

    def adopt(self, state: LogState, clean_point: int) -> None:
        """Take over what batches do not tell: epochs without a record, producers whose batches have gone.

        Also a log end past the last batch, which a cut inside a hole leaves. Written by the next `finish`.

        Raises:
            OSError: the disk does not answer.
        """
        with self._files_lock:
            with self._lock:
                self._epochs = LeaderEpochs(state.epochs)
                self._latest_epoch, self._epochs_behind = self._epochs.latest, True
                self._producers = self._expiring(state.producers)
                self._snapshot_at = -1
                if self._end < state.log_end_offset:
                    self._end = self._segments[-1].next_offset = state.log_end_offset
                    self._tail = type(self._tail)(self._end, self._segments[-1].size_bytes)
            if clean_point != self.clean_point:
                write_clean_point(self._path, clean_point)

    def rename(self, path: Path) -> None:
        """Give the directory another name; nobody reads this log yet.

        Raises:
            OSError: it still has the old one.
        """
        with self._files_lock, self._lock:
            self._path.rename(path)
            self._path = path
            for segment in (*self._trimmed, *self._segments):
                segment.stem = path / segment.stem.name
                segment.log_path = path / segment.log_path.name
            for name in os.listdir(path):
                if name.endswith(DELETED_SUFFIX):
                    (path / name).unlink(missing_ok=True)

    def give_way(self, successor: MovableLog) -> None:
        """Close; whoever reads this log is answered by its copy."""
        self._successor = successor
        self.close()

    def close(self) -> None:
        """Release the files."""
        raise AssertionError("closing is the whole log's")

    # -- readers of before

    def read(self, offset: Offset, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        """As the port says."""
        try:
            return super().read(offset, end_offset=end_offset, max_bytes=max_bytes, cached_only=cached_only)
        except TidemarkError:
            if self._successor is None:
                raise
            return self._successor.read(offset, end_offset=end_offset, max_bytes=max_bytes, cached_only=cached_only)

    def offset_for_timestamp(self, timestamp_us: int, *, end_offset: Offset) -> TimestampOffset | None:
        """As the port says."""
        try:
            return super().offset_for_timestamp(timestamp_us, end_offset=end_offset)
        except TidemarkError:
            if self._successor is None:
                raise
            return self._successor.offset_for_timestamp(timestamp_us, end_offset=end_offset)

    def max_timestamp(self, *, end_offset: Offset) -> TimestampOffset | None:
        """As the port says."""
        try:
            return super().max_timestamp(end_offset=end_offset)
        except TidemarkError:
            if self._successor is None:
                raise
            return self._successor.max_timestamp(end_offset=end_offset)


def shared_end(copy: LogState, log: LogState) -> Offset:
    """Up to where a copy, found after a start, agrees with the log it was made of (exclusive).

    A leader epoch and an offset name a record, so where the epochs agree the records do (as in rule E2).
    """
    epochs, end = LeaderEpochs(copy.epochs), copy.log_end_offset
    theirs = LeaderEpochs(log.epochs)
    while (latest := epochs.latest) >= 0 and end > copy.log_start_offset:
        answer = theirs.end_of(latest, log.log_end_offset)
        own = epochs.end_of(answer.leader_epoch, end)
        end = Offset(min(end, answer.start_offset, own.start_offset))
        if own.leader_epoch == answer.leader_epoch:
            break
        epochs.truncate_from_end(end)
    return Offset(min(end, log.log_end_offset))


def disagreement(copy: LogState, log: LogState) -> str | None:
    """Why a copy is none, by what its own batches told of epochs and producers; None where they agree."""
    if (copy.log_start_offset, copy.log_end_offset) != (log.log_start_offset, log.log_end_offset):
        return f"it holds [{copy.log_start_offset}, {copy.log_end_offset})"
    epochs, told = LeaderEpochs(log.epochs), LeaderEpochs(copy.epochs)
    told.truncate_from_start(log.log_start_offset)
    for entry in told.entries:
        at = Offset(max(entry.start_offset, log.log_start_offset))
        said = told.epoch_at(at)
        if said not in (NO_EPOCH, epochs.epoch_at(at)) and at < log.log_end_offset:
            return f"it has leader epoch {said} at {at}"
    known = log.producers.entries
    for producer_id, found in copy.producers.entries.items():
        if producer_id in known and known[producer_id].batches[-1:] != found.batches[-1:]:
            return f"its last batch of producer {producer_id} is another"
    return None
