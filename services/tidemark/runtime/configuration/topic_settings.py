# SPDX-License-Identifier: Apache-2.0
"""Settings of topics: each field is a row of the table of all settings (`keys`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidemark.runtime.configuration.key import I32_MAX, UNLIMITED, setting

_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of one topic; -1 (`UNLIMITED`) disables a limit."""

    owner: ClassVar[str] = "topic"

    min_insync_replicas: int = setting(
        2, "In-sync replicas that must have a record before acks=all is acknowledged", minimum=1, maximum=32_767
    )
    max_message_bytes: int = setting(1 << 20, "Largest batch", minimum=1024, maximum=8 << 20)
    max_message_uncompressed_bytes: int = setting(
        16 << 20, "Largest batch, uncompressed", minimum=1024, maximum=256 << 20
    )
    segment_bytes: int = setting(1 << 30, "Size at which a segment is rolled", minimum=1024, maximum=I32_MAX)
    segment_ms: int = setting(7 * _DAY_MS, "Age at which a segment is rolled", minimum=1)
    index_interval_bytes: int = setting(4096, "Bytes of log between two index entries", minimum=1, maximum=I32_MAX)
    retention_ms: int = setting(
        7 * _DAY_MS,
        "Age of its newest record above which a segment is deleted, once all of the segment is committed",
        unlimited=True,
    )
    retention_bytes: int = setting(
        UNLIMITED,
        "Bytes that retention keeps of a partition: the oldest segments beyond them are deleted, never the active one",
        unlimited=True,
    )
    cleanup_policy: str = setting(
        "delete",
        "Treatment of old segments: delete removes them by retention; compact keeps the latest record of each key",
        choices=("delete", "compact", "compact,delete"),
    )
    delete_retention_ms: int = setting(
        _DAY_MS, "Time for which a compacted topic keeps a tombstone after the records that it deletes are removed"
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Share of bytes appended since the last compaction, from which on a log is compacted again"
    )
    min_compaction_lag_ms: int = setting(0, "Age below which a record keeps its segment from being compacted")
    file_delete_delay_ms: int = setting(
        60_000, "Time for which files of a deleted segment are kept under another name, for readers that have them open"
    )
    unclean_leader_election_enable: bool = setting(
        False, "Whether a replica that may lack acknowledged records may be elected"
    )
    schema_compatibility: str = setting(
        "backward",
        "Allowed changes of a typed topic's schema. With backward, readers with the newest version read batches of "
        "every earlier one; with forward, readers with every earlier version read batches of the newest one",
        choices=("backward", "forward", "full", "none"),
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Clock of the record timestamps: the producer's (CreateTime) or the leader's (LogAppendTime)",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        UNLIMITED, "How far a record's timestamp may be before the broker's clock", unlimited=True
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "How far a record's timestamp may be after the broker's clock", unlimited=True
    )
    flush_policy: str = setting(
        "os",
        "Meaning of acks=all: os, interval: in the page cache of every ISR member; group-commit: on its disk",
        choices=("os", "group-commit", "interval"),
    )
    flush_interval_ms: int = setting(
        1000, "Longest time from append to flush with flush.policy=interval", minimum=1, maximum=_DAY_MS
    )
