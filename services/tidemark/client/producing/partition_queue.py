# SPDX-License-Identifier: Apache-2.0
"""The batches of one partition, in order, until they have outcomes (rules P1, P2, P4). No event loop, no clock.

Up to `max_in_flight` batches are in flight at the same time. After a failure no batch is sent until every attempt in
flight has its response or is lost. Then all batches without acknowledgement are sent again, in order, with their
sequences, so that a retry neither duplicates nor reorders. Only batches that were certainly not appended may get
sequences of a new producer id.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from tidemark.client.producing.batch_format import Sealing
from tidemark.client.producing.batching import BATCH_BYTES_MAX, PendingBatch
from tidemark.client.producing.deleted_topics import recreated
from tidemark.client.producing.splitting import names_records, split
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import NO_PRODUCER, REMEMBERED_BATCHES, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import NO_SEQUENCE, Codec
from tidemark.record.payload import reseal

SEQUENCE_SPACE: Final = 1 << 31

_BEHIND_A_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER_ID})
"""Errors of a batch whose predecessor was not appended."""

_MISPLACED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors of stale metadata, of the broker or of this client; newer metadata decides."""

_NOT_APPENDED: Final = _BEHIND_A_GAP | {
    ErrorCode.CORRUPT_BATCH,
    ErrorCode.INVALID_BATCH,
    ErrorCode.INVALID_PAYLOAD,
    ErrorCode.RECORD_COUNT_MISMATCH,
    ErrorCode.BATCH_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.NULL_KEY,
    ErrorCode.SCHEMA_MISMATCH,
    ErrorCode.UNKNOWN_SCHEMA_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_ACKS,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.PARTITION_SEALED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.TRANSACTION_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}
"""Refusals that precede the append; any other error leaves the batch in doubt."""


NO_IDENTITY: Final = ProducerIdentity(NO_PRODUCER, -1)


class Resolved(NamedTuple):
    """The outcome of a batch, for the sender to deliver."""

    batch: PendingBatch
    base_offset: int
    append_time_us: int
    error: TidemarkError | None


