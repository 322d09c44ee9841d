# SPDX-License-Identifier: Apache-2.0
"""Marks in a replica's directory: where the log was truncated, and known damage (rule T5).

`cut-point.json` exists between a truncation and the next checkpoint, as the checkpoints on disk still describe the
log before the truncation. `damage.json` exists until the log is refetched past its damage.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import NO_EPOCH, TidemarkError
from tidemark.record.checks import check_batch
from tidemark.record.envelope import ENVELOPE_BYTES, next_magic
from tidemark.storage.files import (
    TEMPORARY_SUFFIX,
    BadFile,
    Descriptor,
    pack_json,
    read_exactly,
    read_json,
    replace_file,
    write_all,
)
from tidemark.storage.segments.segment import LOG_SUFFIX, SET_ASIDE_SUFFIX, Damage, Segment, checked_header

UNKNOWN: Final = -1
"""An offset that was lost with a damaged file."""
CUT_FILE: Final = "cut-point.json"
DAMAGE_FILE: Final = "damage.json"
NO_END: Final = 1 << 62
"""Damage that only the refetched log ends, at any offset."""
_SEARCH_BYTES: Final = 8 << 20


class CutPoint(NamedTuple):
    """The mark of a truncation: checkpoints are not valid at or past `end_offset`.

    On a full disk, the mark of a log start that no checkpoint has yet; its `end_offset` is above every checkpoint.

    Attributes:
        log_start: log start offset of the log after the truncation.
        resetting: a reset has begun: the next start deletes every segment.
        epoch_below: leader epoch of the last record below `log_start`, given to a reset; used where a full disk kept
            the epoch file from being written.
    """

    end_offset: int
    log_start: int
    resetting: bool = False
    epoch_below: int = NO_EPOCH

    def log_start_with(self, checkpointed: int | None) -> int:
        """The log start of this mark and a checkpoint. A kill may leave a mark that is older than the checkpoint."""
        if checkpointed is not None and self.log_start <= checkpointed <= self.end_offset:
            return checkpointed
        return self.log_start


class KnownDamage(NamedTuple):
    """Known damage of a log, which keeps its replica out of clean elections.

    Attributes:
        until: offset (exclusive) up to which records are missing or set aside.
        cut: only a torn tail was cut off (rule T7). The number of records there is unknown, so `until` is `NO_END`.
    """

    reason: str
    until: int
    cut: bool = False

    def joined(self, earlier: KnownDamage | None) -> KnownDamage:
        """Add this damage to earlier damage of the log, which is not refetched yet."""
        if earlier is None:
            return self
        return KnownDamage(self.reason, max(self.until, earlier.until), self.cut and earlier.cut)


def write_cut_point(directory: Path, cut: CutPoint, *, durable: bool = False) -> None:
    """Write the mark before a truncation. The mark is not synced: after a power loss an empty mark has no meaning.

    The mark of a reset is synced: the producer states of a half deleted log without snapshots would be wrong. With
    `durable` the mark is synced, too.
    """
    replace_file(directory / CUT_FILE, pack_json(cut._asdict()), durable=durable or cut.resetting)


def read_cut_point(directory: Path) -> CutPoint | None:
    """Read the mark of the last truncation; None without a truncation since the last checkpoint.

    Both offsets of a damaged mark are UNKNOWN, so recovery uses no checkpoint of this log.
    """
    try:
        document = read_json(directory / CUT_FILE, end_offset=int, log_start=int)
    except BadFile:
        return CutPoint(UNKNOWN, UNKNOWN)
    if document is None:
        return None
    epoch_below = document.get("epoch_below")
    return CutPoint(
        document["end_offset"],
        document["log_start"],
        document.get("resetting") is True,
        epoch_below if type(epoch_below) is int else NO_EPOCH,
    )


def write_damage(directory: Path, damage: KnownDamage) -> None:
    """Record the damage across restarts, durably."""
    replace_file(directory / DAMAGE_FILE, pack_json(damage._asdict()), durable=True)


def read_damage(directory: Path) -> KnownDamage | None:
    """The known damage; a damaged file counts as damage without end.

    Without the file, segments that were set aside give the offset to refetch to.
    """
    try:
        document = read_json(directory / DAMAGE_FILE, reason=str, until=int)
    except BadFile as error:
        return KnownDamage(str(error), NO_END)
    if document is not None:
        return KnownDamage(document["reason"], document["until"], document.get("cut") is True)
    ends = [_end_in(directory / name) for name in os.listdir(directory) if SET_ASIDE_SUFFIX in name]
    return KnownDamage(f"{DAMAGE_FILE} is missing, and segments were set aside", max(ends)) if ends else None


def _end_in(aside: Path) -> int:
    """Next offset (exclusive) after the valid batches of a file that was set aside."""
    opened = Descriptor(aside, os.O_RDONLY)
    end = end_of_valid_batches(opened.number, start=0, end=os.fstat(opened.number).st_size, at_least=0)
    return end or 0


def forget_damage(directory: Path) -> None:
    """The log was refetched: delete the segments set aside and the record of the damage."""
    for path in directory.iterdir():
        if SET_ASIDE_SUFFIX in path.name:
            path.unlink(missing_ok=True)
    (directory / DAMAGE_FILE).unlink(missing_ok=True)


def set_aside(segment: Segment, *, keep_bytes: int) -> None:
    """Rename the damaged file, and keep its first `keep_bytes` as the segment, if any.

    At every instant the log file is the complete old file or the complete new file.
    """
    path = segment.log_path
    segment.remove_indexes()
    number = 0
    while (aside := path.with_name(f"{path.name}{SET_ASIDE_SUFFIX}{number or ''}")).exists():
        number += 1
    os.link(path, aside)
    if keep_bytes == 0:
        path.unlink()
        return
    copy = path.with_name(path.name + TEMPORARY_SUFFIX)
    source, target = Descriptor(aside, os.O_RDONLY), Descriptor(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for position in range(0, keep_bytes, _SEARCH_BYTES):
        chunk = read_exactly(source.number, min(_SEARCH_BYTES, keep_bytes - position), position)
        write_all(target.number, chunk, position)
    os.fsync(target.number)
    copy.replace(path)


def end_of_valid_batches(descriptor: int, *, start: int, end: int, at_least: int) -> int | None:
    """Next offset (exclusive) of the last valid batch that starts anywhere in [start, end) at an offset >= `at_least`.

    None if there is none: the bytes may be a torn tail. Batches start at multiples of 8; a candidate counts when every
    check of a replicated batch passes.
    """
    found: int | None = None
    position = (start + 7) & ~7
    while position + ENVELOPE_BYTES <= end:
        chunk = read_exactly(descriptor, min(_SEARCH_BYTES, end - position), position)
        if len(chunk) < ENVELOPE_BYTES:
            break
        magics = chunk[24::8]  # the byte where each candidate, one every 8 bytes, has its magic
        taken = 0
        number = next_magic(magics, 0)
        while number >= 0:
            at = number * 8
            if at + ENVELOPE_BYTES > len(chunk):
                break
            reached = _valid_at(descriptor, chunk, at, position=position + at, end=end, at_least=at_least)
            if reached is not None:
                found = max(found or 0, reached[0])
                taken = at + reached[1]
                number = next_magic(magics, taken // 8)
            else:
                number = next_magic(magics, number + 1)
        step = max(taken, len(chunk) - ENVELOPE_BYTES + 8 & ~7)
        position += step
    return found


def _valid_at(
    descriptor: int, chunk: bytes, at: int, *, position: int, end: int, at_least: int
) -> tuple[int, int] | None:
    try:
        envelope = checked_header(chunk, at, position=position, end=end)
        if envelope.base_offset < at_least:
            return None
        check_batch(read_exactly(descriptor, envelope.batch_length, position))
    except (Damage, TidemarkError):
        return None
    return envelope.next_offset, envelope.batch_length


def valid_batches_in_file(path: Path, *, at_least: int) -> int | None:
    """`end_of_valid_batches` of a whole log file."""
    assert path.name.endswith(LOG_SUFFIX)
    descriptor = Descriptor(path, os.O_RDONLY)
    end = os.fstat(descriptor.number).st_size
    return end_of_valid_batches(descriptor.number, start=0, end=end, at_least=at_least)
