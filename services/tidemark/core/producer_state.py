# SPDX-License-Identifier: Apache-2.0
"""A replica's state of idempotent and transactional producers (rules P1-P4, X1-X3, X7).

For each producer: its epoch, its last batches, and its open transaction. The state follows the log: an append adds
a batch (`observe`), truncation and failover rebuild the state from snapshot and log. A producer without a batch for the
expiration time is removed when a new producer is added, and so is the longest idle one of `PRODUCERS_MAX`. So callers
cannot fill the memory of brokers with new producers. A producer with an open transaction stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from tidemark.model import REMEMBERED_BATCHES, ErrorCode, Offset, TidemarkError
from tidemark.record.envelope import Batch, Envelope
from tidemark.record.markers import EndMarker, read_marker

NO_COORDINATOR_EPOCH: Final = -1
NO_TRANSACTION: Final = Offset(-1)
SEQUENCE_SPACE: Final = 1 << 31
"""Sequences run from 0 to 2^31 - 1 and start over at 0."""
PRODUCERS_MAX: Final = 20_000
"""Producers of a partition that a replica remembers, apart from those with an open transaction: 1 kB of memory each."""
_OPEN_AT_ONCE: Final = 100
"""Producers with an open transaction that are skipped for one new producer."""


class RememberedBatch(NamedTuple):
    """A batch of a producer; both ends inclusive. `append_time_us` as in `Envelope`."""

    first_sequence: int
    last_sequence: int
    first_offset: Offset
    last_offset: Offset
    append_time_us: int = -1


class ProducerEntry(NamedTuple):
    """The state of one producer in a partition.

    Attributes:
        producer_epoch: the newest epoch; a marker raises it.
        batches: the last batches of this epoch with sequences, oldest first.
        last_timestamp_us: largest timestamp of the epoch's batches.
        open_offset: offset of the first batch of its open transaction; NO_TRANSACTION if none is open.
        coordinator_epoch: coordinator epoch of its last marker; NO_COORDINATOR_EPOCH if there is none (rule X2).
    """

    producer_epoch: int
    batches: tuple[RememberedBatch, ...]
    last_timestamp_us: int
    open_offset: Offset = NO_TRANSACTION
    coordinator_epoch: int = NO_COORDINATOR_EPOCH

    @property
    def is_open(self) -> bool:
        """Whether the producer has an open transaction here."""
        return self.open_offset >= 0


class EndedTransaction(NamedTuple):
    """A transaction that a marker ended; `marker_offset` is the marker's offset."""

    producer_id: int
    first_offset: Offset
    marker_offset: Offset
    commit: bool


