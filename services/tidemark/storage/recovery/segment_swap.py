# SPDX-License-Identifier: Apache-2.0
"""Putting a cleaned segment in the place of those it was made of, so that a kill at any point loses or doubles nothing.

1. `<base>-<end>.cleaned` is written and made durable. Found at a start: deleted, the old segments stand.
2. It is renamed to `<base>-<end>.swap`, durably: from here on it holds, and a start carries out the rest. One that
   is damaged by then gives way to the segments it was made of where they are all there, and is set aside where not.
3. The segments that lie within [base, end) go, with the old indexes of the first; the directory is made durable.
4. `.swap` becomes `<base>.log`.

`end` is exclusive and the base of the segment after it; the cleaned segment keeps a batch that ends there (rule L1).
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Final

from tidemark.storage.files import Descriptor, sync_directory
from tidemark.storage.segments.index import read_end_mark
from tidemark.storage.segments.scan import checked_batches
from tidemark.storage.segments.segment import LOG_SUFFIX, OFFSET_DIGITS, SET_ASIDE_SUFFIX, Damage, Segment

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_LOG_NAME: Final = re.compile(rf"[0-9]{{{OFFSET_DIGITS}}}\.log")
_log = logging.getLogger(__name__)
_SWAP_NAME: Final = re.compile(rf"(\d{{{OFFSET_DIGITS}}})-(\d{{{OFFSET_DIGITS}}})\.swap")


def cleaned_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Where a segment is written that is to replace those in [base_offset, end_offset)."""
    return directory / f"{base_offset:0{OFFSET_DIGITS}d}-{end_offset:0{OFFSET_DIGITS}d}{CLEANED_SUFFIX}"


def commit_swap(cleaned: Path) -> Path:
    """Step 2, of a file that has been made durable, but for the sync; gives its new path.

    Raises:
        OSError: nothing has changed.
    """
    swap = cleaned.with_suffix(SWAP_SUFFIX)
    cleaned.rename(swap)
    return swap


def finish_swap(swap: Path) -> None:
    """Make step 2 hold, then steps 3 and 4, from wherever they were interrupted.

    Raises:
        OSError: the disk does not answer; the next start goes on from where this ended.
    """
    sync_directory(swap.parent)
    match = _SWAP_NAME.fullmatch(swap.name)
    assert match is not None, swap.name
    base, end = int(match[1]), int(match[2])
    directory = swap.parent
    for name in sorted(os.listdir(directory), reverse=True):
        stem, suffix = os.path.splitext(name)
        if suffix == LOG_SUFFIX and stem.isdecimal() and base < int(stem) < end:
            Segment(directory, int(stem)).remove()
    first = Segment(directory, base)
    first.remove_indexes()
    sync_directory(directory)
    swap.rename(first.log_path)


def recover_swaps(directory: Path, names: list[str]) -> None:
    """At a start, before any segment is looked at: undo what did not hold, finish what did.

    Raises:
        OSError: the disk does not answer.
    """
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            (directory / name).unlink()
    for name in sorted(names):
        match = _SWAP_NAME.fullmatch(name)
        if match is not None:
            _finish_or_undo(directory / name, int(match[1]), int(match[2]))


def _finish_or_undo(swap: Path, base: int, end: int) -> None:
    """Finish it, but never at the price of whole segments for one that has rotted since it was written."""
    reached = _checked_end(swap, base)
    if (reached is None or reached < end) and _joined_end(swap.parent, base, end) == end:
        _log.error("cleaned segment not used: what it was made of is whole", extra={"path": str(swap)})
        swap.unlink()
    elif reached is None:
        swap.replace(swap.with_name(f"{swap.name}{SET_ASIDE_SUFFIX}"))
    else:
        finish_swap(swap)


def _checked_end(path: Path, base: int) -> int | None:
    """Next offset (exclusive) after the batches of a file, which all start at or past `base`; None: it is damaged."""
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
    """Where the segments from `base` on end that join without a gap, and are whole; `end` is where the next starts."""
    reached: int | None = base
    bases = sorted(int(name[:OFFSET_DIGITS]) for name in os.listdir(directory) if _LOG_NAME.fullmatch(name))
    within = [one for one in bases if base <= one < end]
    for number, one in enumerate(within):
        following = within[number + 1] if number + 1 < len(within) else end
        segment = Segment(directory, one)
        reached = _checked_end(segment.log_path, one) if one == reached else None
        mark = read_end_mark(segment.stem)
        if reached is not None and mark is not None and mark.size_bytes == segment.log_path.stat().st_size:
            reached = max(reached, min(mark.next_offset, following))  # cut in a hole it ends past its last batch
    return reached if within else None
