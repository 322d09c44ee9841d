# SPDX-License-Identifier: Apache-2.0
"""Replaces segments by a cleaned segment, so that a kill at any point neither loses nor duplicates a record.

1. `<base>-<end>.cleaned` is written and made durable. A start deletes such a file: the old segments stay valid.
2. `.cleaned` is renamed to `<base>-<end>.swap`, durably: the replacement is committed, and a start carries out the
   remaining steps. A `.swap` that was damaged later is deleted if its source segments are complete, and
   otherwise set aside.
3. The segments within [base, end) and the old indexes of the first are deleted; the directory is made durable.
4. `.swap` is renamed to `<base>.log`.

`end` is exclusive and the base of the segment after it; the cleaned segment keeps a batch that ends there (rule L1).
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import Descriptor, open_directory, sync_directory
from tidemark.storage.segments.index import read_end_mark
from tidemark.storage.segments.scan import checked_batches
from tidemark.storage.segments.segment import LOG_SUFFIX, OFFSET_DIGITS, SET_ASIDE_SUFFIX, Damage, Segment

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_LOG_NAME: Final = re.compile(rf"[0-9]{{{OFFSET_DIGITS}}}\.log")
_log = logging.getLogger(__name__)
SWAP_NAME: Final = re.compile(rf"(\d{{{OFFSET_DIGITS}}})-(\d{{{OFFSET_DIGITS}}})\.swap")


def cleaned_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Path of the segment that replaces the segments in [base_offset, end_offset)."""
    return directory / f"{base_offset:0{OFFSET_DIGITS}d}-{end_offset:0{OFFSET_DIGITS}d}{CLEANED_SUFFIX}"


class Swap(NamedTuple):
    """A committed replacement. Its remaining steps open no file: a process may have too many open files.

    Attributes:
        path: the `.swap` file.
        names: the names in its directory.
        directory: its directory.
    """

    path: Path
    names: list[str]
    directory: Descriptor


def commit_swap(cleaned: Path) -> Swap:
    """Step 2 without its sync, for a durable file.

    Raises:
        OSError: the files are unchanged.
    """
    swap = _opened(cleaned.with_suffix(SWAP_SUFFIX))
    cleaned.rename(swap.path)
    return swap


def _opened(path: Path) -> Swap:
    return Swap(path, os.listdir(path.parent), open_directory(path.parent))


def finish_swap(swap: Swap) -> None:
    """The sync of step 2, then steps 3 and 4, even after an interruption.

    Raises:
        OSError: the disk does not answer; the next start continues.
    """
    sync_directory(swap.directory)
    match = SWAP_NAME.fullmatch(swap.path.name)
    assert match is not None, swap.path.name
    base, end = int(match[1]), int(match[2])
    parent = swap.path.parent
    for name in sorted(swap.names, reverse=True):
        stem, suffix = os.path.splitext(name)
        if suffix == LOG_SUFFIX and stem.isdecimal() and base < int(stem) < end:
            Segment(parent, int(stem)).remove()
    first = Segment(parent, base)
    first.remove_indexes()
    sync_directory(swap.directory)
    swap.path.rename(first.log_path)


def recover_swaps(directory: Path, names: list[str]) -> None:
    """At a start, before segments are read: delete uncommitted replacements, finish committed ones.

    Raises:
        OSError: the disk does not answer.
    """
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            (directory / name).unlink()
    for name in sorted(names):
        match = SWAP_NAME.fullmatch(name)
        if match is not None:
            _finish_or_undo(directory / name, int(match[1]), int(match[2]))


def _finish_or_undo(swap: Path, base: int, end: int) -> None:
    """Finish a committed replacement, unless its file was damaged since and the source segments are complete."""
    reached = _checked_end(swap, base)
    if (reached is None or reached < end) and _joined_end(swap.parent, base, end) == end:
        _log.error("damaged cleaned segment dropped: its source segments are complete", extra={"path": str(swap)})
        swap.unlink()
    elif reached is None:
        swap.replace(swap.with_name(f"{swap.name}{SET_ASIDE_SUFFIX}"))
    else:
        finish_swap(_opened(swap))


def _checked_end(path: Path, base: int) -> int | None:
    """Next offset (exclusive) after the batches of a file, which all start at or past `base`; None where damaged."""
    opened = Descriptor(path, os.O_RDONLY)
    reached = base
    try:
        for _, envelope in checked_batches(opened.number, 0, os.fstat(opened.number).st_size, lambda size_bytes: None):
            if envelope.base_offset < reached:
                return None
            reached = envelope.next_offset
    except Damage:
        return None
    return reached


def _joined_end(directory: Path, base: int, end: int) -> int | None:
    """Next offset after the complete segments that join without a gap from `base` to `end`; None if a segment is
    damaged.
    """
    reached: int | None = base
    bases = sorted(int(name[:OFFSET_DIGITS]) for name in os.listdir(directory) if _LOG_NAME.fullmatch(name))
    within = [one for one in bases if base <= one < end]
    for number, one in enumerate(within):
        following = within[number + 1] if number + 1 < len(within) else end
        segment = Segment(directory, one)
        reached = _checked_end(segment.log_path, one) if one == reached else None
        mark = read_end_mark(segment.stem)
        if reached is not None and mark is not None and mark.size_bytes == segment.log_path.stat().st_size:
            reached = max(reached, min(mark.next_offset, following))  # the log ends in a hole after the last batch
    return reached if within else None
