# SPDX-License-Identifier: Apache-2.0
"""A replica's state of idempotent producers (rules P1-P4).

For each producer: its epoch and its last five batches. The state follows the log: an append adds a batch (`observe`),
truncation and failover rebuild the state from snapshot and log. A producer without a batch for the expiration time is
removed when a new one is added, so memory is bounded by the producers of that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.record.envelope import Envelope

REMEMBERED_BATCHES = 5
SEQUENCE_SPACE: Final = 1 << 31
"""Sequences run from 0 to 2^31 - 1 and start over at 0."""


class RememberedBatch(NamedTuple):
    """A batch of a producer; both ends inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: Offset
    last_offset: Offset


class ProducerEntry(NamedTuple):
    """One producer: its epoch, its last batches (oldest first, at least one) and the largest timestamp seen."""

    producer_epoch: int
    batches: tuple[RememberedBatch, ...]
    last_timestamp_us: int


class ProducerStates:
    """All producers of one partition; without an expiration time none expires."""

    __slots__ = ("_entries", "_expiration_ms", "_seen_ms")

    def __init__(self, entries: Mapping[int, ProducerEntry] | None = None) -> None:
        self._entries: dict[int, ProducerEntry] = dict(entries) if entries else {}
        self._expiration_ms: int | None = None
        self._seen_ms: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerStates({self._entries!r})"

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """By producer id; what a snapshot holds."""
        return self._entries

    def copy(self) -> ProducerStates:
        """An independent copy, without expiration."""
        return ProducerStates(self._entries)

    def expiring(self, expiration_ms: int, now_ms: int) -> ProducerStates:
        """A copy from which producers expire; known producers count as seen at `now_ms`. Any one clock will do."""
        states = self.copy()
        states._expiration_ms = expiration_ms
        states._seen_ms = dict.fromkeys(states._entries, now_ms)
        return states

    def check(self, envelope: Envelope) -> RememberedBatch | None:
        """Check that this batch may be appended next: None; a batch: this one is a duplicate of that (rule P2).

        Raises:
            TidemarkError: PRODUCER_FENCED, OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID, DUPLICATE_SEQUENCE.
        """
        if not is_idempotent(envelope):
            return None
        entry = self._entries.get(envelope.producer_id)
        if entry is None or not entry.batches:
            if envelope.base_sequence != 0:
                raise _refusal(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    envelope,
                    f"nothing is known of this producer here, and sequence {envelope.base_sequence} is not its first",
                )
            return None
        if envelope.producer_epoch != entry.producer_epoch:
            _check_epoch(envelope, entry)
            return None
        first = envelope.base_sequence
        if first == _next_sequence(entry):
            return None
        last = last_sequence(envelope)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        raise _out_of_order(envelope, entry)

    def observe(self, envelope: Envelope, now_ms: int = 0) -> None:
        """Add a batch that the log holds, with its final base offset; batches without a producer are ignored.

        A batch that is known already, or comes from an older epoch of its producer, changes nothing, so a log may
        be replayed over a snapshot.
        """
        if not is_idempotent(envelope):
            return
        first_offset = Offset(envelope.base_offset)
        batch = RememberedBatch(
            envelope.base_sequence,
            last_sequence(envelope),
            first_offset,
            Offset(first_offset + envelope.last_offset_delta),
        )
        entry = self._entries.get(envelope.producer_id)
        if self._expiration_ms is not None:
            self._see(envelope.producer_id, now_ms - self._expiration_ms, now_ms)
        if entry is None or envelope.producer_epoch > entry.producer_epoch:
            self._entries[envelope.producer_id] = ProducerEntry(
                envelope.producer_epoch, (batch,), envelope.max_timestamp_us
            )
            return
        if envelope.producer_epoch < entry.producer_epoch:
            return
        if entry.batches and batch.first_offset <= entry.batches[-1].last_offset:
            return
        self._entries[envelope.producer_id] = ProducerEntry(
            entry.producer_epoch,
            (*entry.batches[1 - REMEMBERED_BATCHES :], batch),
            max(entry.last_timestamp_us, envelope.max_timestamp_us),
        )

    def _see(self, producer_id: int, expired_ms: int, now_ms: int) -> None:
        """Invariant: `_seen_ms` is ordered by time, so that the oldest entry expires first."""
        if self._seen_ms.pop(producer_id, None) is None:
            while self._seen_ms:
                oldest = next(iter(self._seen_ms))
                if self._seen_ms[oldest] > expired_ms:
                    break
                del self._seen_ms[oldest]
                self._entries.pop(oldest, None)
        self._seen_ms[producer_id] = now_ms

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """The state of one producer; None: it has none."""
        return self._entries.get(producer_id)

    def restore(self, producer_id: int, entry: ProducerEntry | None) -> None:
        """Restore what `entry` gave, after a request that was refused halfway."""
        if entry is None:
            self._entries.pop(producer_id, None)
            self._seen_ms.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry


def is_idempotent(envelope: Envelope) -> bool:
    """Whether the batch asks for idempotence: it has a producer and a sequence."""
    return envelope.producer_id >= 0 and envelope.base_sequence >= 0


def last_sequence(envelope: Envelope) -> int:
    """Sequence of the last record, inclusive."""
    return (envelope.base_sequence + envelope.last_offset_delta) % SEQUENCE_SPACE


def _next_sequence(entry: ProducerEntry) -> int:
    return (entry.batches[-1].last_sequence + 1) % SEQUENCE_SPACE


def _check_epoch(envelope: Envelope, entry: ProducerEntry) -> None:
    if envelope.producer_epoch < entry.producer_epoch:
        raise _refusal(
            ErrorCode.PRODUCER_FENCED,
            envelope,
            f"producer epoch {envelope.producer_epoch} is older than {entry.producer_epoch}",
        )
    if envelope.base_sequence != 0:
        raise _refusal(
            ErrorCode.OUT_OF_ORDER_SEQUENCE,
            envelope,
            f"a new producer epoch starts with sequence 0, not {envelope.base_sequence}",
        )


def _out_of_order(envelope: Envelope, entry: ProducerEntry) -> TidemarkError:
    """A sequence that neither follows the last batch nor repeats a remembered one."""
    expected = _next_sequence(entry)
    behind = (expected - envelope.base_sequence) % SEQUENCE_SPACE
    remembered = (expected - entry.batches[0].first_sequence) % SEQUENCE_SPACE
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
        f"sequence {envelope.base_sequence} came where {expected} was expected",
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