class ProducerStates:
    """All producers of one partition; without an expiration time none expires."""

    __slots__ = ("_entries", "_expiration_ms", "_open", "_seen_ms")

    def __init__(self, entries: Mapping[int, ProducerEntry] | None = None) -> None:
        self._entries: dict[int, ProducerEntry] = dict(entries) if entries else {}
        self._expiration_ms: int | None = None
        self._seen_ms: OrderedDict[int, int] = OrderedDict()
        """Time of the last batch of each producer. A dict would search for its oldest item."""
        self._open: OrderedDict[int, Offset] = OrderedDict()
        """First offset of each open transaction, by producer id. Invariant: the offsets rise."""
        if self._entries:
            opened = sorted((entry.open_offset, one) for one, entry in self._entries.items() if entry.is_open)
            self._open.update((producer_id, offset) for offset, producer_id in opened)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerStates({self._entries!r})"

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """Entries by producer id, as a snapshot holds them."""
        return self._entries

    def copy(self) -> ProducerStates:
        """An independent copy of the states, without expiration."""
        return ProducerStates(self._entries)

    def without_open(self) -> ProducerStates:
        """A copy in which every transaction has ended."""
        return ProducerStates({one: entry._replace(open_offset=NO_TRANSACTION) for one, entry in self._entries.items()})

    def expiring(self, expiration_ms: int, now_ms: int) -> ProducerStates:
        """A copy from which producers expire; known producers count as seen at `now_ms`, in the order of their last
        batches. Any clock is valid, if all calls use the same clock.
        """
        states = self.copy()
        states._expiration_ms = expiration_ms
        if states._entries:
            by_last_batch = sorted(states._entries, key=lambda one: _last_offset(states._entries[one]))
            states._seen_ms = OrderedDict.fromkeys(by_last_batch, now_ms)
        return states

    @property
    def first_open_offset(self) -> Offset | None:
        """First offset of the oldest open transaction, None without any."""
        return next(iter(self._open.values()), None) if self._open else None

    @property
    def open_producers(self) -> tuple[int, ...]:
        """Ids of the producers with an open transaction, by its first offset."""
        return tuple(self._open)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction of this epoch."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.is_open and entry.producer_epoch == producer_epoch

    def check(self, envelope: Envelope) -> RememberedBatch | None:
        """Check that this batch may be appended next: None; a batch: the new batch is a duplicate of the returned batch
        (rules P2, X1).

        Raises:
            TidemarkError: PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, DUPLICATE_SEQUENCE;
                INVALID_TXN_STATE for a batch that does not belong to the producer's open transaction.
        """
        if not has_producer_state(envelope):
            return None
        entry = self._entries.get(envelope.producer_id)
        if entry is None:
            if envelope.base_sequence > 0:
                raise _refusal(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    envelope,
                    f"nothing is known of this producer here, and sequence {envelope.base_sequence} is not its first",
                )
            return None
        _check_epoch(envelope, entry)
        if not is_idempotent(envelope) or envelope.producer_epoch != entry.producer_epoch:
            return None
        first = envelope.base_sequence
        if first == _next_sequence(entry):
            return None
        last = last_sequence(envelope)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        raise _out_of_order(envelope, entry)

    def check_marker(self, envelope: Envelope, marker: EndMarker) -> bool:
        """Whether to append this marker: the log has neither the marker nor the same marker of another coordinator
        (X2).

        A marker has a higher epoch than its transaction. So a marker of the producer's present epoch was written
        before, even if that epoch has begun another transaction since.

        Raises:
            TidemarkError: COORDINATOR_FENCED, PRODUCER_FENCED.
        """
        entry = self._entries.get(envelope.producer_id)
        if entry is None:
            return True
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise _refusal(
                ErrorCode.COORDINATOR_FENCED,
                envelope,
                f"coordinator epoch {marker.coordinator_epoch} of the marker is older than {entry.coordinator_epoch}, "
                "that of the last marker: another broker coordinates the transactional id now",
            )
        if envelope.producer_epoch < entry.producer_epoch:
            raise _refusal(
                ErrorCode.PRODUCER_FENCED,
                envelope,
                f"the marker's producer epoch {envelope.producer_epoch} is older than {entry.producer_epoch}",
            )
        return envelope.producer_epoch > entry.producer_epoch

    def observe_batch(self, batch: Batch) -> EndedTransaction | None:
        """`observe`, with the content of a marker read from the batch."""
        return self.observe(batch.envelope, marker=read_marker(batch))

    def observe(self, envelope: Envelope, now_ms: int = 0, marker: EndMarker | None = None) -> EndedTransaction | None:
        """Add a batch that the log holds, with its final base offset; batches without a producer are ignored.

        A known batch, or a batch of an older epoch of its producer, has no effect. So a log may be replayed over a
        snapshot.

        Args:
            envelope: envelope of the batch.
            now_ms: present time, from which the producer's expiration counts.
            marker: the content of a marker, None for every other batch.

        Returns:
            The transaction that the marker ends.
        """
        producer_id = envelope.producer_id
        idempotent = producer_id >= 0 and envelope.base_sequence >= 0
        if marker is None and not idempotent and not has_producer_state(envelope):
            return None
        entry = self._entries.get(producer_id)
        if self._expiration_ms is not None:
            self._see(producer_id, now_ms - self._expiration_ms, now_ms)
        if entry is not None and envelope.producer_epoch < entry.producer_epoch:
            return None
        if marker is not None:
            return self._end(envelope, entry, marker)
        batches: tuple[RememberedBatch, ...] = ()
        open_offset, coordinator_epoch = NO_TRANSACTION, NO_COORDINATOR_EPOCH
        newest_us = envelope.max_timestamp_us
        if entry is not None:
            coordinator_epoch = entry.coordinator_epoch
            if envelope.producer_epoch > entry.producer_epoch:
                self._open.pop(producer_id, None)  # compaction has removed the marker that began this epoch
            else:
                batches, open_offset = entry.batches, entry.open_offset
                if batches and envelope.base_offset <= batches[-1].last_offset:
                    return None
                if entry.last_timestamp_us > newest_us:
                    newest_us = entry.last_timestamp_us
        if open_offset < 0 and envelope.is_pending:
            open_offset = self._open[producer_id] = Offset(envelope.base_offset)
        if idempotent:
            batches = (*batches[1 - REMEMBERED_BATCHES :], _remembered(envelope))
        self._entries[producer_id] = ProducerEntry(
            envelope.producer_epoch, batches, newest_us, open_offset, coordinator_epoch
        )
        return None

    def _end(self, envelope: Envelope, entry: ProducerEntry | None, marker: EndMarker) -> EndedTransaction | None:
        producer_id = envelope.producer_id
        if entry is not None and envelope.producer_epoch == entry.producer_epoch:
            return None  # a replay: the epoch begins with this marker
        coordinator_epoch = marker.coordinator_epoch
        if entry is not None:
            coordinator_epoch = max(coordinator_epoch, entry.coordinator_epoch)
        self._entries[producer_id] = ProducerEntry(
            envelope.producer_epoch, (), envelope.max_timestamp_us, NO_TRANSACTION, coordinator_epoch
        )
        first = self._open.pop(producer_id, None)
        return (
            None if first is None else EndedTransaction(producer_id, first, Offset(envelope.base_offset), marker.commit)
        )

    def _see(self, producer_id: int, expired_ms: int, now_ms: int) -> None:
        """Invariant: `_seen_ms` is ordered by time, so that the oldest entry expires first."""
        if self._seen_ms.pop(producer_id, None) is None:
            self._make_room(expired_ms, now_ms)
        self._seen_ms[producer_id] = now_ms

    def _make_room(self, expired_ms: int, now_ms: int) -> None:
        """Remove expired producers, and the longest idle ones at the limit; one with an open transaction stays."""
        opened = 0
        while self._seen_ms and opened < _OPEN_AT_ONCE:
            oldest = next(iter(self._seen_ms))
            if self._seen_ms[oldest] > expired_ms and len(self._seen_ms) < PRODUCERS_MAX:
                return
            del self._seen_ms[oldest]
            if oldest in self._open:
                self._seen_ms[oldest] = now_ms
                opened += 1
            else:
                self._entries.pop(oldest, None)

    def close_deleted(self, log_start_offset: Offset) -> None:
        """Let each open transaction begin with its first batch that has records at or above a log start, if known.

        Without such a batch the transaction is forgotten: no reader waits for its end. Its next batch opens it again.
        """
        cut = [one for one, _ in takewhile(lambda opened: opened[1] < log_start_offset, self._open.items())]
        for producer_id in cut:
            entry = self._entries[producer_id]
            first = _first_batch(entry, log_start_offset)
            self._entries[producer_id] = entry._replace(open_offset=first)
            self._open[producer_id] = first
            if first < 0:
                del self._open[producer_id]
        if cut:
            self._open = OrderedDict(sorted(self._open.items(), key=lambda item: item[1]))

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """The state of one producer; None: there is none."""
        return self._entries.get(producer_id)

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Restore the entry that `entry` returned, after batches were added only for a check.

        No marker was added in between.
        """
        if entry is None:
            self._entries.pop(producer_id, None)
            self._seen_ms.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry
        if entry is None or not entry.is_open:
            self._open.pop(producer_id, None)


def has_producer_state(envelope: Envelope) -> bool:
    """Whether a replica stores the producer of the batch: the batch is idempotent, or belongs to a transaction.

    The pending batches of coordinators have no sequence. For a control batch, only the marker is stored.
    """
    return envelope.producer_id >= 0 and (
        envelope.base_sequence >= 0 or (envelope.is_pending and not envelope.is_control)
    )


def is_idempotent(envelope: Envelope) -> bool:
    """Whether the batch asks for idempotence: it has a producer and a sequence."""
    return envelope.producer_id >= 0 and envelope.base_sequence >= 0


def last_sequence(envelope: Envelope) -> int:
    """Sequence of the last record, inclusive."""
    return (envelope.base_sequence + envelope.last_offset_delta) % SEQUENCE_SPACE


def _remembered(envelope: Envelope) -> RememberedBatch:
    first_offset = Offset(envelope.base_offset)
    return RememberedBatch(
        envelope.base_sequence,
        last_sequence(envelope),
        first_offset,
        Offset(first_offset + envelope.last_offset_delta),
        envelope.append_time_us,
    )


def _first_batch(entry: ProducerEntry, log_start_offset: Offset) -> Offset:
    """First offset of the open transaction's first batch with records at or above a log start; NO_TRANSACTION: none.

    The present first offset, if earlier batches are no longer remembered.
    """
    batches = entry.batches
    if not batches or (batches[0].first_offset > entry.open_offset and batches[0].last_offset >= log_start_offset):
        return entry.open_offset
    return next((one.first_offset for one in batches if one.last_offset >= log_start_offset), NO_TRANSACTION)


def _last_offset(entry: ProducerEntry) -> int:
    """Offset of the last batch of this epoch; -1 without one, as after a marker."""
    return entry.batches[-1].last_offset if entry.batches else -1


def _next_sequence(entry: ProducerEntry) -> int:
    """The sequence after the last batch; 0 after a marker, which begins an epoch."""
    return (entry.batches[-1].last_sequence + 1) % SEQUENCE_SPACE if entry.batches else 0


def _check_epoch(envelope: Envelope, entry: ProducerEntry) -> None:
    if envelope.producer_epoch < entry.producer_epoch:
        raise _refusal(
            ErrorCode.PRODUCER_FENCED,
            envelope,
            f"producer epoch {envelope.producer_epoch} is older than {entry.producer_epoch}",
        )
    newer = envelope.producer_epoch > entry.producer_epoch
    if entry.is_open and (newer or not envelope.is_pending):
        raise _refusal(
            ErrorCode.INVALID_TXN_STATE,
            envelope,
            f"its transaction of producer epoch {entry.producer_epoch} is open, and the batch is not of it; end the "
            "transaction first",
        )
    if newer and envelope.base_sequence > 0:
        raise _refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE,
            envelope,
            f"a new producer epoch starts with sequence 0, not {envelope.base_sequence}",
        )


def _out_of_order(envelope: Envelope, entry: ProducerEntry) -> TidemarkError:
    """The error for a sequence that neither follows the last batch nor repeats a remembered one."""
    expected = _next_sequence(entry)
    behind = (expected - envelope.base_sequence) % SEQUENCE_SPACE
    remembered = (expected - entry.batches[0].first_sequence) % SEQUENCE_SPACE if entry.batches else SEQUENCE_SPACE
    if remembered < behind <= SEQUENCE_SPACE // 2:
        return _refusal(
            ErrorCode.DUPLICATE_SEQUENCE,
            envelope,
            f"sequence {envelope.base_sequence} was written before the last {REMEMBERED_BATCHES} batches, "
            f"which are all that is remembered",
        )
    return _refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE,
        envelope,
        f"the batch has sequence {envelope.base_sequence}, and {expected} was expected",
    )


def _refusal(code: ErrorCode, envelope: Envelope, sentence: str) -> TidemarkError:
    return TidemarkError(
        code,
        f"producer {envelope.producer_id}: {sentence}",
        {
            "producer_id": str(envelope.producer_id),
            "producer_epoch": str(envelope.producer_epoch),
            "base_sequence": str(envelope.base_sequence),
        },
    )
