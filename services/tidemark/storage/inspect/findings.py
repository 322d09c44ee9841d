# SPDX-License-Identifier: Apache-2.0
"""Findings of the verification of logs: the file, the position, and the next step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tidemark.model import TopicPartition

_FINDINGS_MAX: Final = 100
"""Bound of the findings kept for one replica; more findings in a file of random bytes would not help."""


class Severity(StrEnum):
    """Whether a finding is damage. `ReplicaReport.error_count` counts damage only."""

    ERROR = "error"
    """Damage: bytes differ from the written bytes, or files contradict one another."""
    NOTE = "note"
    """No damage: a normal state after a crash or of a running broker, such as a batch that is being written."""


class FindingKind(StrEnum):
    """The kind of a finding; the words are stable, for scripts."""

    BATCH = "batch"
    """A batch's length, CRC or fields."""
    PAYLOAD = "payload"
    """A payload that cannot be decoded, or has wrong values."""
    TORN_TAIL = "torn-tail"
    """An incomplete batch at the end of the log."""
    OFFSETS = "offsets"
    """Decreasing offsets, or a segment that does not begin where the one before ends."""
    HOLE = "hole"
    """Offsets that no batch has, in a log that was never compacted (rule L1)."""
    EPOCH = "epoch"
    """Decreasing leader epochs, or epochs that differ from the epoch file (rule E1)."""
    INDEX = "index"
    """An index entry by offset or time without its batch, or a wrong end mark."""
    CHECKPOINT = "checkpoint"
    """A high watermark, recovery point, log start or cleaner's point outside of the log."""
    FILE = "file"
    """A small file that is damaged or missing: partition.json, epochs, a producer snapshot, a checkpoint."""
    DAMAGE = "damage"
    """Damage that the broker recorded and has not refetched yet (rule T5)."""
    LEFTOVER = "leftover"
    """Files of an interrupted operation, files that the broker deletes later, directories that were set aside."""
    GONE = "gone"
    """A file that the broker removed while it was being read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect or a note that the verification of a log found.

    Attributes:
        position: byte offset in the file, None for the whole file.
        offset: offset of the log; None: unknown.
        end_offset: of damaged batches, the first offset after them (exclusive); None: unknown.
        sentence: the description.
        advice: the next step; empty: no step.
    """

    severity: Severity
    kind: FindingKind
    path: Path
    sentence: str
    advice: str = ""
    position: int | None = None
    offset: int | None = None
    end_offset: int | None = None


@dataclass(slots=True)
class ReplicaReport:
    """The report on one replica; `log_end` is exclusive.

    Attributes:
        aside: "future", "delete" or "stray" for a replica that is not served.
        suppressed: number of findings that were counted and not kept.
    """

    partition: TopicPartition
    path: Path
    aside: str = ""
    segments: int = 0
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    log_start: int = 0
    log_end: int = 0
    findings: list[Finding] = field(default_factory=list)
    suppressed: int = 0

    def add(self, finding: Finding) -> None:
        """Add a finding; the report keeps the first 100, and only counts later findings."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.suppressed += 1

    @property
    def error_count(self) -> int:
        """Number of errors; suppressed findings count as errors."""
        return sum(one.severity is Severity.ERROR for one in self.findings) + self.suppressed
