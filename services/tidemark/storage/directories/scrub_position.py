# SPDX-License-Identifier: Apache-2.0
"""The position of the scrubber in a log directory (rule T6)."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import BadFile, pack_json, read_json, replace_file

SCRUB_FILE: Final = "scrub.json"


class ScrubPosition(NamedTuple):
    """A pass through a directory; not durable: after a power loss an older pass continues.

    Attributes:
        began_ms: milliseconds since 1970.
        ended: the pass has reached the end; the next one begins an interval after `began_ms`.
        partition: name of the replica's directory that is being read.
        offset: the next offset to read in the segment, inclusive.
    """

    began_ms: int
    ended: bool = False
    partition: str = ""
    offset: int = 0


def read_scrub_position(directory: Path) -> ScrubPosition | None:
    """The stored position; None if there is none, or the file is damaged."""
    try:
        document = read_json(directory / SCRUB_FILE, began_ms=int, ended=bool, partition=str, offset=int)
    except BadFile:
        return None
    if document is None:
        return None
    return ScrubPosition(document["began_ms"], document["ended"], document["partition"], document["offset"])


def write_scrub_position(directory: Path, position: ScrubPosition) -> None:
    """Store the position of the scrubber.

    Raises:
        OSError: the disk does not answer, or is full.
    """
    replace_file(directory / SCRUB_FILE, pack_json(position._asdict()))