class PartitionQueue:
    """Decides which batch is sent next; used on the client's event loop only.

    Invariant: `_in_flight` followed by `_ready` is the order in which the records were added. Sequences rise without a
    gap from the oldest batch that has a sequence.

    Attributes:
        identity: producer id and epoch of the next batch; None: the queue needs one first.
        failing: an attempt failed; no batch is sent until every attempt has its outcome.
        sent_to: the leader that the batches in flight were sent to.
        window: most batches from the oldest without acknowledgement to the newest sent: each live broker remembers this
            number (rule P1).
    """

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: str,
        *,
        max_in_flight: int,
        idempotent: bool,
        codec: Codec,
        transactional: bool = False,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.identity: ProducerIdentity | None = None if idempotent else NO_IDENTITY
        self.failing = False
        self.sent_to: object = None
        self.window = REMEMBERED_BATCHES
        self._codec = codec
        self._idempotent = idempotent
        self._transactional = transactional
        self._max_in_flight = max_in_flight
        self._next_sequence = 0
        self._ready: deque[PendingBatch] = deque()
        self._in_flight: deque[PendingBatch] = deque()
        self._window: dict[
            PendingBatch, bool
        ] = {}  # batches sent under this identity, and whether acknowledged; never the oldest
        self._resolved: list[Resolved] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._in_flight)

    @property
    def wants_identity(self) -> bool:
        """Whether the queue waits for a producer id; in a transaction `begin` sets the id."""
        return self.identity is None and bool(self._ready) and not self._transactional

    @property
    def can_send(self) -> bool:
        """Whether the next batch may be sent now."""
        return bool(self._ready) and self.identity is not None and self.has_room

    @property
    def next_bytes(self) -> int:
        """Size of the next batch."""
        return self._ready[0].size_bytes

    @property
    def ready_bytes(self) -> int:
        """Size of the next batches, as many as may be in flight."""
        return sum(batch.size_bytes for batch in islice(self._ready, self._max_in_flight))

    @property
    def next_goes_again(self) -> bool:
        """Whether the next batch is a retry: it may be in the log, so it is sent alone to get a separate response."""
        return bool(self._ready) and (self._ready[0].base_sequence >= 0 or self._ready[0].refusal is not None)

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be in flight."""
        most = self.window if self._idempotent and self.window < self._max_in_flight else self._max_in_flight
        if self.failing or len(self._in_flight) >= most:
            return False
        has_sequence = bool(self._ready) and self._ready[0].base_sequence >= 0
        return has_sequence or len(self._window) < self.window

    @property
    def unanswered(self) -> int:
        """Number of attempts without outcome."""
        return sum(batch.attempt is not None for batch in self._in_flight)

    @property
    def opened_s(self) -> float:
        """Time of the first record without outcome, by time.monotonic(); infinite without one."""
        oldest = next(self._all(), None)
        return math.inf if oldest is None else oldest.opened_s

    @property
    def oldest_refusal(self) -> TidemarkError | None:
        """The error of the last attempt of the oldest batch."""
        oldest = next(self._all(), None)
        return None if oldest is None else oldest.refusal

    def begin(self, identity: ProducerIdentity) -> None:
        """Send the following batches in a transaction of this identity; all earlier batches have their outcomes."""
        assert not len(self), "a transaction begins after the flush or the abort of the last one"
        self._start_over()
        self.identity = identity

    def put(self, batch: PendingBatch) -> bool:
        """Append a closed batch to the queue; False if the batch failed.

        Rows of a deleted topic fail: another topic of the name may have other columns with the same types.
        """
        of = batch.format.topic_id
        self.topic_id = self.topic_id or of
        if of and of != self.topic_id:
            self._resolve(batch, recreated(self.partition.topic))
            return False
        self._ready.append(batch)
        return True

    def take(self, attempt: object) -> PendingBatch | None:
        """Build and return the next batch to send; None if it cannot be built, and has failed."""
        assert self.can_send, "can_send is checked first"
        batch = self._ready.popleft()
        try:
            self._build(batch)
        except TidemarkError as error:
            self._replace(batch, error)
            return None
        except Exception as error:  # noqa: BLE001 - the other batches of the producer continue
            sentence = f"the batch cannot be built: {type(error).__name__}: {error}"
            self._replace(batch, TidemarkError(ErrorCode.INVALID_PAYLOAD, sentence))
            return None
        batch.attempt = attempt
        self._in_flight.append(batch)
        return batch

    def acknowledged(self, batch: PendingBatch, attempt: object, *, base_offset: int, append_time_us: int) -> None:
        """Record the acknowledgement of an attempt."""
        if batch.attempt is not attempt:
            return  # a later attempt's response counts; a duplicate has the same offset
        batch.attempt = None
        self._in_flight.remove(batch)
        self._pass(batch)
        self._resolved.append(Resolved(batch, base_offset, append_time_us, None))
        self._maybe_settle()

    def refused(
        self, batch: PendingBatch, attempt: object, error: TidemarkError, *, lost: bool = False, shared: bool = False
    ) -> None:
        """Record a failed attempt. `lost`: no response arrived. `shared`: other batches of the request failed with this
        batch.
        """
        if batch.attempt is not attempt:
            return
        batch.attempt = None
        batch.refusal = error
        batch.refused_in_company = shared
        batch.in_doubt |= lost or error.code not in _NOT_APPENDED
        self.failing = True
        self._maybe_settle()

    def lose_all(self, error: TidemarkError) -> None:
        """Count all attempts in flight as lost: the partition has another leader."""
        for batch in tuple(self._in_flight):
            if batch.attempt is not None:
                self.refused(batch, batch.attempt, error, lost=True)

    def expire(self, now_s: float, why: Callable[[], str]) -> None:
        """Fail the batches whose delivery timeout has passed; `why` gives the reason in their errors."""
        oldest = next(self._all(), None)
        if oldest is None or oldest.deadline_s > now_s:
            return
        expired = [batch for batch in self._all() if batch.deadline_s <= now_s]
        if any(batch.base_sequence >= 0 or batch.attempt is not None for batch in expired):
            self._break(expired, ErrorCode.REQUEST_TIMED_OUT, f"not acknowledged in time; {why()}")
            return
        sentence = f"not sent in time; {why()}"
        for batch in expired:
            self._ready.remove(batch)
            self._resolve(batch, self._error(batch, ErrorCode.REQUEST_TIMED_OUT, sentence))

    def abandon(self, error: TidemarkError) -> None:
        """Fail all batches: the producer closes, or the topic was deleted."""
        for batch in tuple(self._all()):
            self._resolve(batch, error)
        self._in_flight.clear()
        self._ready.clear()
        self._start_over()

    def take_resolved(self) -> list[Resolved]:
        """Remove and return the outcomes, in order."""
        resolved, self._resolved = self._resolved, []
        return resolved

    # -- private helpers ---------------------------------------------------------------------------------------

    def _all(self) -> Iterator[PendingBatch]:
        return chain(self._in_flight, self._ready)

    def _pass(self, batch: PendingBatch) -> None:
        """Remove a batch from the window when every batch before it is acknowledged."""
        if batch in self._window:
            self._window[batch] = True
        for oldest, acknowledged in tuple(self._window.items()):
            if not acknowledged:
                return
            del self._window[oldest]

    def _build(self, batch: PendingBatch) -> None:
        assert self.identity is not None, "can_send is checked first"
        if batch.base_sequence >= 0 or (batch.data is not None and not self._idempotent):
            return
        sequence = self._next_sequence if self._idempotent else NO_SEQUENCE
        producer_id, producer_epoch = self.identity
        if batch.data is not None:
            batch.data = reseal(
                batch.data, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
            )
        else:
            sealing = Sealing(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                pending=self._transactional,
            )
            batch.build(self._codec, sealing)
            _check_size(batch)
        if self._idempotent:
            batch.base_sequence = sequence
            self._window[batch] = False
            self._next_sequence = (sequence + batch.count) % SEQUENCE_SPACE

    def _maybe_settle(self) -> None:
        """When every attempt has its outcome, prepare the retry of the failed batches, or fail the first or all."""
        if not self.failing or self.unanswered:
            return
        self.failing = False
        self._ready.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        first = self._ready[0] if self._ready else None
        if first is None or (error := first.refusal) is None:
            return
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._break(list(self._ready), error.code, error.message)  # a right is for all batches of the topic
        elif first.refused_in_company:
            return  # a separate retry shows whether this batch is the cause
        elif error.code in _BEHIND_A_GAP:
            # All batches before the first are acknowledged, so the log has lost the state of this producer.
            # A transaction cannot get another producer id.
            failed = [first] if first.in_doubt or self._transactional else []
            self._break(failed, error.code, error.message)
        elif not error.retriable and error.code not in _MISPLACED:
            keeps_identity = not self._transactional or not any(batch.in_doubt for batch in self._ready)
            if names_records(error) and not first.in_doubt and keeps_identity:
                self._take_sequences_back(self._ready.popleft())
                self._replace(first, error)
            else:
                self._break([first], error.code, error.message)

    def _replace(self, batch: PendingBatch, error: TidemarkError) -> None:
        """Put pieces of a batch without sequence at the head; pieces with the records that caused the error fail."""
        parts = split(batch, error)
        for part, refusal in parts:
            if refusal is not None:
                self._resolve(part, self._error(part, refusal.code, refusal.message, refusal.metadata))
        self._ready.extendleft(part for part, refusal in reversed(parts) if refusal is None)

    def _take_sequences_back(self, refused: PendingBatch) -> None:
        """Give the sequences of a batch that is certainly not in the log, and of later ones, to the next batches.

        The batches after this batch are not in the log, since a leader appends no batch after a gap (rule P2). A lost
        attempt of one may still arrive and must not fit after the pieces, so the producer id changes then.
        """
        if not self._idempotent:
            return
        if any(batch.in_doubt for batch in self._ready):
            self._start_over()
            return
        self._next_sequence = refused.base_sequence
        self._window.clear()
        self._forget_attempts()

    def _break(self, failed: list[PendingBatch], code: ErrorCode, sentence: str) -> None:
        """Fail these batches, and other batches in doubt (rule P4); batches that were certainly not appended get new
        sequences.
        """
        for batch in tuple(self._all()):
            if batch in failed:
                self._resolve(batch, self._error(batch, code, sentence))
            elif self._idempotent and (batch.in_doubt or batch.attempt is not None):
                why = f"a previous batch failed, so this one cannot be sent again: {sentence}"
                batch.in_doubt = True
                self._resolve(batch, self._error(batch, code, why))
        kept = [batch for batch in self._all() if not self._is_resolved(batch)]
        if self._idempotent:
            self._in_flight.clear()
            self._ready = deque(kept)
            self._start_over()
            return
        self._in_flight = deque(batch for batch in self._in_flight if not self._is_resolved(batch))
        self._ready = deque(batch for batch in self._ready if not self._is_resolved(batch))

    def _start_over(self) -> None:
        """Require a new producer id; sequences start at 0."""
        self.failing = False
        self.sent_to = None
        self._next_sequence = 0
        self._window.clear()
        if self._idempotent:
            self.identity = None
        self._forget_attempts()

    def _forget_attempts(self) -> None:
        """The batches get other sequences. The caller knows that the log has none of these batches."""
        for batch in self._ready:
            batch.base_sequence, batch.refusal, batch.attempt, batch.in_doubt = NO_SEQUENCE, None, None, False

    def _is_resolved(self, batch: PendingBatch) -> bool:
        return any(resolved.batch is batch for resolved in self._resolved)

    def _resolve(self, batch: PendingBatch, error: TidemarkError) -> None:
        batch.attempt = None
        self._resolved.append(Resolved(batch, -1, -1, error))

    def _error(
        self, batch: PendingBatch, code: ErrorCode, sentence: str, metadata: Mapping[str, str] | None = None
    ) -> TidemarkError:
        doubt = "; it may have been appended" if batch.in_doubt or batch.attempt is not None else ""
        if metadata is None:
            metadata = {} if batch.refusal is None else batch.refusal.metadata
        facts = dict(metadata) | {"in_doubt": str(bool(doubt))}
        return TidemarkError(code, f"{self.partition}: {sentence}{doubt}", facts)


def _check_size(batch: PendingBatch) -> None:
    size_bytes = len(batch.data or b"")
    if size_bytes > BATCH_BYTES_MAX:
        sentence = f"the batch has {size_bytes} bytes, max.message.bytes is {BATCH_BYTES_MAX} at most"
        raise TidemarkError(ErrorCode.BATCH_TOO_LARGE, sentence)
