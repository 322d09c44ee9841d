# SPDX-License-Identifier: Apache-2.0
"""A transaction coordinator with its time and its log, for unit tests."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

from tidemark.core.transactions.coordinator import TransactionCoordinator
from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.requests import (
    Addition,
    CommitMembers,
    End,
    Init,
    Initialized,
    Join,
    Marker,
    Outcome,
    Situation,
    TransactionSettings,
)
from tidemark.core.transactions.state import (
    NO_SEQUENCE,
    Change,
    ProducerIdentity,
    TransactionMetadata,
    TransactionPartition,
)
from tidemark.model import TidemarkError

ORDERS = TransactionPartition("orders", "id-of-orders", 0)
PAYMENTS = TransactionPartition("payments", "id-of-payments", 3)
NAME = "checkout"
TIMEOUT_MS = 60_000
WALL_MS = 1_000_000
COORDINATOR_EPOCH = 4
FIRST_PRODUCER_ID = 100

_T = TypeVar("_T")


class TransactionWorld:
    """Every outcome is written immediately, unless a test loses it; `replay` begins a new coordinator."""

    def __init__(self) -> None:
        self.log: list[Change] = []
        self.ms = 0
        self.settings = TransactionSettings()
        self.coordinator = TransactionCoordinator(COORDINATOR_EPOCH)
        self._fresh = count(FIRST_PRODUCER_ID)

    @property
    def now(self) -> Situation:
        return Situation(self.ms, WALL_MS + self.ms, self.settings)

    @property
    def metadata(self) -> TransactionMetadata:
        return self.coordinator.describe(NAME).metadata

    @property
    def phase(self) -> Phase:
        return self.metadata.phase

    def written(self, outcome: Outcome[_T]) -> _T:
        self.log.extend(outcome.changes)
        self.coordinator.committed(outcome.changes)
        return outcome.answer

    def replay(self, records: int | None = None) -> None:
        """Another coordinator loads the log, or its first records only."""
        del self.log[len(self.log) if records is None else records :]
        self.coordinator = TransactionCoordinator.replay(self.log, self.ms, COORDINATOR_EPOCH + 1)

    def init(self, producer: ProducerIdentity | None = None, timeout_ms: int = TIMEOUT_MS) -> Initialized:
        fresh = next(self._fresh) if self.coordinator.needs_producer_id(NAME) else None
        answer = self.written(self.coordinator.init(Init(NAME, timeout_ms, producer, fresh), self.now))
        if isinstance(answer, TidemarkError):
            raise answer
        return answer

    def add(self, producer: ProducerIdentity, *partitions: TransactionPartition) -> None:
        self.written(self.coordinator.add_partitions(Addition(NAME, producer, partitions), self.now))

    def end(self, producer: ProducerIdentity, *, commit: bool = True) -> ProducerIdentity:
        fresh = next(self._fresh) if self.coordinator.needs_producer_id(NAME) else None
        return self.written(self.coordinator.end(End(NAME, producer, commit, fresh), self.now))

    def join(self, generation: int) -> ProducerIdentity:
        return self.written(self.coordinator.join(Join(NAME, generation, next(self._fresh)), self.now))

    def commit_members(self, generation: int, *producers: ProducerIdentity, sequence: int = NO_SEQUENCE) -> bool:
        ids = tuple(one.producer_id for one in producers)
        return self.written(self.coordinator.commit_members(CommitMembers(NAME, generation, ids, sequence), self.now))

    def markers(self) -> list[Marker]:
        return list(self.coordinator.markers(NAME))

    def mark(self) -> None:
        """Every partition answers."""
        for marker in self.markers():
            self.written(self.coordinator.marked(NAME, marker.producer, marker.partitions, self.now))

    def sweep(self) -> tuple[str, ...]:
        return self.written(self.coordinator.abort_overdue(self.now))
