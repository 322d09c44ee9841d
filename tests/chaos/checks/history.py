# SPDX-License-Identifier: Apache-2.0
"""The history of a round's clients: sent records with their outcomes, read records, and stated end offsets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum

Partition = int
Offset = int


class Outcome(StrEnum):
    """The last outcome of a record that its sender knows."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """The record was not appended."""
    UNKNOWN = "unknown"
    """The record is in the log once, or not at all."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One record, in the order in which its sender sent the records; `offset` only if the record was acknowledged."""

    value: str
    sender: str
    partition: Partition
    outcome: Outcome
    offset: Offset = -1
    key: str = ""
    """Empty if records of the topic have no key."""


@dataclass(frozen=True, slots=True)
class Polled:
    """One record that a reader got, in the order of reading."""

    reader: str
    partition: Partition
    offset: Offset
    value: str


@dataclass(frozen=True, slots=True)
class ToldEnd:
    """An end offset that a client got, with the times of request and answer in seconds."""

    partition: Partition
    end_offset: Offset
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Deleted:
    """A client got the answer that every assigned replica deleted the records before an offset."""

    partition: Partition
    before_offset: Offset
    answered_s: float


@dataclass(slots=True)
class History:
    """Everything of one topic in one round.

    Attributes:
        hasty: senders stopped waiting for records; a record with an unknown outcome may have been appended after later
            ones.
        readers: the readers that had to read everything, from the first record to the last.
        starts: where each partition starts at the end; 0 where none is given.
        killed: times, in seconds, at which a process was killed or lost a directory, with its name.
        final: the records of each partition at the end, when all processes serve: (offset, value) in offset order.
    """

    sent: list[Sent] = field(default_factory=list)
    polled: list[Polled] = field(default_factory=list)
    ends: list[ToldEnd] = field(default_factory=list)
    final: dict[Partition, list[tuple[Offset, str]]] = field(default_factory=dict)
    starts: dict[Partition, Offset] = field(default_factory=dict)
    deleted: list[Deleted] = field(default_factory=list)
    killed: list[tuple[float, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    hasty: bool = False
    readers: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_polled(self, records: list[Polled]) -> None:
        """Add records that a reader got; called from any thread."""
        with self._lock:
            self.polled.extend(records)

    def add_end(self, end: ToldEnd) -> None:
        """Add an end offset that a client got; called from any thread."""
        with self._lock:
            self.ends.append(end)

    def add_failure(self, failure: str) -> None:
        """A client raised an error that no client should raise; from any thread."""
        with self._lock:
            self.failures.append(failure)
