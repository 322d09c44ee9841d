# SPDX-License-Identifier: Apache-2.0
"""Verifies the segments of a replica: CRCs, offsets, epochs, indexes (rules E1, L1, T5). The files are not changed.

Every batch is read once; records only if payloads are decoded. A running broker appends, rolls and deletes files
meanwhile: a finding in its directory counts only if a second pass confirms it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import Offset, TidemarkError
from tidemark.record.envelope import Batch, Envelope
from tidemark.record.payload import read_batch
from tidemark.storage.inspect.findings import Finding, FindingKind, ReplicaReport, Severity
from tidemark.storage.inspect.inspection import Bad, Good, base_offset_of, read_segment
from tidemark.storage.segments.index import (
    INDEX_SUFFIX,
    NO_TIMESTAMP_US,
    TIME_INDEX_SUFFIX,
    EndMark,
    read_end_mark,
    read_index_file,
)
from tidemark.storage.segments.segment import LOG_SUFFIX

_REFETCH: Final = (
    "compare the replicas with `tidemark replicas verify`. Where another one is valid, stop this broker, move the "
    "replica's directory out of log.dirs, and start the broker: it fetches all records again"
)
_REPAIR: Final = (
    "while the brokers run, `tidemark replicas verify --topic {0.topic} --partition {0.partition} --repair` has this "
    "broker replace the batches by those of another replica"
)
_REINDEX: Final = (
    "the scrubber of a running broker rewrites a damaged file. Otherwise stop the broker, delete the segment's .index "
    "and .timeindex, and start the broker: the start rebuilds both files"
)
_PROGRESS_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about a replica to verify its segments against.

    Attributes:
        live: a broker has the directory open, or may have.
        epochs: entries of the epoch file; None without a valid file; the file may lack epochs at or past
            `recovery_point`.
        compacted: holes are not findings.
    """

    live: bool
    epochs: LeaderEpochs | None
    recovery_point: int
    compacted: bool


@dataclass(slots=True)
class _Walk:
    """The state of a walk through the segments.

    Attributes:
        next_offset: expected of the next batch; None before the first segment, and after damage.
        end: next offset of the last valid batch.
        compacted: the cleaner wrote at least one of the batches.
    """

    next_offset: int | None = None
    end: int = 0
    compacted: bool = False
    epoch: int = -1
    batches: int = 0
    records: int = 0


class SegmentVerifier:
    """Walks the segments of a replica, oldest first, and adds its findings to the report."""

    def __init__(self, report: ReplicaReport, facts: LogFacts, *, deep: bool, on_bytes: Callable[[int], None]) -> None:
        self._report = report
        self._facts = facts
        self._deep = deep
        self._on_bytes = on_bytes
        self._walk = _Walk()

    def verify(self, path: Path, *, last: bool) -> None:
        """Verify one segment; the `last` one may have a torn tail."""
        before = replace(self._walk)
        try:
            checked = self._pass(path, replace(before), last=last, on_bytes=self._on_bytes)
            found = checked.run()
            if found and self._facts.live:
                checked = self._pass(path, replace(before), last=last, on_bytes=_nothing)
                again = checked.run()
                found = [one for one in again if one in found]
        except FileNotFoundError:
            self._report.add(
                Finding(
                    Severity.NOTE, FindingKind.GONE, path, "the broker removed the segment while the log was being read"
                )
            )
            self._walk = replace(before, next_offset=None)
            return
        for one in found:
            self._report.add(one)
        self._report.segments += 1
        self._report.size_bytes += checked.size_bytes
        self._report.batches = checked.walk.batches
        self._report.records = checked.walk.records
        self._report.log_end = max(checked.walk.end, base_offset_of(path))
        self._walk = checked.walk

    def _pass(self, path: Path, walk: _Walk, *, last: bool, on_bytes: Callable[[int], None]) -> _SegmentPass:
        repair = _REPAIR.format(self._report.partition)
        return _SegmentPass(path, self._facts, walk, repair, last=last, deep=self._deep, on_bytes=on_bytes)

    @property
    def met_compacted(self) -> bool:
        """Whether the cleaner wrote a batch: then holes are normal in the whole log (rule L1)."""
        return self._walk.compacted


