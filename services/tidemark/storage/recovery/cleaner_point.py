# SPDX-License-Identifier: Apache-2.0
"""The cleaner point of one log: below this offset (exclusive) there is one record of each key (rule L1).

`cleaner-offset-checkpoint` is in the replica's directory and moves with the replica. A point that is too low costs a
cleaning. With too high a point, the cleaner would delete a tombstone before its records, so truncation lowers the
point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidemark.storage.files import BadFile, pack_lines, read_lines, replace_file

CLEANER_FILE: Final = "cleaner-offset-checkpoint"


def read_clean_point(directory: Path) -> int:
    """The point; 0 where the file is missing or damaged."""
    try:
        lines = read_lines(directory / CLEANER_FILE)
        return int(lines[0]) if lines else 0
    except (BadFile, ValueError):
        return 0


def write_clean_point(directory: Path, offset: int) -> None:
    """Replace the file; durable with the next syncfs.

    Raises:
        OSError: the disk does not answer.
    """
    replace_file(directory / CLEANER_FILE, pack_lines([str(offset)]))


def lower_clean_point(directory: Path, end_offset: int) -> None:
    """Lower the cleaner point after a truncation to `end_offset`: records appended later are not compacted.

    Raises:
        OSError: the disk does not answer.
    """
    if read_clean_point(directory) > end_offset:
        write_clean_point(directory, end_offset)
