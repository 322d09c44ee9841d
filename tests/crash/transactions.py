# SPDX-License-Identifier: Apache-2.0
"""The transactions of a log, computed from its batches alone; a log must state the same (rules X3, X4, X5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tidemark.core.config import ReplicationConfig
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.events import RecoveredLog
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import Offset
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.markers import EndMarker, may_be_marker, read_marker
from tidemark.record.transactions import AbortedBatches, has_records
from tidemark.storage.log.partition_log import PartitionLog

from tests.unit.storage.batches import BROKER, IDENTITY, PARTITION, make_marker

_END = (1 << 63) - 1


class Transaction(NamedTuple):
    """A transaction; `marker_offset` is `_END` and `commit` False while it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int = _END
    commit: bool = False

    @property
    def is_open(self) -> bool:
        return self.marker_offset == _END

    def has(self, batch: Batch) -> bool:
        envelope = batch.envelope
        return (
            envelope.is_pending
            and envelope.producer_id == self.producer_id
            and self.first_offset <= envelope.base_offset < self.marker_offset
        )


def marker_of(batch: Batch) -> EndMarker | None:
    """`read_marker`, once for the same bytes."""
    return _marker_in(bytes(batch.data)) if may_be_marker(batch.envelope) else None


@lru_cache(maxsize=1 << 12)
def _marker_in(data: bytes) -> EndMarker | None:
    return read_marker(Batch(parse_envelope(data), data))


def transactions_of(batches: Iterable[Batch]) -> list[Transaction]:
    """The transactions of a whole history."""
    opened: dict[int, int] = {}
    found: list[Transaction] = []
    for batch in batches:
        envelope, marker = batch.envelope, marker_of(batch)
        if marker is not None:
            first = opened.pop(envelope.producer_id, None)
            if first is not None:
                found.append(Transaction(envelope.producer_id, first, envelope.base_offset, marker.commit))
        elif envelope.is_pending:
            opened.setdefault(envelope.producer_id, envelope.base_offset)
    return found + [Transaction(producer_id, first) for producer_id, first in opened.items()]


def stable_offset(history: Iterable[Batch], high_watermark: int) -> int:
    """The last stable offset (rule X3): every transaction with a record below has ended below the HW."""
    unstable = [one.first_offset for one in transactions_of(history) if one.marker_offset >= high_watermark]
    return min([high_watermark, *unstable])


def compare_states(
    log: PartitionLog, producers: ProducerStates, history: Sequence[Batch], batches: Sequence[Batch], *, exactly: bool
) -> None:
    """Check that the log states the open and aborted transactions of its history.

    Not `exactly`: records below the log start may be unknown.

    Raises: AssertionError: the transactions differ.
    """
    expected = transactions_of(history)
    opened = {one.producer_id: one.first_offset for one in expected if one.is_open}
    found = {one: int(entry.open_offset) for one, entry in producers.entries.items() if entry.is_open}
    firsts = {one.producer_id: min(_offsets(one, batches), default=_END) for one in expected if one.is_open}
    assert all(opened.get(one, _END) <= first <= firsts[one] for one, first in found.items()), (
        f"open are {found}, expected {opened}"
    )
    needed = opened if exactly else [one for one, first in firsts.items() if first < _END]
    assert all(one in found for one in needed), f"open are {found}, expected {opened}"
    assert not exactly or found == opened, f"open are {found}, expected {opened}"
    ended = {(one.producer_id, one.marker_offset): one.first_offset for one in expected if not one.commit}
    for producer_id, first, last in log.aborted_transactions(Offset(0), Offset(_END)):
        known = ended.get((producer_id, last))
        assert known is not None, f"aborted is ({producer_id}, {first}, {last}), which no marker ended"
        assert first >= known, f"aborted is ({producer_id}, {first}, {last}), which began at {known}"


def _offsets(transaction: Transaction, batches: Iterable[Batch]) -> list[int]:
    return _bases(batch for batch in batches if transaction.has(batch))


def compare_readers(
    log: PartitionLog, recovered: RecoveredLog, history: Sequence[Batch], batches: Sequence[Batch]
) -> None:
    """A read_committed reader gets every record of committed transactions below the LSO, and no other.

    Raises:
        AssertionError: the reader gets others.
    """
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    replica = ReplicaLog(BrokerContext(BROKER, ReplicationConfig()), PARTITION, IDENTITY, recovered)
    stable = replica.last_stable_offset
    bound = max(start, stable_offset(batches, int(replica.high_watermark)))  # deleted transactions are stable
    assert stable is None or stable <= bound, f"LSO {stable} with HW {replica.high_watermark}, at most {bound}"
    replica.raise_high_watermark(Offset(end))
    stable, least = replica.last_stable_offset, max(start, stable_offset(history, end))
    most = max(start, stable_offset(batches, end))
    assert stable is not None
    assert least <= stable <= most, f"LSO {stable} with HW {end}, expected {least} to {most}"
    # The cleaner may empty a batch of an aborted transaction: a reader that takes it for another gets no record of it.
    below = [batch for batch in batches if batch.envelope.next_offset <= stable and batch.envelope.record_count]
    hidden = [one for one in transactions_of(history) if not one.commit]
    shown = [batch for batch in below if not batch.envelope.is_control and not any(one.has(batch) for one in hidden)]
    aborted = AbortedBatches(log.aborted_transactions(Offset(start), stable))
    at_once = [batch for batch in below if has_records(batch.envelope, aborted)]
    one_by_one = [
        batch
        for batch in below
        if has_records(batch.envelope, AbortedBatches(log.aborted_transactions(*_range(batch))))
    ]
    for seen in (at_once, one_by_one):
        assert seen == shown, f"a reader is shown the batches at {_bases(seen)}, expected {_bases(shown)}"


def _range(batch: Batch) -> tuple[Offset, Offset]:
    return Offset(batch.envelope.base_offset), Offset(batch.envelope.next_offset)


def _bases(batches: Iterable[Batch]) -> list[int]:
    return [batch.envelope.base_offset for batch in batches]


def aborts(producers: ProducerStates) -> list[Batch]:
    """Markers that abort the open transactions."""
    return [
        make_marker(producer_id=one, producer_epoch=producers.entries[one].producer_epoch + 1, commit=False)
        for one in producers.open_producers
    ]
