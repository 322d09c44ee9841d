# SPDX-License-Identifier: Apache-2.0
"""The small files of a log directory as tables: checkpoints, epochs, indexes, snapshots.

This code repairs no file: it shows the valid part of a damaged file, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import TopicPartition
from tidemark.storage.directories.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from tidemark.storage.directories.roster import ROSTER_FILE
from tidemark.storage.files import BadFile, checksum, read_json, read_lines
from tidemark.storage.recovery.aborted_file import AbortedRow, read_aborted
from tidemark.storage.recovery.cleaner_point import CLEANER_FILE
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX
from tidemark.storage.segments.index import (
    INDEX_SUFFIX,
    NO_TIMESTAMP_US,
    TIME_INDEX_SUFFIX,
    read_end_mark,
    read_index_file,
)
from tidemark.storage.segments.segment import ABORTED_SUFFIX

_ROSTER_VERSION: Final = b"1\n"
_CHECKPOINTS: Final = (HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS)

Cell = str | int | None


class Document(NamedTuple):
    """A small file: its columns, its rows, and its damage (empty: no damage)."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    damage: str = ""


class RosterLine(NamedTuple):
    """A line of the roster: "+", "-" or "x" as in `storage.directories.roster`, "?" for a damaged line."""

    sign: str
    partition: TopicPartition
    topic_id: str = ""
    incarnation: str = ""
    epochs: str = ""


def read_document(path: Path) -> Document | None:
    """The content of a small file; None for other names.

    Raises:
        OSError: the file cannot be read.
    """
    name = path.name
    if name in _CHECKPOINTS:
        return _lines(path, ("topic", "partition", "incarnation", "offset"))
    if name == EPOCH_FILE:
        return _lines(path, ("leader_epoch", "start_offset"))
    if name == CLEANER_FILE:
        return _lines(path, ("clean_point", "horizon_s"))
    if name == ROSTER_FILE:
        return _roster(path)
    if name.endswith(SNAPSHOT_SUFFIX):
        return _snapshot(path)
    if name.endswith(ABORTED_SUFFIX):
        return _aborted(path)
    if name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)):
        return _index(path)
    if name.endswith(".json"):
        return _json(path)
    return None


def read_roster(path: Path) -> list[RosterLine]:
    """Every line of the roster, in order; empty if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    nothing = TopicPartition("", 0)
    if not content.startswith(_ROSTER_VERSION):
        return [RosterLine("?", nothing)]
    *lines, rest = content.removeprefix(_ROSTER_VERSION).split(b"\n")
    found = [_roster_line(line) for line in lines]
    return [*found, RosterLine("?", nothing)] if rest else found


def _roster_line(line: bytes) -> RosterLine:
    body, _, crc = line.rpartition(b" ")
    words = body.decode(errors="replace").split(" ")
    if crc != f"{checksum(body):08x}".encode() or len(words) not in (3, 4, 6) or not words[2].isdecimal():
        return RosterLine("?", TopicPartition("", 0))
    partition = TopicPartition(words[1], int(words[2]))
    if words[0] == "+" and len(words) == 6:
        return RosterLine("+", partition, *words[3:])
    return RosterLine(words[0], partition, incarnation="".join(words[3:4]))


def _roster(path: Path) -> Document:
    lines = read_roster(path)
    rows: list[tuple[Cell, ...]] = [
        (line.sign, line.partition.topic, line.partition.partition, line.topic_id, line.incarnation, line.epochs)
        for line in lines
    ]
    damaged = sum(line.sign == "?" for line in lines)
    return Document(
        ("sign", "topic", "partition", "topic_id", "incarnation", "epochs"),
        rows,
        f"{damaged} lines are damaged or truncated" if damaged else "",
    )


def _lines(path: Path, columns: tuple[str, ...]) -> Document:
    damage = ""
    try:
        lines = read_lines(path)
    except BadFile as bad:
        damage = str(bad)
        lines = [line for line in path.read_text(errors="replace").splitlines()[1:] if not line.startswith("crc ")]
    if lines is None:
        raise FileNotFoundError(path)
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        words = line.split(" ")
        rows.append(tuple(_number(word) for word in (words + [""] * len(columns))[: len(columns)]))
    return Document(columns, rows, damage)


def _number(word: str) -> Cell:
    try:
        return int(word)
    except ValueError:
        return word


def _snapshot(path: Path) -> Document:
    columns = (
        "producer_id",
        "producer_epoch",
        "last_timestamp_us",
        "sequences",
        "offsets",
        "open_offset",
        "coordinator_epoch",
    )
    try:
        document = read_json(path, offset=int, producers=list)
    except BadFile as bad:
        return Document(columns, [], str(bad))
    if document is None:
        raise FileNotFoundError(path)
    rows: list[tuple[Cell, ...]] = []
    try:
        for producer_id, epoch, last_us, batches, *transactional in document["producers"]:
            sequences = " ".join(f"{first}-{last}" for first, last, *_ in batches)
            offsets = " ".join(f"{start}-{end}" for _, _, start, end, *_ in batches)
            open_offset, coordinator_epoch = transactional or (None, None)
            rows.append((producer_id, epoch, last_us, sequences, offsets, open_offset, coordinator_epoch))
    except (TypeError, ValueError):
        return Document(columns, rows, "the bytes after these are not producers")
    said = document["offset"]
    wrong = "" if path.name == f"{said:020d}{SNAPSHOT_SUFFIX}" else f"it is of offset {said}, its name states another"
    return Document(columns, rows, wrong)


def _aborted(path: Path) -> Document:
    path.stat()  # a missing file is not an empty file
    try:
        rows: list[tuple[Cell, ...]] = [tuple(row) for row in read_aborted(path.with_suffix(""))]
    except BadFile as bad:
        return Document(AbortedRow._fields, [], str(bad))
    return Document(AbortedRow._fields, rows, "")


def _index(path: Path) -> Document:
    suffix = path.suffix
    path.stat()  # raises an error, since a missing file is not an empty file
    stem = path.with_suffix("")
    entries, whole = read_index_file(stem, suffix)
    damage = "" if whole else "a block is damaged or truncated; later entries are not shown"
    columns = ("offset", "position") if suffix == INDEX_SUFFIX else ("newest_timestamp_us_before", "offset")
    rows: list[tuple[Cell, ...]] = [
        (None if first == NO_TIMESTAMP_US else first, second)
        for first, second in zip(entries[0::2], entries[1::2], strict=True)
    ]
    mark = read_end_mark(stem) if suffix == TIME_INDEX_SUFFIX else None
    if mark is not None:
        rows.append((f"end mark: newest {mark.max_timestamp_us}, {mark.size_bytes} bytes", mark.next_offset))
    return Document(columns, rows, damage)


def _json(path: Path) -> Document:
    try:
        document = read_json(path)
    except BadFile as bad:
        return Document(("name", "value"), [], str(bad))
    if document is None:
        raise FileNotFoundError(path)
    return Document(("name", "value"), list(_members(document)))


def _members(document: dict[str, object]) -> Iterator[tuple[Cell, ...]]:
    for name, value in document.items():
        yield name, value if isinstance(value, int | str) else _shown(value)


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)
