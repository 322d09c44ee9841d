# SPDX-License-Identifier: Apache-2.0
"""One data partition of the simulated transactions: its log, its leaderships, its open transactions and its readers.

Replication is reduced to its result. The log has a committed part and a tail. A change of leadership keeps any part of
the tail. A batch is committed some time after its append, in order, while its leader runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Attributes, Batch, Envelope
from tidemark.record.markers import EndMarker
from tidemark.record.transactions import AbortedBatches, AbortedTransaction

from tests.simulation.transactions.replica_state import ReplicaState

if TYPE_CHECKING:
    from tests.simulation.transactions.brokers import BrokerNode
    from tests.simulation.transactions.world import TransactionWorld

TOPIC = "orders"


class Tag(NamedTuple):
    """A transaction from the view of its client, with all identities of its writes: a transactional id, the process,
    and its number there. Of a sink's member: the driver's batch and `member` in addition.
    """

    name: str
    client: str
    serial: int
    member: str = ""


Source = tuple[int, int]
"""Partition and offset of an input record."""


class Row(NamedTuple):
    """One record; `number` rises with the records that its process sends to a partition; `source`: its input."""

    tag: Tag
    number: int
    source: Source | None = None


class Entry(NamedTuple):
    """One batch of one record, or a marker; the offset is its index in the log. A record of a group has its bytes."""

    envelope: Envelope
    row: Row | None = None
    marker: EndMarker | None = None
    data: bytes = b""

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.envelope.producer_id, self.envelope.producer_epoch)


def data_entry(producer: ProducerIdentity, sequence: int, row: Row) -> Entry:
    """A pending batch that no leader has stamped."""
    return Entry(_envelope(producer, sequence, Attributes.PENDING), row)


def group_entry(batch: Batch) -> Entry:
    """A record of a group coordinator that no leader has stamped."""
    return Entry(batch.envelope, data=batch.data)


def marker_entry(producer: ProducerIdentity, commit: bool, coordinator_epoch: int) -> Entry:
    """A marker that no leader has stamped."""
    envelope = _envelope(producer, -1, Attributes.PENDING | Attributes.CONTROL)
    return Entry(envelope, None, EndMarker(commit, coordinator_epoch))


def _envelope(producer: ProducerIdentity, sequence: int, attributes: int) -> Envelope:
    return Envelope(0, 0, 0, 64, 0, 1, 0, int(attributes), 1, 0, sequence, 0, *producer, 0)


class Read(NamedTuple):
    """An answer to a read_committed fetch."""

    entries: Sequence[Entry]
    aborted: tuple[AbortedTransaction, ...]
    last_stable_offset: int


def visible(read: Read) -> list[tuple[int, Row]]:
    """The rows of an answer that an application gets, with their offsets (rule X4)."""
    aborted = AbortedBatches(read.aborted)
    return [
        (entry.envelope.base_offset, entry.row)
        for entry in read.entries
        if entry.row is not None and entry.envelope not in aborted
    ]


class PartitionLog:
    """One incarnation of a partition, from its creation to its deletion.

    Attributes:
        entries: the log as its present leader has it.
        high_watermark: entries below are committed.
        leader_epoch: of the present leadership.
        deleted: the topic was deleted.
    """

    def __init__(self, world: TransactionWorld, key: TransactionPartition) -> None:
        self.key = key
        self.entries: list[Entry] = []
        self.high_watermark = 0
        self.leader: BrokerNode | None = None
        self.leader_epoch = 0
        self.deleted = False
        self.state = ReplicaState()
        self._world = world
        self._epoch_start = 0
        self._waiting: list[tuple[int, Callable[[TidemarkError | None], None]]] = []

    def lead(self, broker: BrokerNode) -> None:
        """Begin another leadership, of a replica that has opened or truncated its log.

        The log keeps any part of the tail.
        """
        dice = self._world.engine.dice(f"tail {self.key.partition}")
        kept = dice.randrange(len(self.entries) - self.high_watermark + 1)
        del self.entries[self.high_watermark + kept :]
        waiting, self._waiting = self._waiting, []
        for _, reply in waiting:
            reply(TidemarkError(ErrorCode.NOT_LEADER, "the leader has changed"))
        self.leader, self.leader_epoch = broker, self.leader_epoch + 1
        self._epoch_start = len(self.entries)
        if self._world.engine.dice(f"opened {self.key.partition}").random() < 0.5:
            self.state = ReplicaState(self.entries)
        else:
            self.state.truncate(self.entries)
        self._commit_later()

    def append(self, entry: Entry, reply: Callable[[TidemarkError | None], None]) -> None:
        """Append at the leader; `reply` gets None when the entry is committed."""
        envelope = entry.envelope._replace(base_offset=len(self.entries), leader_epoch=self.leader_epoch)
        stamped = entry._replace(envelope=envelope)
        self.state.observe([stamped])
        self.entries.append(stamped)
        self.when_committed(len(self.entries), reply)
        self._commit_later()

    def when_committed(self, end: int, reply: Callable[[TidemarkError | None], None]) -> None:
        """`reply` gets None when the entries below `end` are committed."""
        if end <= self.high_watermark:
            reply(None)
        else:
            self._waiting.append((end, reply))

    def _commit_later(self) -> None:
        assert self.leader is not None
        epoch, end = self.leader_epoch, len(self.entries)
        delay_ms = self._world.engine.dice(f"replicate {self.key.partition}").choice((1, 1, 1, 2, 5, 60))
        self.leader.after(delay_ms, lambda: self._commit(epoch, end))

    def _commit(self, epoch: int, end: int) -> None:
        if epoch != self.leader_epoch or end <= self.high_watermark or self.deleted:
            return
        for entry in self.entries[self.high_watermark : end]:
            self._world.invariants.committed(self, entry)
        self.high_watermark = end
        self.state.commit(end)
        done = [one for one in self._waiting if one[0] <= end]
        self._waiting = [one for one in self._waiting if one[0] > end]
        for _, reply in done:
            reply(None)

    def read(self, position: int, rows_max: int, *, follower: bool) -> Read | None:
        """A read_committed fetch from the leader, or from a follower with a shorter log; None: not now."""
        high_watermark, state, log_end = self.high_watermark, self.state, len(self.entries)
        if follower:
            dice = self._world.engine.dice(f"follower {self.key.partition}")
            high_watermark = dice.randrange(max(0, high_watermark - 5), high_watermark + 1)
            log_end = dice.randrange(high_watermark, log_end + 1)
            opened_with = dice.choice((0, high_watermark, log_end))
            state = ReplicaState(self.entries[:opened_with])
            state.observe(self.entries[opened_with:log_end])
            state.commit(high_watermark)
        elif high_watermark < self._epoch_start:
            return None
        stable = state.last_stable_offset(high_watermark)
        if stable is None:
            return None
        end = min(stable, position + rows_max)
        if end <= position:
            return Read((), (), stable)
        return Read(self.entries[position:end], state.aborted(position, end), stable)
