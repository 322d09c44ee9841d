# SPDX-License-Identifier: Apache-2.0
"""The log start by retention.ms and retention.bytes (rule L1); docs/formats.md describes the deletion of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemark.ports import RetentionLimits
from tidemark.storage.segments.index import NO_TIMESTAMP_US

UNLIMITED: Final = -1


class SegmentFigures(NamedTuple):
    """A segment as retention sees it; `next_offset` exclusive."""

    next_offset: int
    size_bytes: int
    max_timestamp_us: int


def expired_until(
    segments: Sequence[SegmentFigures], start_offset: int, limits: RetentionLimits, *, high_watermark: int, now_ms: int
) -> int:
    """The new log start for these segments: complete segments are deleted, never past the high watermark.

    A segment, also the active (last) one, expires by time when its newest record is older than `retention_ms`. A
    segment expires by size when the log keeps `retention_bytes` without it; the active one never.
    """
    oldest_us = (now_ms - limits.retention_ms) * 1000
    left_bytes = sum(segment.size_bytes for segment in segments)
    for number, (end, size_bytes, newest_us) in enumerate(segments, 1):
        active = number == len(segments)
        by_time = limits.retention_ms != UNLIMITED and NO_TIMESTAMP_US < newest_us < oldest_us
        by_size = limits.retention_bytes != UNLIMITED and left_bytes - size_bytes >= limits.retention_bytes
        if end > high_watermark or size_bytes == 0 or not (by_time or (by_size and not active)):
            break
        left_bytes -= size_bytes
        start_offset = max(start_offset, end)
    return start_offset
