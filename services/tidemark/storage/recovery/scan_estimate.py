# SPDX-License-Identifier: Apache-2.0
"""Estimate of the bytes that opening a log scans, from sizes, end marks and indexes: the progress of a start (T5)."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.segments.index import load_index, read_end_mark
from tidemark.storage.segments.segment import Segment


def bytes_to_scan(directory: Path, recovery_point: int) -> int:
    """Bytes of the log past the recovery point that no end mark covers; 0 where there is no log.

    The same rules as recovery's, without reading batches. Damage may make recovery read more.
    """
    try:
        bases = segment_offsets(directory)
        return sum(
            _bytes_past(Segment(directory, base), recovery_point)
            for number, base in enumerate(bases)
            if number + 1 == len(bases) or bases[number + 1] > recovery_point
        )
    except OSError:
        return 0  # opening the log reports the error


def _bytes_past(segment: Segment, recovery_point: int) -> int:
    size = os.stat(segment.log_path).st_size
    if segment.base_offset >= recovery_point:
        return size
    mark = read_end_mark(segment.stem)
    if mark is not None and mark.size_bytes == size and mark.next_offset <= recovery_point:
        return 0
    index = load_index(segment.stem)
    number = index.floor(recovery_point)
    return max(size - index.positions[number], 0) if number >= 0 else size
