# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a log outside of its broker, without writes, locks or repairs (docs/formats.md).

Batches are streamed in chunks, so a segment of any size takes the memory of one chunk or of its largest batch. Bytes
that are not batches are given as a `Bad` with their position, and reading continues at the next valid header.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import TidemarkError, TopicPartition
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Envelope, next_magic
from tidemark.storage.directories.log_directory import LOCK_FILE
from tidemark.storage.files import Descriptor, read_exactly
from tidemark.storage.segments.index import load_index
from tidemark.storage.segments.segment import LOG_SUFFIX, OFFSET_DIGITS, Damage, checked_header

_CHUNK_BYTES: Final = 4 << 20
_LOCKS: Final = Path("/proc/locks")
_REPLICA_NAME: Final = re.compile(r"(?P<topic>[^/]+)-(?P<partition>\d+)")
_ASIDE_NAME: Final = re.compile(r"(?P<name>.+)\.[0-9a-f]{32}-(?P<suffix>future|delete|stray)")
_SEGMENT_NAME: Final = re.compile(rf"\d{{{OFFSET_DIGITS}}}(-\d{{{OFFSET_DIGITS}}})?\.(log|cleaned|swap)(\..+)?")


class Good(NamedTuple):
    """A batch at a position of a segment."""

    position: int
    batch: Batch

    @property
    def end(self) -> int:
        """Position after the batch."""
        return self.position + self.batch.envelope.batch_length


class Bad(NamedTuple):
    """Bytes [position, end) that are not a whole batch.

    Attributes:
        envelope: envelope of a batch with a valid header and a damaged body; else None.
        is_tail: no valid header follows, so the bytes may be an incomplete append (rule T5).
    """

    position: int
    end: int
    reason: str
    envelope: Envelope | None
    is_tail: bool


class ReplicaPath(NamedTuple):
    """A replica's directory; `aside`: "future", "delete" or "stray" for a replica that is not served."""

    partition: TopicPartition
    path: Path
    aside: str = ""


def is_segment(path: Path) -> bool:
    """Whether a file of this name has batches: a segment, or a segment that was set aside, deleted or compacted."""
    return _SEGMENT_NAME.fullmatch(path.name) is not None


def base_offset_of(path: Path) -> int:
    """The offset in a segment's name."""
    return int(path.name[:OFFSET_DIGITS])


def replica_paths(directory: Path) -> list[ReplicaPath]:
    """The directories of replicas in a log directory, including directories that were set aside, by topic and
    partition.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for entry in os.scandir(directory):
        aside = _ASIDE_NAME.fullmatch(entry.name)
        match = _REPLICA_NAME.fullmatch(aside["name"] if aside else entry.name)
        if match is not None and entry.is_dir():
            partition = TopicPartition(match["topic"], int(match["partition"]))
            found.append(ReplicaPath(partition, Path(entry.path), aside["suffix"] if aside else ""))
    return sorted(found, key=lambda one: (one.partition.topic, one.partition.partition, one.aside, one.path))


def special_files(directory: Path) -> list[Path]:
    """Entries that are neither files nor directories, such as a FIFO, whose read may never end.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path for path in directory.iterdir() if is_special(path))


def is_special(path: Path) -> bool:
    """Whether a path exists, and is neither a file nor a directory."""
    return path.exists() and not (path.is_file() or path.is_dir())


def is_held(directory: Path) -> bool | None:
    """Whether a process holds the lock of the log directory, without taking the lock.

    None: unknown, without /proc/locks. A broker in another container, whose processes are invisible here, is missed.
    """
    try:
        status = (directory / LOCK_FILE).stat()
    except OSError:
        return False
    try:
        held = _LOCKS.read_text()
    except OSError:
        return None
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(name in line.split() for line in held.splitlines())


def read_segment(path: Path, *, start: int = 0, end: int | None = None) -> Iterator[Good | Bad]:
    """Every batch in bytes [start, end) of a file, lengths, CRCs and fields checked; a batch starts at `start`.

    Args:
        end: end of the read in bytes; None: the size of the file now.

    Raises:
        OSError: the file cannot be read, or was removed.
    """
    file = Descriptor(path, os.O_RDONLY)
    descriptor = file.number
    end = os.fstat(descriptor).st_size if end is None else end
    position, chunk, at = start, b"", 0
    while position < end:
        if at + ENVELOPE_BYTES > len(chunk):
            chunk, at = read_exactly(descriptor, min(_CHUNK_BYTES, end - position), position), 0
            if not chunk:
                return  # the file was truncated meanwhile
        try:
            envelope = checked_header(chunk, at, position=position, end=end)
        except Damage as damage:
            following = _next_header(descriptor, position + 1, end)
            yield Bad(position, following, damage.reason, None, following == end)
            position, chunk = following, b""
            continue
        length = envelope.batch_length
        if at + length > len(chunk):  # this check comes first: a damaged length must not use memory
            chunk, at = read_exactly(descriptor, min(max(_CHUNK_BYTES, length), end - position), position), 0
            if len(chunk) < length:
                return
        try:
            yield Good(position, check_envelope(chunk, at))
        except TidemarkError as error:
            yield Bad(position, position + length, error.message, envelope, position + length == end)
        position, at = position + length, at + length


def read_log(directory: Path, *, from_offset: int = 0) -> Iterator[tuple[Path, Good | Bad]]:
    """`read_segment` of every segment of a replica, from a batch at or before the one that holds `from_offset`.

    A segment that is removed meanwhile is skipped.
    """
    paths = segment_paths(directory)
    for number, path in enumerate(paths):
        if number + 1 < len(paths) and base_offset_of(paths[number + 1]) <= from_offset:
            continue
        try:
            for piece in read_segment(path, start=_start_of(path, from_offset)):
                yield path, piece
        except FileNotFoundError:
            continue


def _start_of(path: Path, offset: int) -> int:
    """First position to read in a segment, by its index; 0 for an invalid index."""
    if offset <= base_offset_of(path):
        return 0
    index = load_index(path.with_suffix(""))
    number = index.floor(offset)
    if number < 0:
        return 0
    file = Descriptor(path, os.O_RDONLY)
    at, size = index.positions[number], os.fstat(file.number).st_size
    try:
        header = checked_header(read_exactly(file.number, ENVELOPE_BYTES, at), 0, position=at, end=size)
    except Damage:
        return 0
    return at if header.base_offset == index.offsets[number] else 0


def _next_header(descriptor: int, start: int, end: int) -> int:
    """Position of the first valid header in [start, end) at a multiple of 8; `end` if there is none."""
    position = (start + 7) & ~7
    while position + ENVELOPE_BYTES <= end:
        chunk = read_exactly(descriptor, min(_CHUNK_BYTES, end - position), position)
        if len(chunk) < ENVELOPE_BYTES:
            return end
        magics = chunk[24::8]  # the byte where each candidate, one every 8 bytes, has its magic
        number = next_magic(magics, 0)
        while number >= 0 and number * 8 + ENVELOPE_BYTES <= len(chunk):
            try:
                checked_header(chunk, number * 8, position=position + number * 8, end=end)
            except Damage:
                number = next_magic(magics, number + 1)
                continue
            return position + number * 8
        position += len(chunk) - ENVELOPE_BYTES + 8 & ~7
    return end


def segment_paths(directory: Path) -> list[Path]:
    """The segments of a replica, oldest first."""
    names = (name for name in os.listdir(directory) if name.endswith(LOG_SUFFIX))
    return [directory / name for name in sorted(names) if len(name) == OFFSET_DIGITS + len(LOG_SUFFIX)]
