# SPDX-License-Identifier: Apache-2.0
"""Finds anomalies in a history: those of Jepsen's checker for Kafka, and violations of Tidemark's own guarantees.

A record whose outcome is unknown may be in the log once or not at all. Other outcomes are certain: an acknowledged
record is in the log, and a failed record is not. Readers read their partitions from the earliest record on and do not
seek, so they get every record in order, without a gap at the front or between, and up to the end.

A record of a compacted topic may be gone once the log has a later record of its key; a record below the log start may
be gone, too. Acknowledgements and readers must agree about such a record, even then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.checks.history import History, Outcome, Partition

REPLICAS = 3


class Anomaly(StrEnum):
    """Each anomaly has a forged history in the checker's own tests."""

    LOST = "lost"
    """An acknowledged record is not in the log at the end."""
    DUPLICATE = "duplicate"
    """A record is at two offsets."""
    REORDERED = "reordered"
    """A record comes after a record that its sender sent later to the same partition."""
    DIVERGED = "diverged"
    """Two values at one offset: among readers, acknowledgements and the log at the end."""
    UNCOMMITTED = "uncommitted"
    """A reader got a record that is not in the log at the end."""
    SKIPPED = "skipped"
    """A reader did not get a record before or between those that it got."""
    UNSEEN = "unseen"
    """A reader that had to read everything did not get records that are in the log after its last one."""
    WENT_BACK = "went back"
    """A reader got an offset at or below one that it got before."""
    END_WENT_BACK = "end went back"
    """A client got an end offset below one that another client had got before this client sent its request."""
    ABORTED_READ = "aborted read"
    """A record is in the log, or was read, though the sender's error states that the record was not appended."""
    NEVER_SENT = "never sent"
    """A record is in the log that no sender sent."""
    CAME_BACK = "came back"
    """A record is in the log at the end; all replicas had deleted it, and one of them was not killed afterwards."""
    GAVE_UP = "gave up"
    """A client raised an error; the client should have waited."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly and its description."""

    anomaly: Anomaly
    partition: Partition
    story: str

    def __str__(self) -> str:
        return f"{self.anomaly} in partition {self.partition}: {self.story}"


def check(history: History) -> list[Finding]:
    return [
        *_of_the_log(history),
        *_of_senders(history),
        *_of_failures(history),
        *_of_readers(history),
        *_of_ends(history),
        *_of_deletions(history),
        *(Finding(Anomaly.GAVE_UP, -1, failure) for failure in history.failures),
    ]


class _Gone:
    """Records that may be gone at the end: below the log start, or with a later record of their key in the log."""

    def __init__(self, history: History) -> None:
        self._starts = history.starts
        self._keys = {(record.partition, record.value): record.key for record in history.sent if record.key}
        self._latest: dict[tuple[Partition, str], int] = {}
        for partition, records in history.final.items():
            for offset, value in records:
                key = self._keys.get((partition, value))
                if key is not None:
                    self._latest[partition, key] = offset

    def may(self, partition: Partition, offset: int, value: str) -> bool:
        key = self._keys.get((partition, value))
        covered = key is not None and self._latest.get((partition, key), -1) > offset
        return covered or offset < self._starts.get(partition, 0)


def _of_the_log(history: History) -> Iterator[Finding]:
    known = {(record.partition, record.value) for record in history.sent}
    for partition, records in history.final.items():
        places: defaultdict[str, list[int]] = defaultdict(list)
        for offset, value in records:
            places[value].append(offset)
            if (partition, value) not in known:
                yield Finding(Anomaly.NEVER_SENT, partition, f"{value!r} at {offset}")
        for value, offsets in places.items():
            if len(offsets) > 1:
                yield Finding(Anomaly.DUPLICATE, partition, f"{value!r} is at {offsets}")


def _of_senders(history: History) -> Iterator[Finding]:
    at_offset = {partition: dict(records) for partition, records in history.final.items()}
    places: dict[tuple[Partition, str], int] = {}
    for partition, records in history.final.items():
        for offset, value in records:
            places.setdefault((partition, value), offset)
    last: dict[tuple[str, Partition], tuple[int, str]] = {}
    gone = _Gone(history)
    for record in history.sent:
        where = places.get((record.partition, record.value))
        if record.outcome is Outcome.ACKNOWLEDGED:
            found = at_offset.get(record.partition, {}).get(record.offset)
            if where is None and (found is not None or not gone.may(record.partition, record.offset, record.value)):
                yield Finding(
                    Anomaly.LOST,
                    record.partition,
                    f"{record.value!r} was acknowledged at {record.offset}, where there is {found!r}",
                )
            elif where is not None and where != record.offset:
                yield Finding(
                    Anomaly.DIVERGED,
                    record.partition,
                    f"{record.value!r} was acknowledged at {record.offset} and is at {where}",
                )
        if where is None or (history.hasty and record.outcome is Outcome.UNKNOWN):
            continue
        before = last.get((record.sender, record.partition))
        if before is not None and before[0] > where:
            yield Finding(
                Anomaly.REORDERED,
                record.partition,
                f"{record.value!r} of {record.sender} is at {where}, {before[1]!r}, sent before it, at {before[0]}",
            )
        last[record.sender, record.partition] = (where, record.value)


