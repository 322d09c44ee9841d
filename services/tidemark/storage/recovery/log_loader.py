# SPDX-License-Identifier: Apache-2.0
"""Recovery of one log at a start: which bytes of the replica's directory count as valid (rule T5).

Everything below the recovery point was made durable. A segment below this offset whose end mark fits its file needs no
scan, so a start after a clean stop needs none. Above the recovery point every batch is checked as a produced batch
is. Damage there without a valid batch after it is a torn tail, which is truncated. With any other damage the log is
kept up to the damage, and the bytes after it are set aside. A torn tail on a machine that has not rebooted since is
remembered as damage, too (rule T7). An interrupted write looks like the loss of acknowledged records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import NO_EPOCH, EpochEntry, LeaderEpoch, Offset
from tidemark.record.envelope import Envelope
from tidemark.record.markers import EndMarker
from tidemark.storage.files import (
    DELETED_SUFFIX,
    TEMPORARY_SUFFIX,
    Descriptor,
    has_no_room,
    read_exactly,
    write_temporary,
)
from tidemark.storage.recovery.aborted_file import AbortedRow, write_aborted
from tidemark.storage.recovery.aborted_replay import StoredAborted
from tidemark.storage.recovery.cleaner_point import CLEANER_FILE, lower_clean_point, read_clean_point
from tidemark.storage.recovery.damage import (
    NO_END,
    UNKNOWN,
    CutPoint,
    KnownDamage,
    end_of_valid_batches,
    forget_damage,
    read_cut_point,
    read_damage,
    set_aside,
    valid_batches_in_file,
    write_cut_point,
    write_damage,
)
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, read_epochs, write_epochs
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, newest_snapshot, snapshot_path
from tidemark.storage.recovery.segment_swap import recover_swaps
from tidemark.storage.segments.index import SegmentIndex, load_index, read_end_mark
from tidemark.storage.segments.scan import check_at, checked_batches, marker_at
from tidemark.storage.segments.segment import LOG_SUFFIX, OFFSET_DIGITS, Damage, Segment, skip_to, walk

_ALL: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Expected:
    """Offsets of a replica in the checkpoints; UNKNOWN for an offset whose checkpoint file was lost. The recovery
    point and the high watermark are exclusive."""

    recovery_point: int = 0
    high_watermark: int = 0
    log_start: int | None = None
    epoch_below: int = NO_EPOCH
    """Leader epoch of the last record below `log_start`."""

    @property
    def is_nothing(self) -> bool:
        """Whether no checkpoint states that the replica ever held a record."""
        return self.recovery_point <= 0 and self.high_watermark <= 0 and self.log_start in (None, UNKNOWN, 0)

    def after(self, cut: CutPoint | None) -> Expected:
        """The expected offsets after a truncation that is newer than the checkpoints."""
        if cut is None:
            return self
        end, start = cut.end_offset, cut.log_start_with(self.log_start)
        return Expected(min(self.recovery_point, end), min(self.high_watermark, end), start, cut.epoch_below)


@dataclass(slots=True)
class Recovered:
    """A recovered replica; `segments` is never empty; the last is the active segment."""

    segments: list[Segment]
    log_start: int
    recovery_point: int
    high_watermark: int
    epochs: LeaderEpochs
    producers: ProducerStates
    damage: KnownDamage | None = None
    cut: CutPoint | None = None
    """A truncation that is newer than the checkpoints."""
    snapshot_at: int = -1
    """Offset of the producer snapshot that recovery used; -1: none."""
    unsnapshotted_batches: int = 0
    """Number of batches past that snapshot."""
    aborted: Sequence[AbortedRow] = ()
    """The aborted transactions, by their markers (rule X5)."""
    aborted_unwritten_from: int = _ALL
    """Files of the segments that end above this offset (exclusive) lack some of these rows."""
    unsealed: Sequence[Segment] = ()
    """Segments without an end mark before other segments: a replacement of segments was interrupted."""

    @property
    def log_end(self) -> int:
        """Next offset of the log, exclusive."""
        return max(self.segments[-1].next_offset, self.log_start)


class _Reading(NamedTuple):
    """Parameters of a recovery: `index.interval.bytes`, the callback for scanned bytes, and whether cuts are noted."""

    interval_bytes: int
    scanned: Callable[[int], None]
    notes_cut: bool


class Restart(NamedTuple):
    """A prepared start of a log without records.

    Attributes:
        snapshots: snapshots of producer states to delete.
        temporary: empty file, to be the first segment.
    """

    start_offset: int
    snapshots: Sequence[Path]
    temporary: Path


def segment_offsets(directory: Path, suffix: str = LOG_SUFFIX) -> list[int]:
    """Base offsets of the files with this suffix, in ascending order."""
    length = OFFSET_DIGITS + len(suffix)
    names = (name for name in os.listdir(directory) if len(name) == length and name.endswith(suffix))
    return sorted(int(name[:OFFSET_DIGITS]) for name in names if name.isascii() and name[:OFFSET_DIGITS].isdigit())


def recover(
    directory: Path,
    expected: Expected,
    *,
    interval_bytes: int,
    scanned: Callable[[int], None] = lambda size_bytes: None,
    notes_cut: bool = False,
) -> Recovered:
    """Read and check a log, truncate a torn tail, set damage aside.

    `scanned` is called with the number of checked bytes past the recovery point. `notes_cut`: the page cache has
    survived, so a torn tail that is cut off counts as damage until the log is refetched (rule T7).

    Raises:
        OSError: the disk does not answer.
    """
    reading = _Reading(interval_bytes, scanned, notes_cut)
    cut = read_cut_point(directory)
    expected = expected.after(cut)
    names = os.listdir(directory)
    for name in names:
        if name.endswith((TEMPORARY_SUFFIX, DELETED_SUFFIX)):
            (directory / name).unlink()
    recover_swaps(directory, names)
    if cut is not None and cut.resetting:
        recovered = _finished_reset(directory, expected, cut)
    else:
        try:
            recovered = _recover(directory, expected, reading, trusting=True)
        except Damage:
            # A damaged header below the recovery point, found during the replay: check every batch.
            recovered = _recover(directory, expected, reading, trusting=False)
    recovered.cut = cut
    if CLEANER_FILE in names:
        lower_clean_point(directory, recovered.log_end)
    return recovered


def _finished_reset(directory: Path, expected: Expected, cut: CutPoint) -> Recovered:
    """Finish a reset that a kill interrupted: delete every segment that is left."""
    start = cut.log_start
    segments = [Segment(directory, base) for base in segment_offsets(directory)]
    segment = restart_empty(directory, segments, prepare_restart(directory, start))
    epochs = LeaderEpochs()
    epochs.begin_at(Offset(start), LeaderEpoch(cut.epoch_below))
    _if_there_is_space(partial(write_epochs, directory, epochs.entries))  # otherwise cut-point.json has the epoch
    write_cut_point(directory, cut._replace(resetting=False))
    damage = _remembered(directory, None, read_damage(directory), start)
    if damage is None:
        forget_damage(directory)
    return Recovered([segment], start, start, max(expected.high_watermark, 0), epochs, ProducerStates(), damage)


def prepare_restart(directory: Path, start_offset: int) -> Restart:
    """The preparation of `restart_empty`, which changes no file of the log. Raises OSError."""
    snapshots = [snapshot_path(directory, offset) for offset in segment_offsets(directory, SNAPSHOT_SUFFIX)]
    return Restart(start_offset, snapshots, write_temporary(Segment(directory, start_offset).log_path, b""))


def restart_empty(directory: Path, segments: Sequence[Segment], restart: Restart) -> Segment:
    """Delete all segments, epochs and snapshots, without a descriptor; returns an empty segment. Raises OSError.

    Epochs and snapshots are deleted first, so that the new log never begins with epochs or snapshots of the old log.
    """
    for path in restart.snapshots:
        path.unlink(missing_ok=True)
    (directory / EPOCH_FILE).unlink(missing_ok=True)
    for segment in reversed(segments):
        segment.remove()
    segment = Segment(directory, restart.start_offset)
    restart.temporary.replace(segment.log_path)
    return _without_records(segment)


def nothing_yet(directory: Path, epochs: Sequence[EpochEntry]) -> Recovered:
    """The result of `recover` in a new directory, for a replica that has no directory."""
    segment = Segment(directory, 0)
    segment.index = SegmentIndex()
    return Recovered([segment], 0, 0, 0, LeaderEpochs(epochs), ProducerStates())


def _recover(directory: Path, expected: Expected, reading: _Reading, *, trusting: bool) -> Recovered:
    unsealed: list[Segment] = []
    segments, damage = _recover_segments(directory, expected, reading, unsealed, trusting=trusting)
    log_start = expected.log_start if expected.log_start not in (None, UNKNOWN) else None
    if not segments:
        base = log_start or 0
        segments = [make_segment(directory, base)]
        damage = damage or KnownDamage("no segment of the log was found", max(expected.recovery_point, base) + 1)
    log_start = max(segments[0].base_offset, log_start or 0)
    end = segments[-1].next_offset
    if end < log_start and not any(segment.size_bytes for segment in segments):
        # killed before the first write to the new segment, of the batch that spans the log start
        empty, segments = segments, [make_segment(directory, log_start)]
        for segment in empty:
            segment.remove()
        end = log_start
    if end < log_start:
        log_start = segments[0].base_offset
    lost_until = max(expected.recovery_point, expected.high_watermark)
    if (damage is None or damage.cut) and end < lost_until:
        damage = KnownDamage(
            f"the log ends at {end}, below its recovery point {expected.recovery_point} "
            f"or high watermark {expected.high_watermark}",
            lost_until,
        )
    if (damage is None or damage.cut) and expected.log_start == UNKNOWN and segments[0].base_offset > 0:
        damage = KnownDamage(f"no checkpoint proves that the log starts at {segments[0].base_offset}", end + 1)
    earlier = read_damage(directory)
    damage = _remembered(directory, damage, earlier, end)
    recovered = Recovered(
        segments,
        log_start,
        min(max(expected.recovery_point, log_start), end),
        max(expected.high_watermark, 0),
        LeaderEpochs(),
        ProducerStates(),
        damage,
        unsealed=unsealed,
    )
    doubted = any(one is not None and not one.cut for one in (earlier, damage))
    aborted = _fold(directory, recovered, expected, reading.interval_bytes, doubted=doubted)
    if earlier is not None and damage is None:
        _if_there_is_space(partial(_forget_damage, directory, recovered, aborted))  # otherwise at the next start
    return recovered


def _forget_damage(directory: Path, recovered: Recovered, aborted: StoredAborted) -> None:
    """The log is refetched, and the checkpoint may be older: complete the files of aborted transactions first."""
    for segment in recovered.segments:
        write_aborted(segment.stem, aborted.of(segment), durable=True)
    forget_damage(directory)


def make_segment(directory: Path, base_offset: int) -> Segment:
    """An empty segment, ready for appends."""
    segment = Segment(directory, base_offset)
    Descriptor(segment.log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    return _without_records(segment)


def _without_records(segment: Segment) -> Segment:
    segment.remove_indexes()
    segment.remove_aborted()
    segment.index = SegmentIndex()
    return segment


def _recover_segments(
    directory: Path, expected: Expected, reading: _Reading, unsealed: list[Segment], *, trusting: bool
) -> tuple[list[Segment], KnownDamage | None]:
    start = expected.log_start
    bases = _without_trimmed(directory, segment_offsets(directory), start)
    segments: list[Segment] = []
    if bases and start is not None and start != UNKNOWN and bases[0] > start:
        damage = _Found(f"the log starts at {bases[0]}, its records from {start} on are missing", start, None, 0)
        return segments, _judge(directory, damage, bases, segments, expected)
    for number, base in enumerate(bases):
        segment = Segment(directory, base)
        if segments and base != segments[-1].next_offset:
            before = segments[-1]
            reason = f"the segment at {before.base_offset} ends at {before.next_offset}, the next starts at {base}"
            damage = _Found(reason, before.next_offset, None, 0)
            return segments, _judge(directory, damage, bases[number:], segments, expected)
        descriptor = Descriptor(segment.log_path, os.O_RDWR)
        size = os.fstat(descriptor.number).st_size
        mark = read_end_mark(segment.stem)
        last = number == len(bases) - 1
        if (
            trusting
            and mark is not None
            and mark.size_bytes == size
            and base <= mark.next_offset <= expected.recovery_point
            and (last or mark.next_offset == bases[number + 1])
        ):
            segment.accept(mark)
            segments.append(segment)
            continue
        try:
            point = expected.recovery_point if trusting else 0
            index = load_index(segment.stem) if trusting else SegmentIndex()
            if not trusting or (mark is not None and mark.next_offset > point):
                segment.remove_indexes()
                index.written = 0
            _scan(segment, index, descriptor.number, size, point, reading)
        except Damage as found:
            damage = _Found(found.reason, segment.next_offset, segment, found.position)
            later = bases[number + 1 :]
            return segments, _judge(directory, damage, later, segments, expected, notes_cut=reading.notes_cut)
        if not last and (mark is None or not trusting):
            unsealed.append(segment)  # until the file of its aborted transactions is complete
        elif not last:
            _if_there_is_space(segment.seal)  # otherwise the next read rebuilds its index
            segment.forget_index()
        segments.append(segment)
    return segments, None


@dataclass(frozen=True, slots=True)
class _Found:
    """Damage: reason, the offset expected there, and its segment and position, None and 0 for a missing segment."""

    reason: str
    offset: int
    segment: Segment | None
    position: int


def _without_trimmed(directory: Path, bases: list[int], log_start: int | None) -> list[int]:
    """Delete segments completely below the log start: after a crash, segments that were being deleted may exist
    again.
    """
    if log_start is not None:
        while len(bases) > 1 and bases[1] <= log_start:
            Segment(directory, bases.pop(0)).remove()
    return bases


def _judge(
    directory: Path,
    found: _Found,
    later: Sequence[int],
    segments: list[Segment],
    expected: Expected,
    *,
    notes_cut: bool = False,
) -> KnownDamage | None:
    """Truncate a torn tail, set damage aside; returns the damage, and appends the kept part to `segments`."""
    ends = [valid_batches_in_file(Segment(directory, base).log_path, at_least=found.offset) for base in later]
    segment = found.segment
    if segment is not None:
        descriptor = Descriptor(segment.log_path, os.O_RDWR)
        size = os.fstat(descriptor.number).st_size
        ends.append(end_of_valid_batches(descriptor.number, start=found.position, end=size, at_least=found.offset))
    valid_until = max((end for end in ends if end is not None), default=None)
    needed_from = max(found.offset, expected.log_start or 0)
    torn = valid_until is None and UNKNOWN != expected.recovery_point <= needed_from
    damage = None
    if not torn:
        until = max(valid_until or 0, expected.recovery_point, expected.high_watermark, found.offset + 1)
        damage = KnownDamage(f"{found.reason} (offset {found.offset})", until)
    elif notes_cut:
        damage = KnownDamage(f"a torn tail was cut off: {found.reason} (offset {found.offset})", NO_END, cut=True)
    if damage is not None:
        write_damage(directory, damage.joined(read_damage(directory)))
    for base in reversed(later):
        if torn:
            Segment(directory, base).remove()
        else:
            set_aside(Segment(directory, base), keep_bytes=0)
    if segment is not None:
        if torn:
            os.ftruncate(descriptor.number, found.position)
        else:
            set_aside(segment, keep_bytes=found.position)
        if found.position or torn:
            segments.append(segment)
    return damage


def _scan(
    segment: Segment, index: SegmentIndex, descriptor: int, size: int, recovery_point: int, reading: _Reading
) -> None:
    """Read the segment from the last index entry at or below the recovery point; check in full from there on.

    Raises:
        Damage: no valid next batch starts at `segment.size_bytes`.
    """
    index.cut(size)
    number = index.floor(recovery_point)
    if number + 1 < len(index):
        index.cut(index.positions[number + 1])
    if number >= 0 and not _starts_at(descriptor, index.positions[number], size, index.offsets[number]):
        index, number = SegmentIndex(), -1
    segment.index = index
    if number >= 0:
        segment.size_bytes = index.positions[number]
        segment.next_offset = index.offsets[number]
        segment.max_timestamp_us = index.timestamps[number]
    before, epoch = -1, -1
    for position, envelope, checked in _batches_from(
        descriptor, segment.size_bytes, size, recovery_point, reading.scanned
    ):
        if envelope.base_offset < segment.next_offset or envelope.leader_epoch < epoch:
            raise Damage(
                position, f"the batch at {envelope.base_offset} has a lower offset or epoch than the batch before"
            )
        if envelope.base_offset > segment.next_offset and before >= 0:
            _check_whole(descriptor, before, position)
        if not checked and envelope.next_offset > recovery_point:
            # Recovery points are ends of batches, unless last_offset_delta is damaged.
            length = envelope.batch_length
            check_at(read_exactly(descriptor, length, position), 0, position=position, end=position + length)
        segment.note(
            base_offset=envelope.base_offset,
            next_offset=envelope.next_offset,
            length=envelope.batch_length,
            timestamp_us=envelope.max_timestamp_us,
            interval_bytes=reading.interval_bytes,
        )
        before, epoch = -1 if checked else position, envelope.leader_epoch


def _batches_from(
    descriptor: int, start: int, end: int, recovery_point: int, scanned: Callable[[int], None]
) -> Iterator[tuple[int, Envelope, bool]]:
    """(position, envelope, fully checked) of each batch; below the recovery point only headers are checked."""
    for position, envelope in walk(descriptor, start, end):
        if envelope.base_offset >= recovery_point:
            start = position
            break
        yield position, envelope, False
    else:
        return
    for position, envelope in checked_batches(descriptor, start, end, scanned):
        yield position, envelope, True


def _check_whole(descriptor: int, start: int, end: int) -> None:
    """Before a hole: last_offset_delta of the batch may be damaged. The batch is counted; the damage follows it."""
    try:
        check_at(read_exactly(descriptor, end - start, start), 0, position=start, end=end)
    except Damage as found:
        raise Damage(end, found.reason) from found


def _starts_at(descriptor: int, position: int, size: int, offset: int) -> bool:
    try:
        return next(walk(descriptor, position, size))[1].base_offset == offset
    except (Damage, StopIteration):
        return False


def _remembered(
    directory: Path, damage: KnownDamage | None, earlier: KnownDamage | None, end: int
) -> KnownDamage | None:
    """The new damage, extended by the recorded damage; or the recorded damage while it is not refetched."""
    if damage is not None:
        damage = damage.joined(earlier)
        write_damage(directory, damage)
        return damage
    return None if earlier is not None and end >= earlier.until else earlier


def _fold(
    directory: Path, recovered: Recovered, expected: Expected, interval_bytes: int, *, doubted: bool
) -> StoredAborted:
    """Leader epochs, producer states and aborted transactions up to the log end, from their files and the envelopes.

    `doubted`: the log was or is damaged, and a checkpoint may cover records that were lost. Then the epochs and the
    aborted transactions of every batch count, even if the files differ.
    """
    end, recovery_point = recovered.segments[-1].next_offset, expected.recovery_point
    file = read_epochs(directory)
    epochs_from = max(recovery_point, 0) if file is not None and not doubted else 0
    known = file.entries if file is not None else ()
    start, below = recovered.log_start, LeaderEpoch(expected.epoch_below)
    from_cut = (
        (EpochEntry(below, Offset(start)),) if start and below != NO_EPOCH and start == expected.log_start else ()
    )
    epochs = _epochs_of_file(recovered, known or from_cut, end, interval_bytes)
    offsets = segment_offsets(directory, SNAPSHOT_SUFFIX)
    for offset in offsets:
        if offset > end:  # files of lost batches: they would become valid again for other batches at the same offsets
            snapshot_path(directory, offset).unlink(missing_ok=True)
    front = recovered.segments[0].base_offset
    segments = recovered.segments
    aborted = StoredAborted(segments, segments if doubted else recovered.unsealed, recovery_point)
    replayed_from = min(max(recovery_point, front), end)
    is_read_apart = aborted.replayed_from < replayed_from
    if is_read_apart:
        _read_aborted(directory, recovered, aborted, offsets, interval_bytes)
    clean_point = read_clean_point(directory).offset
    snapshot = newest_snapshot(directory, offsets, at_least=front, at_most=replayed_from, clean_point=clean_point)
    if snapshot is not None:
        recovered.snapshot_at, recovered.producers = snapshot
    producers_from = max(recovered.snapshot_at, 0)
    for envelope, marker in replay_from(recovered.segments, min(epochs_from, producers_from), interval_bytes):
        if envelope.leader_epoch > epochs.latest:
            epochs.assign(LeaderEpoch(envelope.leader_epoch), Offset(envelope.base_offset))
        if envelope.base_offset >= producers_from:
            recovered.unsnapshotted_batches += 1
            if envelope.producer_id >= 0:
                ended = recovered.producers.observe(envelope, marker=marker)
                if not is_read_apart:
                    aborted.replay(ended, recovered.producers)
    _take_aborted(recovered, aborted)
    for segment in recovered.segments[:-1]:
        segment.forget_index()
    if epochs.entries != known:
        _if_there_is_space(partial(write_epochs, directory, epochs.entries))
    recovered.epochs = epochs
    return aborted


def _read_aborted(
    directory: Path, recovered: Recovered, aborted: StoredAborted, offsets: list[int], interval_bytes: int
) -> None:
    """The aborted transactions that the files lack, from before the recovery point.

    This is not done with the producer states: after compaction, only a later snapshot may have the states of some
    producers.
    """
    front = recovered.segments[0].base_offset
    snapshot = newest_snapshot(directory, offsets, at_least=front, at_most=aborted.replayed_from)
    start, states = snapshot or (0, ProducerStates())
    for envelope, marker in replay_from(recovered.segments, start, interval_bytes):
        if envelope.producer_id >= 0 and envelope.base_offset >= start:
            aborted.replay(states.observe(envelope, marker=marker), states)


def _take_aborted(recovered: Recovered, aborted: StoredAborted) -> None:
    """For all segments except the last, write the files before the end marks, which prove that these files are
    complete.
    """
    recovered.aborted, recovered.aborted_unwritten_from = aborted.rows, aborted.unwritten_from

    def seal() -> None:
        for segment in recovered.unsealed:
            write_aborted(segment.stem, aborted.of(segment), durable=True)
            segment.seal()

    _if_there_is_space(seal)


def _if_there_is_space(write: Callable[[], None]) -> None:
    """Skip an optional write on a full disk, so that replicas can be opened there."""
    try:
        write()
    except OSError as error:
        if not has_no_room(error):
            raise


def _epochs_of_file(recovered: Recovered, known: Sequence[EpochEntry], end: int, interval_bytes: int) -> LeaderEpochs:
    """The epochs of the file, up to the log end; epochs before the first entry of the file are read from the
    batches.

    The epoch of the record before the first batch is not in the batches."""
    first = known[0].start_offset if known else 0
    if known and first <= recovered.log_start:
        epochs = LeaderEpochs(known)
    else:
        epochs = LeaderEpochs([EpochEntry(NO_EPOCH, Offset(recovered.segments[0].base_offset))])
        for envelope, _ in replay_from(recovered.segments, 0, interval_bytes):
            if envelope.base_offset >= first:
                break
            epochs.assign(LeaderEpoch(envelope.leader_epoch), Offset(envelope.base_offset))
        for entry in known:
            epochs.assign(entry.leader_epoch, entry.start_offset)
    epochs.truncate_from_end(Offset(end + 1))  # an epoch without a record may begin at the end
    if epochs.entries and epochs.entries[0].start_offset > end:
        epochs.truncate_from_end(Offset(end))
    return epochs


def replay_from(
    segments: Sequence[Segment], offset: int, interval_bytes: int
) -> Iterator[tuple[Envelope, EndMarker | None]]:
    """Envelope of every batch from the one that holds `offset` on; for a marker also the content.

    Raises:
        Damage: a header or a marker is damaged.
    """
    for segment in segments:
        if segment.next_offset <= offset or segment.size_bytes == 0:
            continue
        descriptor = Descriptor(segment.log_path, os.O_RDONLY)
        start = 0
        if offset > segment.base_offset:
            index = segment.ensure_index(descriptor.number, interval_bytes)
            number = index.floor(offset)
            nearby = index.positions[number] if number >= 0 else 0
            start = skip_to(descriptor.number, offset, start=nearby, end=segment.size_bytes)
        for position, envelope in walk(descriptor.number, start, segment.size_bytes):
            yield envelope, marker_at(descriptor.number, position, envelope)
