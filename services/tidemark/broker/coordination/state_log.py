# SPDX-License-Identifier: Apache-2.0
"""One leadership of one partition of an internal topic: reads and appends of its records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.broker.clients.fetch import Purgatory
from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.clients.read_replica import damaged_offset
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.node.session_lease import Lease
from tidemark.core.pending_writes import PendingWrites, Writer
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import NO_PRODUCER, ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.ports import Clock, Log
from tidemark.record.envelope import Attributes, Batch, parse_envelope, split_batches
from tidemark.record.markers import read_marker
from tidemark.record.payload import build_own_batch, read_batch
from tidemark.rpc.channel import SPLIT_BYTES

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 << 20
_BATCH_BYTES: Final = 512 << 10
BATCH_BYTES_MAX: Final = SPLIT_BYTES
"""The largest value of `max.message.bytes`."""
_CHECK_S: Final = 0.5

_C = TypeVar("_C")


class RecordFormat(NamedTuple, Generic[_C]):
    """The records of an internal topic.

    Attributes:
        encode: key and value of a change; the value is None for a tombstone.
        decode: the change of a record; None for a kind of record of a later version. Raises INVALID_PAYLOAD.
        noun: names the records in logs and errors: "groups".
    """

    encode: Callable[[_C], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], _C | None]
    noun: str


class InTransaction(NamedTuple):
    """The transaction that records are written in (rule X17)."""

    transactional_id: str
    writer: Writer


class Records(list[_C]):
    """The last change of each key.

    Attributes:
        pending: changes of open transactions, in their order.
    """

    pending: Sequence[tuple[Writer, Sequence[_C]]] = ()


class StateLogs(NamedTuple):
    """The broker's parts that every `StateLog` uses; `suspect` has the damaged batch at an offset repaired."""

    queries: BrokerQueries
    threads: LogThreads
    pool: ThreadPoolExecutor
    purgatory: Purgatory
    appends: InternalAppends
    lease: Lease
    clock: Clock
    suspect: Callable[[TopicPartition, int], None]


