# SPDX-License-Identifier: Apache-2.0
"""A process that writes transactions; each depends on records that the process has read.

One kind reads the records of its topic. The other kind is a member of a group that reads an input, and commits its
offsets with its records (rule X17).
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tidemark.client import Consumer, PartitionBatch, Producer
from tidemark.client.sync.transaction import Transaction
from tidemark.model import ErrorCode, TidemarkError

from tests.chaos.checks.transaction_history import End, TransactionJournal
from tests.chaos.clients import request_ms

TIMEOUT_MS = 10_000
"""Timeout of a transaction, in milliseconds: the time for which an abandoned transaction delays readers."""
_DELIVERY_S = 60.0
_ABORTS = 0.15
_THINKS = 0.1
_SEEN_MAX = 20
_PAUSE_S = 0.05
_OFFSETS_REFUSED = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER,
        ErrorCode.PARTITION_NOT_ASSIGNED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Errors after which the transaction can only be aborted: other members read the partitions, or it timed out."""
_UNANSWERED = frozenset({ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})

_T = TypeVar("_T")


def _unanswered(error: TidemarkError) -> bool:
    return error.code in _UNANSWERED


def _in_doubt(error: TidemarkError) -> bool:
    return error.metadata.get("in_doubt") == "True"


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """The arguments of a process.

    Attributes:
        name: transactional id.
        life: unique id among all processes of the round.
        group: reads the topic `input`, and its offsets commit with the records; "": no input.
    """

    bootstrap: str
    topic: str
    partitions: int
    name: str
    life: str
    journal: str
    slowness: float = 1.0
    group: str = ""
    input: str = ""

    @property
    def command(self) -> tuple[str, str]:
        """The module to run, and its argument."""
        return "tests.chaos.transactions.sender", json.dumps(asdict(self))


