# SPDX-License-Identifier: Apache-2.0
"""The batches of one partition, in order, from ready to resolved (rules P1, P2, P4). No event loop, no clock.

Up to `max_in_flight` are under way at once. When one fails, nothing more is sent until every attempt under way is
answered or lost; then all that were not acknowledged go again, in order, with the sequences they had. So a retry
neither duplicates nor reorders. Only what surely was not appended may start over under a new producer id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from tidemark.client.producing.batching import PendingBatch
from tidemark.model import NO_PRODUCER, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import NO_SEQUENCE, Codec
from tidemark.record.payload import build_batch, reseal

SEQUENCE_SPACE: Final = 1 << 31
WINDOW_MAX: Final = 5
"""Batches from the oldest that is not acknowledged to the newest ever sent: what a partition remembers (rule P1)."""

_BEHIND_A_GAP: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER_ID})
"""What a batch gets whose predecessor was not appended."""

_MISPLACED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""The broker and we know different topics: one of us has old news, which the metadata will tell."""

_NOT_APPENDED: Final = _BEHIND_A_GAP | {
    ErrorCode.CORRUPT_BATCH,
    ErrorCode.INVALID_BATCH,
    ErrorCode.INVALID_PAYLOAD,
    ErrorCode.RECORD_COUNT_MISMATCH,
    ErrorCode.BATCH_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.NULL_KEY,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_ACKS,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.PARTITION_SEALED,
}
"""Refusals that are given before the append; every other one leaves the batch in doubt."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int


NO_IDENTITY: Final = Identity(NO_PRODUCER, -1)


class Resolved(NamedTuple):
    """What is to be told of a batch."""

    batch: PendingBatch
    base_offset: int
    append_time_us: int
    error: TidemarkError | None


class PartitionQueue:
    """Decides; the sender carries. Only on the client's event loop.

    Invariant: `in_flight` then `ready` is the order in which the records were sent; sequences rise along it without
    a gap from the oldest batch that has one.

    Attributes:
        identity: under which the next batch is built; None: one is needed first.
        failing: something under way failed: nothing is sent until all is answered.
        sent_to: where the batches in flight went, to be compared with where they should go.
    """

    def __init__(
        self, partition: TopicPartition, topic_id: str, *, max_in_flight: int, idempotent: bool, codec: Codec
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.identity: Identity | None = None if idempotent else NO_IDENTITY
        self.failing = False
        self.sent_to: object = None
        self._codec = codec
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight
        self._next_sequence = 0
        self._ready: deque[PendingBatch] = deque()
        self._in_flight: deque[PendingBatch] = deque()
        self._window: dict[PendingBatch, bool] = {}  # sent under this identity; whether acknowledged; oldest is not
        self._resolved: list[Resolved] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._in_flight)

    @property
    def wants_identity(self) -> bool:
        """Whether a producer id is what it waits for."""
        return self.identity is None and bool(self._ready)

    @property
    def can_send(self) -> bool:
        """Whether the next batch may go now."""
        return self.has_room and bool(self._ready) and self.identity is not None

    @property
    def next_goes_again(self) -> bool:
        """Whether the next batch was sent before: it may be in the log, and its answer must be of it alone."""
        return bool(self._ready) and (self._ready[0].base_sequence >= 0 or self._ready[0].refusal is not None)

    @property
    def has_room(self) -> bool:
        """Whether one more batch could be under way."""
        if self.failing or len(self._in_flight) >= self._max_in_flight:
            return False
        has_sequence = bool(self._ready) and self._ready[0].base_sequence >= 0
        return has_sequence or len(self._window) < WINDOW_MAX

    @property
    def under_way(self) -> int:
        """Number of attempts that are not answered."""
        return sum(batch.attempt is not None for batch in self._in_flight)

    @property
    def oldest_refusal(self) -> TidemarkError | None:
        """Why the oldest batch failed the last time."""
        oldest = next(self._all(), None)
        return None if oldest is None else oldest.refusal

    def put(self, batch: PendingBatch) -> None:
        """A closed batch, behind all others."""
        self._ready.append(batch)

    def take(self, attempt: object) -> PendingBatch | None:
        """The next batch to send, built; None when it cannot be built (it is resolved then)."""
        assert self.can_send, "ask can_send first"
        batch = self._ready.popleft()
        try:
            self._build(batch)
        except TidemarkError as error:
            self._resolve(batch, error)
            return None
        batch.attempt = attempt
        self._in_flight.append(batch)
        return batch

    def acknowledged(self, batch: PendingBatch, attempt: object, *, base_offset: int, append_time_us: int) -> None:
        """An attempt is in the log, as safe as the acks ask for."""
        if batch.attempt is not attempt:
            return  # given up or sent again since: the later attempt's answer counts, a duplicate has the same offset
        batch.attempt = None
        self._in_flight.remove(batch)
        self._pass(batch)
        self._resolved.append(Resolved(batch, base_offset, append_time_us, None))
        self._maybe_settle()

    def refused(
        self, batch: PendingBatch, attempt: object, error: TidemarkError, *, lost: bool = False, shared: bool = False
    ) -> None:
        """An attempt failed; `lost`: nobody said so, its stream broke or was given up; `shared`: others with it."""
        if batch.attempt is not attempt:
            return
        batch.attempt = None
        batch.refusal = error
        batch.refused_in_company = shared
        batch.in_doubt |= lost or error.code not in _NOT_APPENDED
        self.failing = True
        self._maybe_settle()

    def lose_all(self, error: TidemarkError) -> None:
        """What is under way is not waited for any more: the leader is another one."""
        for batch in tuple(self._in_flight):
            if batch.attempt is not None:
                self.refused(batch, batch.attempt, error, lost=True)

    def expire(self, now_s: float, why: str) -> None:
        """Give up what has waited beyond its delivery timeout."""
        oldest = next(self._all(), None)
        if oldest is None or oldest.deadline_s > now_s:
            return
        expired = [batch for batch in self._all() if batch.deadline_s <= now_s]
        if any(batch.base_sequence >= 0 or batch.attempt is not None for batch in expired):
            self._break(expired, ErrorCode.REQUEST_TIMED_OUT, f"not acknowledged in time; {why}")
            return
        for batch in expired:
            self._ready.remove(batch)
            self._resolve(batch, self._error(batch, ErrorCode.REQUEST_TIMED_OUT, f"not sent in time; {why}"))

    def abandon(self, error: TidemarkError) -> None:
        """Everything fails: the producer closes, or the topic is gone."""
        for batch in tuple(self._all()):
            self._resolve(batch, error)
        self._in_flight.clear()
        self._ready.clear()
        self._start_over()

    def take_resolved(self) -> list[Resolved]:
        """What is to be told, in order."""
        resolved, self._resolved = self._resolved, []
        return resolved

    # -- inside ----------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[PendingBatch]:
        return chain(self._in_flight, self._ready)

    def _pass(self, batch: PendingBatch) -> None:
        """It needs to be remembered no more, once none before it does."""
        if batch in self._window:
            self._window[batch] = True
        for oldest, acknowledged in tuple(self._window.items()):
            if not acknowledged:
                return
            del self._window[oldest]

    def _build(self, batch: PendingBatch) -> None:
        assert self.identity is not None, "ask can_send first"
        if batch.base_sequence >= 0 or (batch.data is not None and not self._idempotent):
            return
        sequence = self._next_sequence if self._idempotent else NO_SEQUENCE
        producer_id, producer_epoch = self.identity
        if batch.data is not None:
            batch.data = reseal(
                batch.data, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
            )
        else:
            batch.data = build_batch(
                batch.take_rows(),
                codec=self._codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
            )
            batch.rows = None
        if self._idempotent:
            batch.base_sequence = sequence
            self._window[batch] = False
            self._next_sequence = (sequence + batch.count) % SEQUENCE_SPACE

    def _maybe_settle(self) -> None:
        """Once every attempt is answered: what failed goes again in order, or the first of it is refused for good."""
        if not self.failing or self.under_way:
            return
        self.failing = False
        self._ready.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        if not self._ready or self._ready[0].refusal is None:
            return
        first = self._ready[0]
        if first.refused_in_company:
            return  # alone it will show whose fault it was
        error = first.refusal
        assert error is not None
        if error.code in _BEHIND_A_GAP:
            # Nothing is before it any more: the log has lost what it had of us.
            doubtful = [first] if first.in_doubt else []
            self._break(doubtful, error.code, error.message)
        elif not error.retriable and error.code not in _MISPLACED:
            self._break([first], error.code, error.message)

    def _break(self, failed: list[PendingBatch], code: ErrorCode, sentence: str) -> None:
        """Rule P4: sequences of these are missing now. What was surely not appended starts over; the rest fails too."""
        for batch in tuple(self._all()):
            if batch in failed:
                self._resolve(batch, self._error(batch, code, sentence))
            elif self._idempotent and (batch.in_doubt or batch.attempt is not None):
                why = f"a batch before it failed, so that this one cannot be sent again: {sentence}"
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
        """A new producer id, from sequence 0."""
        self.failing = False
        self.sent_to = None
        self._next_sequence = 0
        self._window.clear()
        if self._idempotent:
            self.identity = None
        for batch in self._ready:
            batch.base_sequence, batch.refusal, batch.attempt = NO_SEQUENCE, None, None

    def _is_resolved(self, batch: PendingBatch) -> bool:
        return any(told.batch is batch for told in self._resolved)

    def _resolve(self, batch: PendingBatch, error: TidemarkError) -> None:
        batch.attempt = None
        self._resolved.append(Resolved(batch, -1, -1, error))

    def _error(self, batch: PendingBatch, code: ErrorCode, sentence: str) -> TidemarkError:
        doubt = "; it may have been written all the same" if batch.in_doubt or batch.attempt is not None else ""
        metadata = {} if batch.refusal is None else dict(batch.refusal.metadata)
        return TidemarkError(code, f"{self.partition}: {sentence}{doubt}", metadata | {"in_doubt": str(bool(doubt))})
