# SPDX-License-Identifier: Apache-2.0
"""What a look at a log's files can find, where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tidemark.model import TopicPartition

_FINDINGS_MAX: Final = 100
"""So many of one replica are kept; of a file full of noise more would say nothing."""


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """What was written is not what is there, or files contradict one another."""
    NOTE = "note"
    """As it may be; good to know."""


class FindingKind(StrEnum):
    """What it is about; stable words for scripts."""

    BATCH = "batch"
    """A batch's length, CRC or fields."""
    PAYLOAD = "payload"
    """A payload that cannot be decoded, or whose values lie."""
    TORN_TAIL = "torn-tail"
    """Half a batch at the end of the log."""
    OFFSETS = "offsets"
    """Offsets that go back, or a segment that does not begin where the one before ends."""
    HOLE = "hole"
    """Offsets that no batch has, in a log that was never compacted (rule L1)."""
    EPOCH = "epoch"
    """Leader epochs that go back, or are not those of the epoch file (rule E1)."""
    INDEX = "index"
    """An index by offset or time that leads to no batch, or to a wrong one; or an end mark that is not true."""
    CHECKPOINT = "checkpoint"
    """A high watermark, recovery point, log start or cleaner's point outside of the log."""
    FILE = "file"
    """A small file that is damaged or missing: partition.json, epochs, a producer snapshot, a checkpoint."""
    DAMAGE = "damage"
    """What the broker itself has found damaged and has not refetched yet (rule T5)."""
    LEFTOVER = "leftover"
    """Files of something that was interrupted, or that go in a while; directories that were set aside."""
    GONE = "gone"
    """A file that the broker removed while it was being read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them.

    Attributes:
        position: byte of the file, None where it is about all of it.
        offset: in the log, None where none can be told.
        sentence: what is wrong.
        advice: what to do next; empty where nothing is to be done.
    """

    severity: Severity
    kind: FindingKind
    path: Path
    sentence: str
    advice: str = ""
    position: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class ReplicaReport:
    """What a replica's directory holds; offsets as in the log, `log_end` exclusive.

    Attributes:
        aside: "future", "delete" or "stray" of a replica that is not served.
        suppressed: findings beyond those that are kept.
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
        """Keep it, unless there are too many."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.suppressed += 1

    @property
    def error_count(self) -> int:
        """How many findings are errors; what was suppressed counts."""
        return sum(one.severity is Severity.ERROR for one in self.findings) + self.suppressed