def _of_failures(history: History) -> Iterator[Finding]:
    failed = {(record.partition, record.value) for record in history.sent if record.outcome is Outcome.FAILED}
    for partition, records in history.final.items():
        for offset, value in records:
            if (partition, value) in failed:
                yield Finding(Anomaly.ABORTED_READ, partition, f"{value!r}, which failed, is at {offset}")
    for one in history.polled:
        if (one.partition, one.value) in failed:
            story = f"{one.reader} was given {one.value!r}, which failed, at {one.offset}"
            yield Finding(Anomaly.ABORTED_READ, one.partition, story)


def _of_readers(history: History) -> Iterator[Finding]:
    at_offset = {partition: dict(records) for partition, records in history.final.items()}
    seen: dict[tuple[Partition, int], tuple[str, str]] = {}
    positions: dict[tuple[str, Partition], int] = {}
    gone = _Gone(history)
    for record in history.sent:
        if record.outcome is Outcome.ACKNOWLEDGED:
            seen[record.partition, record.offset] = (record.value, f"the acknowledgement to {record.sender}")
    for one in history.polled:
        log = at_offset.get(one.partition, {})
        value, reader = seen.setdefault((one.partition, one.offset), (one.value, one.reader))
        if value != one.value:
            yield Finding(
                Anomaly.DIVERGED,
                one.partition,
                f"at {one.offset} {reader} was given {value!r} and {one.reader} {one.value!r}",
            )
        there = log.get(one.offset)
        if there != one.value and (there is not None or not gone.may(one.partition, one.offset, one.value)):
            yield Finding(
                Anomaly.UNCOMMITTED,
                one.partition,
                f"{one.reader} was given {one.value!r} at {one.offset}, where there is {log.get(one.offset)!r}",
            )
        before = positions.get((one.reader, one.partition), -1)
        positions[one.reader, one.partition] = one.offset
        if one.offset <= before:
            yield Finding(Anomaly.WENT_BACK, one.partition, f"{one.reader} went from {before} to {one.offset}")
        missed = [offset for offset in range(before + 1, one.offset) if offset in log]
        if missed:
            yield Finding(
                Anomaly.SKIPPED,
                one.partition,
                f"{one.reader} went from {before} to {one.offset} over {len(missed)} records",
            )
    yield from _of_last_reads(history, positions)


def _of_last_reads(history: History, positions: Mapping[tuple[str, Partition], int]) -> Iterator[Finding]:
    for reader in history.readers:
        for partition, records in history.final.items():
            last = positions.get((reader, partition), -1)
            unseen = [offset for offset, _ in records if offset > last]
            if unseen:
                story = f"{reader} ended at {last}, before {len(unseen)} records up to {unseen[-1]}"
                yield Finding(Anomaly.UNSEEN, partition, story)


def _of_ends(history: History) -> Iterator[Finding]:
    """Answers may arrive out of order.

    An end offset must not be lower than one that was answered before its request.
    """
    by_partition: defaultdict[Partition, list[tuple[float, int, bool, int]]] = defaultdict(list)
    for number, end in enumerate(history.ends):
        by_partition[end.partition].append((end.asked_s, number, False, end.end_offset))
        by_partition[end.partition].append((end.answered_s, number, True, end.end_offset))
    for partition, moments in by_partition.items():
        highest = 0
        floor: dict[int, int] = {}
        for _, number, answered, end_offset in sorted(moments, key=lambda moment: (moment[0], moment[2])):
            if not answered:
                floor[number] = highest
                continue
            if end_offset < floor[number]:
                yield Finding(
                    Anomaly.END_WENT_BACK, partition, f"{floor[number]} was answered before {end_offset} was requested"
                )
            highest = max(highest, end_offset)


def _of_deletions(history: History) -> Iterator[Finding]:
    """A log start may go back only if all brokers were killed after the answer, possibly before the checkpoint."""
    for one in history.deleted:
        start = history.starts.get(one.partition, 0)
        killed = {name for at_s, name in history.killed if at_s >= one.answered_s}
        if start < one.before_offset and len(killed) < REPLICAS:
            yield Finding(
                Anomaly.CAME_BACK,
                one.partition,
                f"the log starts at {start}, records before {one.before_offset} were deleted",
            )
