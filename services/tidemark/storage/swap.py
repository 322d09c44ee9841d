"""Putting a cleaned segment in the place of those it was made of, so that a kill at any point loses or doubles nothing.

1. `<base>-<end>.cleaned` is written and made durable. Found at a start: deleted, the old segments stand.
2. It is renamed to `<base>-<end>.swap`, durably: from here on it holds, and a start carries out the rest.
3. The segments that lie within [base, end) go, with the old indexes of the first; the directory is made durable.
4. `.swap` becomes `<base>.log`.

`end` is exclusive and the base of the segment after it; the cleaned segment keeps a batch that ends there (rule L1).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tidemark.storage.files import sync_directory
from tidemark.storage.segment import LOG_SUFFIX, OFFSET_DIGITS, Segment

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
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
        if _SWAP_NAME.fullmatch(name):
            finish_swap(directory / name)
