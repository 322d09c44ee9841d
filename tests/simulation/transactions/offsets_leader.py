# SPDX-License-Identifier: Apache-2.0
"""The group coordinator of one simulated broker: the shipping core, records and replay, in a driver (rule X17).

The driver does as `broker.coordination.shard.Shard` and `broker.groups.group_shard.GroupShard`. The driver writes in
order, and answers when the records are committed. A refused write of a transaction fails alone, and after any other
failure the state is loaded again. Markers that arrive during the load are applied after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidemark.broker.coordination.state_log import InTransaction, Records, StateLog
from tidemark.broker.groups import group_shard
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.offsets import Commit
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import Change, TopicFacts
from tidemark.core.internal_topics import OFFSETS_TOPIC
from tidemark.core.pending_writes import Writer
from tidemark.core.transactions.requests import Addition
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.record.envelope import stamp
from tidemark.record.markers import build_marker

from tests.simulation.transactions.partition_log import Entry, PartitionLog, group_entry

if TYPE_CHECKING:
    from tests.simulation.transactions.brokers import BrokerNode
    from tests.simulation.transactions.world import TransactionWorld

INPUT = "input"
INPUT_ID = "input-id"
INPUTS = 3
SESSION_MS = 600
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
_SETTINGS = GroupSettings(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
_SWEEP_MS = 50
_STOOD_STILL_MS = 100

Reply = Callable[[Any], None]
GroupRequest = Callable[[GroupCoordinator, Situation], Outcome[Any]]


class _Write(NamedTuple):
    """Records that are written together; each of `waiting` gets None, or the error."""

    changes: Sequence[Change]
    transaction: InTransaction | None
    waiting: list[Callable[[TidemarkError | None], None]]


class OffsetsLeader:
    """Coordinates the group while its broker leads the partition of `__consumer_offsets`."""

    def __init__(self, world: TransactionWorld, broker: BrokerNode) -> None:
        self.next_write_fails = False
        self._world = world
        self._broker = broker
        self._core: GroupCoordinator | None = None
        self._epoch = -1
        self._loads = 0
        self._writes: deque[_Write] = deque()
        self._markers: list[tuple[int, int, bool]] = []
        self._due_ms = 0

    @property
    def _log(self) -> PartitionLog:
        assert self._world.offsets is not None
        return self._world.offsets

    @property
    def _leads(self) -> bool:
        """Whether this coordinator leads, by its lease; a deposed coordinator does not answer."""
        return self._log.leader is self._broker and self._log.leader_epoch == self._epoch

    def lead(self) -> None:
        """The broker leads the partition in another epoch."""
        self._epoch = self._log.leader_epoch
        self.next_write_fails = False
        self._due_ms = self._broker.engine.now + _SWEEP_MS
        self._writes.clear()
        self._load()

    # -- requests ------------------------------------------------------------------------------------------------

    def change(self, request: GroupRequest, reply: Reply) -> None:
        """Change as `Shard.change`, and for a request without changes as `Shard.read`."""
        core = self._core
        if not self._leads or core is None:
            reply(TidemarkError(ErrorCode.COORDINATOR_LOADING, "not here, or not yet"))
            return
        try:
            outcome = request(core, self._situation())
        except TidemarkError as error:
            self._world.refused[error.code] += 1
            reply(error)
            return
        if outcome.changes:
            self._write(_Write(outcome.changes, None, []))
        plain = next((one for one in reversed(self._writes) if one.transaction is None), None)

        def settled(error: TidemarkError | None) -> None:
            reply(outcome.answer if error is None and self._leads else error or _not_coordinator())

        if plain is None:
            settled(None)
        else:
            plain.waiting.append(settled)

    def commit_in_transaction(self, commit: Commit, name: str, producer: ProducerIdentity, reply: Reply) -> None:
        """Commit as `GroupService`: the partition is added to the transaction, then its records have the offsets."""
        if not self._leads or self._core is None:
            reply(TidemarkError(ErrorCode.COORDINATOR_LOADING, "not here, or not yet"))
            return
        epoch, transaction = self._epoch, InTransaction(name, Writer(*producer))

        def added() -> None:
            if self._epoch != epoch:
                reply(_not_coordinator())
            else:
                self._commit_pending(commit, transaction, reply)

        if self._log.state.producers.has_open(*producer):
            added()
        else:
            self._broker.verify(Addition(name, producer, (self._log.key,)), added, reply)

    def _commit_pending(self, commit: Commit, transaction: InTransaction, reply: Reply) -> None:
        """Change as `Shard.change_in_transaction`."""
        core = self._core
        if not self._leads or core is None:
            reply(_not_coordinator())
            return
        try:
            outcome = core.commit_in_transaction(commit, transaction.writer, self._situation())
        except TidemarkError as error:
            self._world.refused[error.code] += 1
            reply(error)
            return

        def written(error: TidemarkError | None) -> None:
            if error is not None and self._core is core:
                core.take_back(outcome.answer)
            reply(outcome.answer.refused if error is None and self._leads else error or _not_coordinator())

        if outcome.changes:
            self._write(_Write(outcome.changes, transaction, [written]))
        else:
            written(None)

    def on_marker(self, producer_id: int, marker_epoch: int, *, commit: bool) -> None:
        """A marker in the partition is committed."""
        if self._core is None:
            self._markers.append((producer_id, marker_epoch, commit))
        else:
            self._core.end_transaction(producer_id, marker_epoch, commit=commit)

    # -- writes --------------------------------------------------------------------------------------------------

    def _write(self, write: _Write) -> None:
        self._writes.append(write)
        if len(self._writes) == 1:
            self._write_next()

    def _write_next(self) -> None:
        write, delay_ms = self._writes[0], self._broker.engine.dice("group write").choice((0, 1, 5, 30))
        self._broker.after(delay_ms, lambda: self._append(write))

    def _is_next(self, write: _Write) -> bool:
        return bool(self._writes) and self._writes[0] is write

    def _append(self, write: _Write) -> None:
        if not self._is_next(write):
            return
        if not self._leads:
            self._give_up(_not_coordinator())
            return
        entries = entries_of(write.changes, write.transaction)
        try:
            for entry in entries:
                self._log.state.producers.check(entry.envelope)
        except TidemarkError as error:
            self._world.refused[error.code] += 1
            self._done(write, error)
            return
        lost = self.next_write_fails
        if lost:
            self.next_write_fails = False
            del entries[self._broker.engine.dice("group cut").randrange(len(entries) + 1) :]
        for index, entry in enumerate(entries):
            last = index == len(entries) - 1 and not lost
            self._log.append(entry, self._committed(write) if last else lambda _: None)
        if lost:
            self._give_up(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown"))

    def _committed(self, write: _Write) -> Callable[[TidemarkError | None], None]:
        def committed(error: TidemarkError | None) -> None:
            if not self._is_next(write):
                return
            if error is None:
                self._done(write, None)
            else:
                self._give_up(error)

        return lambda error: self._broker.run(lambda: committed(error))

    def _done(self, write: _Write, error: TidemarkError | None) -> None:
        self._writes.popleft()
        if self._writes:
            self._write_next()
        for then in write.waiting:
            then(error)

    def _give_up(self, error: TidemarkError) -> None:
        """Load the state again; a write in flight may be in the log, or missing."""
        writes, self._writes = self._writes, deque()
        self._load()
        for write in writes:
            for then in write.waiting:
                then(error)

    # -- loads ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._core, self._markers = None, []
        self._loads += 1
        number = self._loads
        self._broker.after(self._broker.engine.dice("group load").choice((5, 20, 200)), lambda: self._read(number))

    def _read(self, number: int) -> None:
        """The records of earlier leaders are final when all of the log is committed."""
        if not self._leads or self._loads != number:
            return
        if self._log.high_watermark < len(self._log.entries):
            self._broker.after(5, lambda: self._read(number))
            return
        records = read_records(self._log)
        delay_ms = self._broker.engine.dice("group replay").choice((0, 1, 30))
        self._broker.after(delay_ms, lambda: self._loaded(number, records))

    def _loaded(self, number: int, records: Records[Change]) -> None:
        if not self._leads or self._loads != number:
            return
        self._core = group_shard._replay(records, self._situation())
        markers, self._markers = self._markers, []
        for producer_id, marker_epoch, commit in markers:
            self.on_marker(producer_id, marker_epoch, commit=commit)
        self._sweep(number)

    def _sweep(self, number: int) -> None:
        """Time out sessions; time for which the process was stopped does not count."""
        core = self._core
        if not self._leads or self._loads != number or core is None:
            return
        late_ms = self._broker.engine.now - self._due_ms
        self._due_ms = self._broker.engine.now + _SWEEP_MS
        if late_ms > _STOOD_STILL_MS:
            core.excuse(late_ms)
        changes = (*core.remove_overdue(self._situation()).changes, *core.refresh_topics(self._situation()).changes)
        if changes:
            self._write(_Write(changes, None, []))
        self._broker.after(_SWEEP_MS, lambda: self._sweep(number))

    def _situation(self) -> Situation:
        return _group_situation(self._world)


class _Bytes(NamedTuple):
    """The log as bytes, as `StateLog` reads it, in one read."""

    data: bytes

    def read(self, offset: int, **_: int) -> bytes:
        return b"" if offset else self.data


def state_log() -> StateLog[Change]:
    """The shipping format of the records, without a broker."""
    return StateLog(cast("Any", None), group_shard.GROUP_RECORDS, OFFSETS, LeaderEpoch(1))


def entries_of(changes: Iterable[Change], transaction: InTransaction | None) -> list[Entry]:
    """A batch for each record: a failure keeps any number of the first ones."""
    records = state_log()
    return [group_entry(records._batches_of([change], 0, transaction)[0]) for change in changes]


def read_records(log: PartitionLog) -> Records[Change]:
    """All records of the log, by the code that ships."""
    data = b"".join(_bytes_of(entry) for entry in log.entries)
    return state_log()._changes_in(cast("Any", _Bytes(data)), Offset(0), Offset(len(log.entries)))


def group_at(log: PartitionLog, world: TransactionWorld) -> GroupCoordinator:
    """The state that a new coordinator finds in the log."""
    return group_shard._replay(read_records(log), _group_situation(world))


def _group_situation(world: TransactionWorld) -> Situation:
    now = world.situation()
    return Situation({INPUT: TopicFacts(INPUT_ID, INPUTS)}, _SETTINGS, now.now_ms, now.wall_ms)


def _bytes_of(entry: Entry) -> bytes:
    envelope, data = entry.envelope, entry.data
    if entry.marker is not None:
        identity = {"producer_id": envelope.producer_id, "producer_epoch": envelope.producer_epoch}
        data = build_marker(**identity, marker=entry.marker, timestamp_us=0)
    head = stamp(data, base_offset=envelope.base_offset, leader_epoch=envelope.leader_epoch)
    return head + data[len(head) :]


def _not_coordinator() -> TidemarkError:
    return TidemarkError(ErrorCode.NOT_COORDINATOR, "another broker coordinates the group now")
