# SPDX-License-Identifier: Apache-2.0
"""Compares all replicas of a partition with one of them (LOG-MATCH, rule L1).

The reference is the leader's replica if the leader answers, up to its high watermark, below which every in-sync replica
has all records. An apparent difference is read again together with the replicas' offsets, because a cleaner or a
deletion may have changed a replica between the reads. Memory: one response of each replica.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidemark.client.replicas.comparison import Layouts, Piece, difference, needs_records
from tidemark.client.replicas.reader import READ_BYTES, BrokerAddress, ReplicaReader, Stretch
from tidemark.core.cluster_view import PartitionView
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition

_DISK: Final = (ErrorCode.CORRUPT_BATCH, ErrorCode.STORAGE_ERROR, ErrorCode.REPLICA_OFFLINE)
_HOLES_MAX: Final = 100


class Difference(NamedTuple):
    """Replica of `broker` differs from that of `measure` at `offset`; measure -1: the broker's disk is damaged."""

    offset: int
    broker: int
    measure: int
    sentence: str


@dataclass(slots=True)
class Verified:
    """The result for one partition.

    Attributes:
        partition: the partition.
        start: first compared offset, inclusive.
        end: end of the compared offsets, exclusive.
        batches: number of compared batches.
        read_bytes: bytes of log that brokers read.
        compared: brokers whose replicas were compared, each up to its own end.
        behind: ends of the compared replicas that end below `end`, by broker.
        away: errors of brokers that did not answer, by broker.
        holes: offsets of batches that only other brokers have, by broker, above the cleaner points of a compacted
            topic. A cleaner raises the cleaner point at its end, so a running cleaner may have removed these batches.
        differences: the differences.
        repaired: brokers that repaired damaged batches, each with the offset where the damage began.
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
    repaired: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Cursor:
    """Progress in one replica: `buffer` has the batches that were read and not compared; `position` is their end."""

    broker: int
    address: BrokerAddress
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
        reads: reads replicas.
        partition: the partition.
        topic_id: id of its topic.
        view: its assigned replicas, ISR and leader.
        addresses: of live brokers.
        compacted: whether the topic is compacted.
        layouts: layouts of the schema versions of a typed topic; without them only offsets and times of cleaned rows
            count.
        whole_bytes: read and compare all bytes, not only envelopes and their CRCs.
        on_read: called with the bytes of log that a broker has read; may block, to limit the rate.
    """

    def __init__(
        self,
        reads: ReplicaReader,
        partition: TopicPartition,
        topic_id: str,
        view: PartitionView,
        addresses: Mapping[int, BrokerAddress],
        *,
        compacted: bool = False,
        layouts: Layouts | None = None,
        whole_bytes: bool = False,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._reads = reads
        self._identity = ReplicaIdentity(topic_id, view.incarnation)
        self._view = view
        self._addresses = addresses
        self._compacted = compacted
        self._layouts = layouts or {}
        self._whole_bytes = whole_bytes
        self._on_read = on_read
        self._cursors: list[_Cursor] = []
        self.result = Verified(partition)

    def run(self) -> Verified:
        """Compare every replica up to its end, or to its first difference."""
        with ThreadPoolExecutor(max(len(self._view.assigned_replicas), 1), "replica-read") as pool:
            self._begin(pool)
            while len(self._cursors) > 1:
                self._fill(pool)
                if len(self._cursors) < 2 or not self._step():
                    break
        return self.result

    # -- offsets of the replicas ---------------------------------------------------------------------------------------

    def _begin(self, pool: ThreadPoolExecutor) -> None:
        present = [broker for broker in self._view.assigned_replicas if broker in self._addresses]
        for broker in self._view.assigned_replicas:
            if broker not in self._addresses:
                self.result.away[broker] = "the broker is not registered"
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
        """Drop a replica that cannot be read: its disk is damaged, or its broker does not answer."""
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
        self, address: BrokerAddress, start: int = 0, end: int = 0, *, whole: bool = False, limit: int = READ_BYTES
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
        """Read the next batches for every empty buffer, from all these brokers at the same time."""
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
            self.result.repaired += [(cursor.broker, offset) for offset in stretch.repaired_offsets]
            for piece in stretch.pieces:
                if piece.envelope.next_offset > cursor.position:
                    cursor.buffer.append(piece)
            count = sum(piece.envelope.batch_length for piece in stretch.pieces)
            cursor.position = cursor.buffer[-1].envelope.next_offset if cursor.buffer else cursor.end
            self.result.read_bytes += count
            self._on_read(count)

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Compare the batches at the lowest offset; False without any."""
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
            return "to be read again with records"
        try:
            return difference(mine, its, cleaned=cleaned, layouts=self._layouts)
        except TidemarkError as error:
            return f"a payload cannot be decoded: {error.message}"

    def _again(self, measure: _Cursor, other: _Cursor, base: int) -> str:
        """Read both batches again with their bytes and describe the difference; "" if there is none now."""
        found: list[Piece | None] = []
        for cursor in (measure, other):
            try:
                stretch = self._read(cursor.address, base, cursor.end, whole=True, limit=1)
            except TidemarkError as error:
                return f"broker {cursor.broker} cannot read the batch: {error.message}"
            cursor.state = stretch._replace(pieces=())
            if stretch.log_end_offset <= base:  # truncated: the follower fetches it again from its leader
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
        return f"broker {lacking} has no batch at this offset"


def _standing(state: Stretch) -> tuple[bool, int, int]:
    """Sort key of the reference: the leader's replica first, then the highest epoch and high watermark."""
    return state.leader, state.leader_epoch, state.high_watermark


def _at(cursor: _Cursor, base: int) -> Piece | None:
    if cursor.buffer and cursor.buffer[0].envelope.base_offset == base:
        return cursor.buffer[0]
    return None


def partitions_of(count: int, wanted: Sequence[int]) -> Iterator[int]:
    """Yield the wanted partitions (empty: all); raises UNKNOWN_PARTITION."""
    for index in wanted:
        if not 0 <= index < count:
            raise TidemarkError(ErrorCode.UNKNOWN_PARTITION, f"there are partitions 0 to {count - 1}, no {index}")
    yield from wanted or range(count)