class StateLog(Generic[_C]):
    """An instance is valid for one leader epoch. Afterwards every call raises NOT_COORDINATOR."""

    def __init__(
        self, logs: StateLogs, records: RecordFormat[_C], partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> None:
        self._logs = logs
        self._records = records
        self.partition = partition
        self.leader_epoch = leader_epoch

    async def read(self) -> Records[_C]:
        """Read all records, once all are committed: the records of earlier leaders are then final.

        Raises:
            TidemarkError: NOT_COORDINATOR; CORRUPT_BATCH for a damaged batch, which is repaired meanwhile (rule T6);
                STORAGE_ERROR.
        """
        while True:
            changed = self._logs.purgatory.watch([self.partition])
            try:
                end = self._decided_end()
                if end is not None:
                    break
                await self._logs.purgatory.wait(changed, _CHECK_S)
            finally:
                self._logs.purgatory.forget([self.partition], changed)
        log = self._logs.threads.log(self.partition)
        if log is None:
            raise self.over()
        start = self._led().log.log_start_offset
        loop = asyncio.get_running_loop()
        try:
            changes = await loop.run_in_executor(self._logs.pool, self._changes_in, log, start, end)
        except TidemarkError as error:
            offset = damaged_offset(error, start)
            if offset is not None:
                self._logs.suspect(self.partition, offset)
            raise
        self.check()
        return changes

    async def write(
        self,
        changes: list[_C],
        timeout_s: float,
        transaction: InTransaction | None,
        on_appended: Callable[[], None],
    ) -> None:
        """Append records and return when they are committed. Records of a transaction become pending batches.

        `on_appended` is called when the leader's log has the records. A record that is appended later comes after them.

        Raises:
            TidemarkError: the errors of `InternalAppends.append`; BATCH_TOO_LARGE, before any append, if followers
                could not copy a batch.
        """
        now_us = self._logs.clock.wall_us()
        batches = (
            await asyncio.to_thread(self._batches_of, changes, now_us, transaction)
            if len(changes) > 1000
            else self._batches_of(changes, now_us, transaction)
        )
        for batch in batches:
            if len(batch.data) > BATCH_BYTES_MAX:
                raise TidemarkError(
                    ErrorCode.BATCH_TOO_LARGE,
                    f"{self.partition}: a record of {len(batch.data)} bytes is not written, followers accept at most "
                    f"{BATCH_BYTES_MAX}: no replica could stay in sync",
                )
        try:
            transactional_id = "" if transaction is None else transaction.transactional_id
            await self._logs.appends.append(
                self.partition,
                self.leader_epoch,
                batches,
                timeout_s,
                on_appended=on_appended,
                transactional_id=transactional_id,
            )
        except TidemarkError as error:
            if error.code in (ErrorCode.NOT_LEADER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH):
                raise self.over() from error
            raise

    def check(self) -> None:
        """Check that this broker still leads the partition under its lease; raises NOT_COORDINATOR."""
        self._led()
        if not self._logs.lease.covers(self.partition):
            raise self.over()

    def check_writable(self) -> None:
        """Check, before a change, that its records could be written; raises NOT_COORDINATOR, NOT_ENOUGH_REPLICAS."""
        state = self._led().state
        in_sync = len(state.isr_ids)
        if in_sync < state.min_isr:
            raise TidemarkError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.partition} has {in_sync} replicas in sync and needs {state.min_isr}: no change of its "
                f"{self._records.noun} can be committed now; retry",
            )

    def over(self) -> TidemarkError:
        """The error of calls after the leadership: NOT_COORDINATOR."""
        return TidemarkError(
            ErrorCode.NOT_COORDINATOR,
            f"this broker does not lead {self.partition} any more; find the coordinator again",
        )

    def _decided_end(self) -> Offset | None:
        leader = self._led()
        try:
            stated = self._logs.queries.stated_offsets(
                self.partition, topic_id="", current_leader_epoch=self.leader_epoch, now_ms=self._logs.clock.now_ms()
            )
        except TidemarkError as error:
            if error.code is ErrorCode.OFFSET_NOT_AVAILABLE:
                return None
            raise self.over() from error
        return stated.high_watermark if stated.high_watermark >= leader.log.next_offset else None

    def _led(self) -> PartitionLeader:
        try:
            return self._logs.queries.leader(self.partition, "", self.leader_epoch)
        except TidemarkError as error:
            raise self.over() from error

    def _batches_of(
        self, changes: list[_C], now_us: int, transaction: InTransaction | None = None
    ) -> tuple[Batch, ...]:
        producer_id, producer_epoch = (NO_PRODUCER, -1) if transaction is None else transaction.writer
        batches: list[Batch] = []
        keys: list[bytes] = []
        values: list[bytes | None] = []
        size_bytes = 0
        for index, change in enumerate(changes):
            key, value = self._records.encode(change)
            keys.append(key)
            values.append(value)
            size_bytes += len(key) + len(value or b"")
            if size_bytes >= _BATCH_BYTES or index == len(changes) - 1:
                data = build_own_batch(
                    keys,
                    values,
                    now_us,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    attributes=Attributes.NONE if transaction is None else Attributes.PENDING,
                )
                batches.append(Batch(parse_envelope(data), data))
                keys, values, size_bytes = [], [], 0
        return tuple(batches)

    def _changes_in(self, log: Log, start: Offset, end: Offset) -> Records[_C]:
        """The last value of each key; earlier values are replaced.

        Raises:
            TidemarkError: CORRUPT_BATCH (metadata offset), STORAGE_ERROR, OFFSET_OUT_OF_RANGE.
        """
        last: dict[bytes, bytes | None] = {}
        pending: PendingWrites[bytes, bytes | None] = PendingWrites()
        offset = start
        try:
            while offset < end:
                data = log.read(offset, end_offset=end, max_bytes=_READ_BYTES)
                if not data:
                    break
                for batch in split_batches(data):
                    _take_in(batch, last, pending)
                    offset = Offset(batch.envelope.next_offset)
        except TidemarkError as error:
            raise TidemarkError(error.code, error.message, {**error.metadata, "offset": str(offset)}) from error
        found = Records(self._all_decoded((key, value) for key, value in last.items() if value is not None))
        found.pending = [(writer, self._all_decoded(values)) for writer, values in pending.by_producer()]
        return found

    def _all_decoded(self, values: Iterable[tuple[bytes, bytes | None]]) -> list[_C]:
        changes = (self._decoded(key, value) for key, value in values)
        return [change for change in changes if change is not None]

    def _decoded(self, key: bytes, value: bytes | None) -> _C | None:
        """The change of a record; None, logged, for a record that does not parse: other keys are not affected."""
        try:
            return self._records.decode(key, value)
        except TidemarkError as error:
            _log.error("a record of %s does not parse", self._records.noun, extra={"why": error.message})
            return None


def _take_in(batch: Batch, last: dict[bytes, bytes | None], pending: PendingWrites[bytes, bytes | None]) -> None:
    envelope = batch.envelope
    if envelope.is_control or not envelope.record_count:
        marker = read_marker(batch)
        if marker is not None:
            last.update(pending.end(envelope.producer_id, envelope.producer_epoch, commit=marker.commit))
        return
    rows = read_batch(batch)
    columns = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
    values = [(key, value) for key, value in columns if key is not None]
    if envelope.is_pending:
        pending.add(Writer(envelope.producer_id, envelope.producer_epoch), values)
        return
    last.update(values)
    if pending:
        for key, _ in values:
            pending.overwrite(key)