class TransactionSender:
    """Ends at SIGTERM, or when a later process has the transactional id.

    The faults of a round may leave no broker that answers within a client's time limit. SIGTERM comes when they are
    over: from then on brokers must answer each call in time.
    """

    def __init__(self, plan: SenderPlan) -> None:
        self.ended = False
        self._plan = plan
        self._journal = TransactionJournal(Path(plan.journal))
        self._chance = random.Random(plan.life)
        self._number = 0

    def run(self) -> None:
        """Send until the end; an error that a client should not raise goes into the journal."""
        plan = self._plan
        try:
            with self._once_answered(self._consumer) as consumer, self._once_answered(self._producer) as producer:
                if plan.group:
                    consumer.subscribe([plan.input])
                else:
                    self._once_answered(lambda: consumer.assign(plan.topic))
                while not self.ended:
                    if plan.group:
                        self._transform(producer, consumer)
                    else:
                        self._transaction(producer, self._values(consumer))
        except TidemarkError as error:
            if error.code is not ErrorCode.PRODUCER_FENCED:
                self._journal.add("failed", plan.life, why=f"{error.code}: {error}")

    def _consumer(self) -> Consumer:
        if self._plan.group:
            return Consumer(
                self._plan.bootstrap,
                group=self._plan.group,
                auto_commit_interval_ms=0,
                request_timeout_ms=request_ms(self._plan.slowness),
            )
        return Consumer(
            self._plan.bootstrap,
            isolation_level="read_committed",
            request_timeout_ms=request_ms(self._plan.slowness),
        )

    def _producer(self) -> Producer:
        return Producer(
            self._plan.bootstrap,
            transactional_id=self._plan.name,
            transaction_timeout_ms=TIMEOUT_MS,
            delivery_timeout_ms=int(_DELIVERY_S * 1000 * self._plan.slowness),
            request_timeout_ms=request_ms(self._plan.slowness),
        )

    def _once_answered(self, call: Callable[[], _T], again: Callable[[TidemarkError], bool] = _unanswered) -> _T:
        """Call until a broker answers; a call that began after the faults is not repeated."""
        while True:
            after_faults = self.ended
            try:
                return call()
            except TidemarkError as error:
                if after_faults or not again(error):
                    raise
                time.sleep(_PAUSE_S)

    def _read(self, consumer: Consumer) -> PartitionBatch | None:
        try:
            return consumer.poll(_PAUSE_S)
        except TidemarkError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            return None

    def _values(self, consumer: Consumer) -> list[str]:
        batch = self._read(consumer)
        if batch is None:
            return []
        return [row["value"].decode() for row in batch.rows.select(["value"]).to_pylist()][-_SEEN_MAX:]

    def _transform(self, producer: Producer, consumer: Consumer) -> None:
        """Write a transaction from one batch of the input.

        After an abort, seek the consumer to the committed offset.
        """
        batch = self._read(consumer)
        if batch is None:
            return
        offsets = batch.rows.column("offset")
        cover = {"partition": batch.partition, "first": offsets[0].as_py(), "end": offsets[-1].as_py() + 1}
        end = self._transaction(producer, [], cover, lambda transaction: self._offsets_sent(transaction, consumer))
        while end is not End.COMMITTED and not self.ended:
            try:
                consumer.seek_to_committed()
            except TidemarkError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
            else:
                return

    def _offsets_sent(self, transaction: Transaction, consumer: Consumer) -> bool:
        try:
            transaction.send_offsets(consumer)
        except TidemarkError as error:
            if error.code not in _OFFSETS_REFUSED and not error.retriable:
                raise
            return False
        return True

    def _transaction(
        self,
        producer: Producer,
        seen: list[str],
        cover: dict[str, int] | None = None,
        more: Callable[[Transaction], bool] = lambda _: True,
    ) -> End:
        self._number += 1
        tag = f"{self._plan.life}.{self._number}"
        began_s = time.monotonic()
        transaction = producer.transaction()
        self._once_answered(transaction.begin)
        self._journal.add("begin", tag, name=self._plan.name, at_s=began_s, seen=seen)
        if cover is not None:
            self._journal.add("cover", tag, **cover)
        end: End | None = None
        if self._sent(producer, tag) and more(transaction) and self._chance.random() >= _ABORTS:
            self._journal.add("committing", tag)
            end = self._commit(transaction)
        elif self._aborted(transaction):
            end = End.ABORTED
        if end is not None:
            self._journal.add(end, tag, at_s=time.monotonic())
        return end or End.ABORTED

    def _sent(self, producer: Producer, tag: str) -> bool:
        """Send some records; False: a record failed, and the transaction can only be aborted."""
        count = self._chance.randrange(1, 9)
        records = [(self._chance.randrange(self._plan.partitions), f"{tag}.{number}") for number in range(count)]
        self._journal.add("send", tag, records=records)
        try:
            for partition, value in records:
                producer.send(self._plan.topic, value.encode(), partition=partition)
                if self._chance.random() < _THINKS:
                    producer.flush()
        except TidemarkError:
            return False
        return True

    def _aborted(self, transaction: Transaction) -> bool:
        """Abort; False: no broker answered, and the coordinator aborts the transaction at its timeout."""
        after_faults = self.ended
        try:
            transaction.abort()
        except TidemarkError as error:
            if after_faults or not _unanswered(error):
                raise
            return False
        return True

    def _commit(self, transaction: Transaction) -> End:
        """Ask until the outcome is known."""
        try:
            self._once_answered(transaction.commit, _in_doubt)
        except TidemarkError as error:
            if error.code is ErrorCode.TRANSACTION_ABORTABLE:
                return End.ABORTED
            raise
        return End.COMMITTED


def main(arguments: list[str]) -> None:
    """Send until SIGTERM."""
    sender = TransactionSender(SenderPlan(**json.loads(arguments[0])))

    def end(*_: object) -> None:
        sender.ended = True

    signal.signal(signal.SIGTERM, end)
    sender.run()


if __name__ == "__main__":
    main(sys.argv[1:])
