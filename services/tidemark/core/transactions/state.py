# SPDX-License-Identifier: Apache-2.0
"""The persistent state of a transactional id: immutable values, each under a key of the compacted topic.

An id has one main record, with the first `PAGE_ITEMS` writers and partitions of its transaction. A larger transaction
has the remaining ones in pages: a record for each `PAGE_ITEMS` of them. So a record has a bounded size, one more
partition costs one bounded record, and the cost of a transaction is linear in its partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.core.transactions.phases import Phase

LAST_EPOCH: Final = 32766
"""The last epoch of a producer id. Its markers have the next epoch, which is the largest of a batch."""
PAGE_ITEMS: Final = 100
"""Writers and partitions in one record."""
NO_SEQUENCE: Final = -1
"""`CommitMembers` without a number; also `last_sequence` before the first number."""


class ProducerIdentity(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    producer_epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no later epoch."""
        return self.producer_epoch >= LAST_EPOCH

    def __str__(self) -> str:
        return f"producer {self.producer_id}, epoch {self.producer_epoch}"


class TransactionPartition(NamedTuple):
    """A partition of a transaction; a deleted topic of the same name has another topic id."""

    topic: str
    topic_id: str
    partition: int


class Writer(NamedTuple):
    """A producer of a transaction, and partitions that it writes to.

    Attributes:
        producer: the id's own producer, or a member, with the epoch of its batches.
    """

    producer: ProducerIdentity
    partitions: tuple[TransactionPartition, ...] = ()


class EndReason(StrEnum):
    """The cause of the last decision. The names are stored, and are values of a metric's label."""

    NONE = "none"  # no decision so far
    PRODUCER = "producer"  # EndTransaction of the producer (X12)
    MEMBERS = "members"  # CommitMembers (X16)
    INIT = "init"  # a producer of the id started (X10)
    TIMEOUT = "timeout"  # the transaction was open for too long (X13)
    OPERATOR = "operator"  # AbortTransaction


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The record of a transactional id.

    Attributes:
        producer: the identity for the next batches. Invariant: a PREPARE phase has already raised its epoch.
        previous: replaced identity, whose producer may repeat its request, since answers may be lost; or None.
        generation: raised by each InitTransactions, and when an operator aborts the transaction.
        timeout_ms: the open transaction is aborted after that time.
        number: number of the transaction, rising; pages with another number are left from earlier transactions.
        started_ms: start of the transaction, since 1970, UTC; 0 if there is none.
        updated_ms: the last change, since 1970, UTC.
        last_sequence: last sequence of CommitMembers; NO_SEQUENCE before the first one.
        end_reason: cause of the last decision.
        committed: in a PREPARE phase, the producer ids whose writes are committed, sorted; writes of other producers
            are aborted.
        writers: the first writers and partitions of the transaction; empty if there is none.
    """

    producer: ProducerIdentity
    previous: ProducerIdentity | None = None
    generation: int = 0
    timeout_ms: int = 60_000
    phase: Phase = Phase.EMPTY
    number: int = 0
    started_ms: int = 0
    updated_ms: int = 0
    last_sequence: int = NO_SEQUENCE
    end_reason: EndReason = EndReason.NONE
    committed: tuple[int, ...] = ()
    writers: tuple[Writer, ...] = ()


@dataclass(frozen=True, slots=True)
class WritersPage:
    """More writers and partitions of the transaction with this number."""

    number: int
    writers: tuple[Writer, ...]


class TransactionKey(NamedTuple):
    """Key of a `TransactionMetadata`."""

    transactional_id: str


class PageKey(NamedTuple):
    """Key of a `WritersPage`; pages are counted from 1, since the id's own record has the first writers."""

    transactional_id: str
    page: int


Key = TransactionKey | PageKey
Value = TransactionMetadata | WritersPage


class Change(NamedTuple):
    """One record to write: the new value of a key; None deletes it (a tombstone)."""

    key: Key
    value: Value | None
