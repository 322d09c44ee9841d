# SPDX-License-Identifier: Apache-2.0
"""Requests to the transaction coordinator, and its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.state import (
    NO_SEQUENCE,
    Change,
    ProducerIdentity,
    TransactionMetadata,
    TransactionPartition,
    Writer,
)

_T = TypeVar("_T")


class TransactionSettings(NamedTuple):
    """The settings of the broker that the coordinator uses; see docs/configuration.md."""

    timeout_ms_max: int = 15 * 60 * 1000
    expiration_ms: int = 7 * 24 * 3600 * 1000


class Situation(NamedTuple):
    """Time and settings for a request.

    Attributes:
        now_ms: monotonic.
        wall_ms: milliseconds since 1970, UTC.
    """

    now_ms: int
    wall_ms: int
    settings: TransactionSettings = TransactionSettings()


class Outcome(NamedTuple, Generic[_T]):
    """An answer, and the records to write before the answer is sent."""

    answer: _T
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Init:
    """The request InitTransactions (rule X10).

    Attributes:
        producer: the present identity of a producer that continues after an error; None for a new producer.
        fresh_producer_id: a new producer id, if the caller has one. Without a fresh id the request is refused with
            CONCURRENT_TRANSACTIONS if `needs_producer_id` is true; an id that is not used is lost.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerIdentity | None = None
    fresh_producer_id: int | None = None


class Initialized(NamedTuple):
    """The identity for the next transaction; `last_sequence` is of CommitMembers."""

    producer: ProducerIdentity
    generation: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Addition:
    """AddPartitions for one transaction (rule X11); `producer` is the id's own, or a member."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TransactionPartition, ...]


@dataclass(frozen=True, slots=True)
class End:
    """EndTransaction (rule X12); `producer` wrote the transaction, `fresh_producer_id` is as in `Init`."""

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    fresh_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """The request JoinTransaction (rule X16).

    Attributes:
        fresh_producer_id: a producer id that was never given before; it becomes the member's.
    """

    transactional_id: str
    generation: int
    fresh_producer_id: int


@dataclass(frozen=True, slots=True)
class CommitMembers:
    """CommitMembers (rule X16); `sequence` >= 0, or NO_SEQUENCE: then a repeated call is not recognized."""

    transactional_id: str
    generation: int
    producer_ids: tuple[int, ...]
    sequence: int = NO_SEQUENCE


class Abort(NamedTuple):
    """AbortTransaction, of an operator.

    Attributes:
        generation: of the id when the transaction was described; 0: the transaction that is open.
        started_ms: with a generation, the start of that transaction, since 1970, UTC.
    """

    transactional_id: str
    generation: int = 0
    started_ms: int = 0


class Marker(NamedTuple):
    """A marker to write now: the end of a producer's transaction in some partitions.

    Attributes:
        producer: the identity of the marker: its epoch is that of the transaction + 1.
        partitions: partitions that have not answered yet.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    coordinator_epoch: int
    partitions: tuple[TransactionPartition, ...]


class Description(NamedTuple):
    """A transactional id; in a PREPARE phase `writers` has the partitions that lack their marker."""

    transactional_id: str
    metadata: TransactionMetadata
    writers: tuple[Writer, ...]

    @property
    def phase(self) -> Phase:
        """Phase of the transactional id."""
        return self.metadata.phase

    @property
    def partitions(self) -> Iterator[tuple[TransactionPartition, ProducerIdentity]]:
        """The partitions of the transaction, and the producer that writes to each."""
        return ((partition, writer.producer) for writer in self.writers for partition in writer.partitions)
