# SPDX-License-Identifier: Apache-2.0
"""All replicas of a partition, walked side by side and held against one of them (LOG-MATCH, rule L1).

The leader is the measure where it answers, and its high watermark the end: every replica in sync holds all below. What
looks like a difference is read again, with what the replicas say of themselves then: a cleaner or a deletion may have
passed meanwhile. Memory: one answer of each replica.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from tidemark.client.replicas.comparison import Piece, difference, needs_records
from tidemark.client.replicas.reader import READ_BYTES, Stretch
from tidemark.core.cluster_view import PartitionView
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition

_DISK: Final = (ErrorCode.CORRUPT_BATCH, ErrorCode.STORAGE_ERROR, ErrorCode.REPLICA_OFFLINE)
_HOLES_MAX: Final = 100


class Reads(Protocol):
    """Where replicas are read: client.replica_reader.ReplicaReader."""

    def read(
        self,
        address: str,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        *,
        start: int = 0,
        end: int = 0,
        envelopes_only: bool = True,
        max_bytes: int = READ_BYTES,
    ) -> Stretch:
        """What is in [start, end) of the replica at `address`."""


class Difference(NamedTuple):
    """Broker `broker` holds something else than `measure` does at `offset`; -1 as measure: its own disk is at fault."""

    offset: int
    broker: int
    measure: int
    sentence: str


@dataclass(slots=True)
class Verified:
    """What became of one partition.

    Attributes:
        start, end: the offsets that were compared, end exclusive.
        compared: brokers whose replicas were, up to their own ends.
        behind: of those, the ones that end below `end`, by their ends.
        away: brokers that did not answer, and why.
        holes: offsets of batches that a broker has not and another has, above every cleaner's point of a topic that is
            compacted: a cleaner moves its point when it is through, so this may be what it has done so far.
    """

    partition: TopicPartition
    start: int = 0
    end: int = 0
    batches: int = 0
    read_bytes: int = 0
    compared: list[int] = field(default_factory=list)
    behind: dict[int, int] = field(default_factory=dict)
    away: dict[int, str] = field(default_factory=dict)
    holes: dict[int, list[int]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class _Cursor:
    """A replica on the way: `buffer` holds what was read from `position` on and not compared yet."""

    broker: int
    address: str
    state: Stretch
    end: int
    position: int
    buffer: deque[Piece] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        return not self.buffer and self.position >= self.end


class PartitionVerifier:
    """Compares the replicas of one partition.

    Args:
        reads: how replicas are read.
        partition: which.
        topic_id: of its topic.
        view: its assigned replicas, ISR and leader.
        addresses: of the brokers that are there.
        compacted: whether a cleaner may be at work in the topic.
        whole_bytes: read and compare bytes, not only envelopes and their CRCs.
        on_read: told how many bytes of log a broker has read; may wait, so that brokers have time for others.
    """

    def __init__(
        self,
        reads: Reads,
        partition: TopicPartition,
        topic_id: str,
        view: PartitionView,
        addresses: Mapping[int, str],
        *,
        compacted: bool = False,
        whole_bytes: bool = False,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._reads = reads
        self._identity = ReplicaIdentity(topic_id, view.incarnation)
        self._view = view
        self._addresses = addresses
        self._compacted = compacted
        self._whole_bytes = whole_bytes
        self._on_read = on_read
        self._cursors: list[_Cursor] = []
        self.result = Verified(partition)

    def run(self) -> Verified:
        """Walk until every replica has been compared to its end, or to its first difference."""
        with ThreadPoolExecutor(max(len(self._view.assigned_replicas), 1), "replica-read") as pool:
            self._begin(pool)
            while len(self._cursors) > 1:
                self._fill(pool)
                if len(self._cursors) < 2 or not self._step():
                    break
        return self.result

    # -- where everybody stands ----------------------------------------------------------------------------------------

    def _begin(self, pool: ThreadPoolExecutor) -> None:
        present = [broker for broker in self._view.assigned_replicas if broker in self._addresses]
        for broker in self._view.assigned_replicas:
            if broker not in self._addresses:
                self.result.away[broker] = "it is not registered"
        asked = {broker: pool.submit(self._read, self._addresses[broker]) for broker in present}
        states: dict[int, Stretch] = {}
        for broker, answer in asked.items():
            try:
                states[broker] = answer.result()
            except TidemarkError as error:
                self._lose(broker, error)
        if not states:
            return
        measure = max(states, key=lambda one: _standing(states[one]))
        self.result.start = max(state.log_start_offset for state in states.values())
        self.result.end = states[measure].high_watermark
        for one, state in sorted(states.items(), key=lambda item: item[0] != measure):
            knows = state.log_end_offset if one in self._view.in_sync_replicas else state.high_watermark
            end = min(self.result.end, knows if states[measure].leader else state.high_watermark)
            self._cursors.append(_Cursor(one, self._addresses[one], state, end, self.result.start))
            self.result.compared.append(one)
            if end < self.result.end:
                self.result.behind[one] = end

    def _lose(self, broker: int, error: TidemarkError) -> None:
        """A replica that gives nothing more: its disk's fault, or it is away."""
        if error.code in _DISK:
            offset = int(error.metadata.get("offset", "-1"))
            self.result.differences.append(Difference(offset, broker, -1, error.message))
        else:
            self.result.away[broker] = error.message
        if broker in self.result.compared:
            self.result.compared.remove(broker)
        self._cursors = [one for one in self._cursors if one.broker != broker]

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(
        self, address: str, start: int = 0, end: int = 0, *, whole: bool = False, limit: int = READ_BYTES
    ) -> Stretch:
        return self._reads.read(
            address,
            self.result.partition,
            self._identity,
            start=start,
            end=end,
            envelopes_only=not whole,
            max_bytes=limit,
        )

    @property
    def _clean_offset(self) -> int:
        return max(cursor.state.clean_offset for cursor in self._cursors)

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        """Read on where a cursor has nothing left, from all those brokers at once."""
        clean = self._clean_offset
        asked = []
        for cursor in self._cursors:
            if not cursor.buffer and cursor.position < cursor.end:
                whole = self._whole_bytes or cursor.position < clean
                asked.append(
                    (cursor, pool.submit(self._read, cursor.address, cursor.position, cursor.end, whole=whole))
                )
        for cursor, answer in asked:
            try:
                stretch = answer.result()
            except TidemarkError as error:
                self._lose(cursor.broker, error)
                continue
            cursor.state = stretch._replace(pieces=())
            for piece in stretch.pieces:
                if piece.envelope.next_offset > cursor.position:
                    cursor.buffer.append(piece)
            count = sum(piece.envelope.batch_length for piece in stretch.pieces)
            cursor.position = cursor.buffer[-1].envelope.next_offset if cursor.buffer else cursor.end
            self.result.read_bytes += count
            self._on_read(count)

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Compare the batches at the lowest offset; False when there is none left."""
        heads = [cursor.buffer[0].envelope.base_offset for cursor in self._cursors if cursor.buffer]
        if not heads:
            return False
        base = min(heads)
        measure, *others = self._cursors
        for other in others:
            if self._suspicious(measure, other, base):
                sentence = self._again(measure, other, base)
                if sentence:
                    self.result.differences.append(Difference(base, other.broker, measure.broker, sentence))
                    self._cursors.remove(other)
        for cursor in self._cursors:
            if cursor.buffer and cursor.buffer[0].envelope.base_offset == base:
                cursor.buffer.popleft()
        self.result.batches += 1
        return True

    def _suspicious(self, measure: _Cursor, other: _Cursor, base: int) -> bool:
        mine, its = _at(measure, base), _at(other, base)
        if mine is None and its is None:
            return False
        cleaned = base < max(measure.state.clean_offset, other.state.clean_offset)
        if mine is not None and its is not None:
            if needs_records(mine, its) and (mine.data is None or its.data is None):
                return True
            return bool(self._differ(mine, its, cleaned=cleaned))
        there, lacking = (mine, other) if its is None else (its, measure)
        assert there is not None
        return there.envelope.next_offset <= lacking.end and not cleaned

    def _differ(self, mine: Piece, its: Piece, *, cleaned: bool) -> str:
        if cleaned and mine.envelope != its.envelope and (mine.data is None or its.data is None):
            return "to be read whole"
        try:
            return difference(mine, its, cleaned=cleaned)
        except TidemarkError as error:
            return f"a payload cannot be decoded: {error.message}"

    def _again(self, measure: _Cursor, other: _Cursor, base: int) -> str:
        """What looked different, read once more with its bytes; how it differs now, if it does."""
        found: list[Piece | None] = []
        for cursor in (measure, other):
            try:
                stretch = self._read(cursor.address, base, cursor.end, whole=True, limit=1)
            except TidemarkError as error:
                return f"broker {cursor.broker} does not give it: {error.message}"
            cursor.state = stretch._replace(pieces=())
            if stretch.log_end_offset <= base:  # it was cut: its leader has more, and it fetches that again
                cursor.end = stretch.log_end_offset
                self.result.behind[cursor.broker] = cursor.end
                return ""
            found.append(next((one for one in stretch.pieces if one.envelope.base_offset == base), None))
        if base < max(measure.state.log_start_offset, other.state.log_start_offset):
            return ""
        cleaned = base < max(measure.state.clean_offset, other.state.clean_offset)
        mine, its = found
        if mine is not None and its is not None:
            return self._differ(mine, its, cleaned=cleaned)
        if cleaned or (mine is None and its is None):
            return ""
        lacking = other.broker if its is None else measure.broker
        if self._compacted:
            found_at = self.result.holes.setdefault(lacking, [])
            if len(found_at) < _HOLES_MAX:
                found_at.append(base)
            return ""
        return f"broker {lacking} has no batch there"


def _standing(state: Stretch) -> tuple[bool, int, int]:
    """Whose replica is the measure: the leader's, else the one that knows most."""
    return state.leader, state.leader_epoch, state.high_watermark


def _at(cursor: _Cursor, base: int) -> Piece | None:
    if cursor.buffer and cursor.buffer[0].envelope.base_offset == base:
        return cursor.buffer[0]
    return None


def partitions_of(count: int, wanted: Sequence[int]) -> Iterator[int]:
    """The partitions that are wanted, all where none is named; raises UNKNOWN_PARTITION."""
    for index in wanted:
        if not 0 <= index < count:
            raise TidemarkError(ErrorCode.UNKNOWN_PARTITION, f"there are partitions 0 to {count - 1}, no {index}")
    yield from wanted or range(count)
