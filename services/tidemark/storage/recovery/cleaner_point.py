# SPDX-License-Identifier: Apache-2.0
"""The cleaner point of one log: below this offset (exclusive) there is one record of each key (rule L1).

`cleaner-offset-checkpoint` is in the replica's directory and moves with the replica. A point that is too low costs a
cleaning. With too high a point, the cleaner would delete a tombstone before its records, so truncation lowers the
point. The file also has the time at which the next cleaning of the log may delete tombstones, even if the log is idle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import BadFile, is_unopened, pack_lines, read_lines, replace_file

CLEANER_FILE: Final = "cleaner-offset-checkpoint"
NO_HORIZON: Final = -1
_UNKNOWN_HORIZON: Final = 0


class CleanPoint(NamedTuple):
    """The content of the file.

    Attributes:
        offset: the cleaner point.
        horizon_s: earliest time, in seconds since 1970, at which a tombstone or marker below the point may be deleted;
            0: unknown, NO_HORIZON: there is none.
    """

    offset: int = 0
    horizon_s: int = NO_HORIZON


def read_clean_point(directory: Path) -> CleanPoint:
    """The point; 0 where the file is missing, damaged or cannot be read."""
    try:
        return _read(directory)
    except (BadFile, ValueError):
        return CleanPoint()


def _read(directory: Path) -> CleanPoint:
    """Raises BadFile or ValueError. 0.1.0 wrote no horizon."""
    lines = read_lines(directory / CLEANER_FILE)
    if not lines:
        return CleanPoint()
    offset, *horizon = lines[0].split(" ")
    return CleanPoint(int(offset), int(horizon[0]) if horizon else _UNKNOWN_HORIZON)


def write_clean_point(directory: Path, point: CleanPoint) -> None:
    """Replace the file; durable with the next syncfs.

    Raises:
        OSError: the disk does not answer.
    """
    replace_file(directory / CLEANER_FILE, pack_lines([f"{point.offset} {point.horizon_s}"]))


def lower_clean_point(directory: Path, end_offset: int) -> None:
    """Lower the cleaner point after a truncation to `end_offset`: records appended later are not compacted.

    Raises:
        OSError: the disk does not answer, or too many files are open: the point may be higher.
    """
    try:
        point = _read(directory)
    except (BadFile, ValueError) as error:
        if error.__cause__ is not None and is_unopened(error.__cause__):
            raise error.__cause__ from None
        return
    if point.offset > end_offset:
        write_clean_point(directory, point._replace(offset=end_offset))