class _SegmentPass:
    """The verification of one segment from its first to its last batch."""

    def __init__(
        self,
        path: Path,
        facts: LogFacts,
        walk: _Walk,
        repair: str,
        *,
        last: bool,
        deep: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.walk = walk
        self.size_bytes = 0
        self._path = path
        self._facts = facts
        self._repair = repair
        self._last = last
        self._deep = deep
        self._on_bytes = on_bytes
        self._found: list[Finding] = []
        self._index = _IndexWalk(path)
        self._wrong_epoch = -2

    def run(self) -> list[Finding]:
        self.size_bytes = self._path.stat().st_size
        base = base_offset_of(self._path)
        expected = self.walk.next_offset
        if expected is not None and expected != base:
            self._error(
                FindingKind.OFFSETS,
                f"the segment begins at {base}, the one before ends at {expected}",
                _REFETCH,
                offset=expected,
            )
        self.walk.next_offset = base
        reported = 0
        for piece in read_segment(self._path, end=self.size_bytes):
            if isinstance(piece, Bad):
                self._bad(piece)
            else:
                self._good(piece)
            if piece.end - reported >= _PROGRESS_BYTES:
                self._on_bytes(piece.end - reported)
                reported = piece.end
        self._on_bytes(self.size_bytes - reported)
        mark = read_end_mark(self._path.with_suffix(""))
        if mark is not None and mark.size_bytes == self.size_bytes:
            self._end_damage(mark.next_offset)
        self._found += self._index.findings(self.size_bytes, mark, self.walk.next_offset, last=self._last)
        return self._found

    def _bad(self, bad: Bad) -> None:
        envelope = bad.envelope
        offset = envelope.base_offset if envelope is not None else self.walk.next_offset
        if offset is not None:
            self._end_damage(offset)
        if bad.is_tail and self._last and (offset or 0) >= self._facts.recovery_point:
            self._torn(bad, offset)
        else:
            self._error(FindingKind.BATCH, bad.reason, self._repair, position=bad.position, offset=offset)
        self.walk.next_offset = None
        self._index.pass_over(bad.position)

    def _end_damage(self, offset: int) -> None:
        """Note that the damaged batches before this offset end there."""
        last = self._found[-1] if self._found else None
        if last is not None and last.kind is FindingKind.BATCH and last.end_offset is None and last.offset != offset:
            self._found[-1] = replace(last, end_offset=offset)

    def _torn(self, bad: Bad, offset: int | None) -> None:
        count = f"the last {bad.end - bad.position} bytes are not a whole batch"
        if self._facts.live:
            sentence, advice, severity = f"{count}: one is being written", "", Severity.NOTE
        else:
            sentence = f"{count}: a torn tail, the normal state after a kill"
            advice, severity = "nothing: the broker truncates it when it starts (rule T5)", Severity.ERROR
        self._found.append(Finding(severity, FindingKind.TORN_TAIL, self._path, sentence, advice, bad.position, offset))

    def _good(self, good: Good) -> None:
        envelope = good.batch.envelope
        self._end_damage(envelope.base_offset)
        self._check_offsets(good.position, envelope)
        self._check_epoch(good.position, envelope)
        self._index.on_batch(good.position, envelope)
        if self._deep:
            self._decode(good.position, good.batch)
        self.walk.next_offset = envelope.next_offset
        self.walk.batches += 1
        self.walk.records += envelope.record_count
        self.walk.end = envelope.next_offset
        self.walk.compacted = self.walk.compacted or envelope.is_compacted

    def _check_offsets(self, position: int, envelope: Envelope) -> None:
        expected, base = self.walk.next_offset, envelope.base_offset
        if expected is None:
            return
        if base < expected:
            sentence = f"the batch begins at offset {base}, the one before ends at {expected}"
            self._error(FindingKind.OFFSETS, sentence, _REFETCH, position=position, offset=base)
        elif base > expected and not (self._facts.compacted or envelope.is_compacted):
            self._error(
                FindingKind.HOLE,
                f"no batch has the offsets {expected} to {base - 1}",
                f"if this topic was ever compacted, add --compacted: holes are normal then; else {_REFETCH}",
                position=position,
                offset=expected,
            )

    def _check_epoch(self, position: int, envelope: Envelope) -> None:
        epoch, base = envelope.leader_epoch, envelope.base_offset
        if epoch < self.walk.epoch:
            sentence = f"the batch has leader epoch {epoch}, one before it has {self.walk.epoch}"
            self._error(FindingKind.EPOCH, sentence, _REFETCH, position=position, offset=base)
            return
        self.walk.epoch = epoch
        epochs = self._facts.epochs
        if epochs is None or epoch == self._wrong_epoch:
            return
        if epochs.entries and base < epochs.entries[0].start_offset:
            return  # below the log start: the file has dropped that epoch
        said = epochs.epoch_at(Offset(base))
        if said == epoch or (epoch > epochs.latest and base >= self._facts.recovery_point):
            return  # the file is written later; a start reads the missing epochs from the batches
        self._wrong_epoch = epoch
        self._error(
            FindingKind.EPOCH,
            f"the batch has leader epoch {epoch}, the epoch file states {said} for its offset",
            "stop the broker and delete leader-epoch-checkpoint: the next start rebuilds the file from the batches",
            position=position,
            offset=base,
        )

    def _decode(self, position: int, batch: Batch) -> None:
        if batch.envelope.is_typed:
            return  # the columns need the schema; the walk has checked their CRCs
        try:
            read_batch(batch)
        except TidemarkError as error:
            offset = batch.envelope.base_offset
            self._error(FindingKind.PAYLOAD, error.message, _REFETCH, position=position, offset=offset)

    def _error(
        self,
        kind: FindingKind,
        sentence: str,
        advice: str,
        *,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        self._found.append(Finding(Severity.ERROR, kind, self._path, sentence, advice, position, offset))


class _IndexWalk:
    """Verifies the entries of both index files against the batches of a walk."""

    def __init__(self, path: Path) -> None:
        self._stem = path.with_suffix("") if path.suffix == LOG_SUFFIX else None
        self._found: list[Finding] = []
        self._newest_us = NO_TIMESTAMP_US
        self._next = 0
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._timestamps: list[int] = []
        self._has_bad = False
        if self._stem is not None:
            self._load(self._stem)

    def _load(self, stem: Path) -> None:
        first, whole_first = read_index_file(stem, INDEX_SUFFIX)
        second, whole_second = read_index_file(stem, TIME_INDEX_SUFFIX)
        for suffix, whole in ((INDEX_SUFFIX, whole_first), (TIME_INDEX_SUFFIX, whole_second)):
            if not whole and os.path.exists(stem.with_name(stem.name + suffix)):
                self._error(f"a block of {suffix} is damaged or truncated", suffix)
        if second[1::2] != first[0 : 2 * (len(second) // 2) : 2] and whole_first and whole_second:
            self._error("the two index files are not of the same entries", TIME_INDEX_SUFFIX)
            return
        self._offsets, self._positions, self._timestamps = list(first[0::2]), list(first[1::2]), list(second[0::2])

    def on_batch(self, position: int, envelope: Envelope) -> None:
        """Verify the entries up to a valid batch."""
        while self._next < len(self._positions) and self._positions[self._next] <= position:
            number = self._next
            self._next += 1
            at, offset = self._positions[number], self._offsets[number]
            if at < position or offset != envelope.base_offset:
                there = f"at byte {at} no batch begins" if at < position else f"there begins {envelope.base_offset}"
                self._error(
                    f"entry {number} states that offset {offset} is at byte {at}; {there}", INDEX_SUFFIX, offset
                )
            elif number < len(self._timestamps) and self._timestamps[number] != self._newest_us and not self._has_bad:
                self._error(
                    f"entry {number} states that the newest timestamp before offset {offset} is "
                    f"{self._timestamps[number]} µs, it is {self._newest_us}",
                    TIME_INDEX_SUFFIX,
                    offset,
                )
        self._newest_us = max(self._newest_us, envelope.max_timestamp_us)

    def pass_over(self, position: int) -> None:
        """Skip damage: the index entries of damaged bytes, and later timestamps, cannot be verified."""
        self._has_bad = True
        while self._next < len(self._positions) and self._positions[self._next] <= position:
            self._next += 1

    def findings(self, size_bytes: int, mark: EndMark | None, next_offset: int | None, *, last: bool) -> list[Finding]:
        """All findings, after the last batch."""
        past = len(self._positions) - self._next
        if past and self._positions[-1] >= size_bytes and not last:
            self._error(f"{past} entries lead past the end of the segment", INDEX_SUFFIX)
        if mark is not None and self._stem is not None and not self._has_bad and next_offset is not None:
            self._judge_mark(mark, EndMark(next_offset, size_bytes, self._newest_us, len(self._positions)), last=last)
        return self._found

    def _judge_mark(self, said: EndMark, true: EndMark, *, last: bool) -> None:
        if said.size_bytes != true.size_bytes:
            if not last:
                self._error(
                    f"the end mark states {said.size_bytes} bytes, the segment has {true.size_bytes}", TIME_INDEX_SUFFIX
                )
        elif said[:3] != true[:3]:
            self._error(
                f"the end mark states next offset {said.next_offset} and newest timestamp {said.max_timestamp_us} µs; "
                f"they are {true.next_offset} and {true.max_timestamp_us}",
                TIME_INDEX_SUFFIX,
            )

    def _error(self, sentence: str, suffix: str, offset: int | None = None) -> None:
        assert self._stem is not None
        path = self._stem.with_name(self._stem.name + suffix)
        self._found.append(Finding(Severity.ERROR, FindingKind.INDEX, path, sentence, _REINDEX, None, offset))


def _nothing(_: int) -> None:
    """Has no effect: a second pass reports no progress."""
