# SPDX-License-Identifier: Apache-2.0
"""One transactional id in memory. Every change goes through its methods, which return the records to write.

A coordinator may find only the first of these records after a failure. So the record that begins a transaction comes
before the transaction's pages. The record that completes the transaction comes before the tombstones of these pages,
and these tombstones come before the tombstone of the id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tidemark.core.transactions.open_transaction import OpenTransaction
from tidemark.core.transactions.phases import PREPARED, TRANSITIONS, Input, Phase
from tidemark.core.transactions.refusals import concurrent
from tidemark.core.transactions.requests import Situation
from tidemark.core.transactions.state import (
    Change,
    PageKey,
    ProducerIdentity,
    TransactionKey,
    TransactionMetadata,
    TransactionPartition,
    WritersPage,
)


class TransactionalId:
    """The state of one transactional id.

    Attributes:
        metadata: its own record.
        open: the transaction that is open or being completed. Invariant: None exactly in the CLOSED phases.
        _stored_pages: pages up to this one may have a record in the log.
    """

    __slots__ = ("_stored_pages", "metadata", "open", "transactional_id")

    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.open: OpenTransaction | None = None
        self._stored_pages = 0

    def replay(self, pages: Mapping[int, WritersPage], now_ms: int) -> None:
        """Add the pages of the log; pages with the number of another transaction were left by a failure."""
        self._stored_pages = max(pages, default=0)
        if self.metadata.phase is not Phase.ONGOING and self.metadata.phase not in PREPARED:
            return
        current = [pages[page].writers for page in sorted(pages) if pages[page].number == self.metadata.number]
        self.open = OpenTransaction.replay((self.metadata.writers, *current), now_ms)

    def next_phase(self, happened: Input) -> Phase:
        """The row of the table; raises CONCURRENT_TRANSACTIONS if there is none."""
        found = TRANSITIONS.get((self.metadata.phase, happened))
        if found is None:
            raise concurrent(self.transactional_id)
        return found

    def is_own_writer(self) -> bool:
        """Whether the id's own producer writes to the open transaction."""
        return self.open is not None and self.metadata.producer.producer_id in self.open.writers

    def update(self, metadata: TransactionMetadata, now: Situation) -> tuple[Change, ...]:
        """Replace the id's own record."""
        self.metadata = replace(metadata, updated_ms=now.wall_ms)
        return (Change(TransactionKey(self.transactional_id), self.metadata),)

    def write(
        self, producer: ProducerIdentity, partitions: Iterable[TransactionPartition], now: Situation
    ) -> tuple[Change, ...]:
        """Add a writer and its partitions to the open transaction, or begin one; a known partition has no effect.

        Raises:
            TidemarkError: CONCURRENT_TRANSACTIONS; then the state is unchanged.
        """
        phase = self.next_phase(Input.WRITE)
        metadata = self.metadata
        if self.open is None:
            self.open = OpenTransaction(now.now_ms)
            metadata = replace(metadata, phase=phase, number=metadata.number + 1, started_ms=now.wall_ms)
        changed = self.open.add(producer, partitions)
        changes: list[Change] = []
        if metadata is not self.metadata or 0 in changed:
            changes.extend(self.update(replace(metadata, writers=self.open.page(0)), now))
        for page in changed:
            if page > 0:
                value = WritersPage(metadata.number, self.open.page(page))
                changes.append(Change(PageKey(self.transactional_id, page), value))
                self._stored_pages = max(self._stored_pages, page)
        return tuple(changes)

    def decide(
        self, decided: TransactionMetadata, decision: Input, committed: Collection[int], now: Situation
    ) -> tuple[Change, ...]:
        """Make the final decision; without partitions the transaction is complete immediately.

        Args:
            decided: the present record, with the facts that this decision changes.
            decision: COMMIT or ABORT.
            committed: producer ids whose writes are committed; the writes of all other producers are aborted.

        Raises:
            TidemarkError: CONCURRENT_TRANSACTIONS; then the state is unchanged.
        """
        decided = replace(decided, phase=self.next_phase(decision))
        if self.open is None or not self.open.partition_count:
            return self._complete(decided, now)
        with_partitions = {producer_id for producer_id, (_, partitions) in self.open.writers.items() if partitions}
        return self.update(replace(decided, committed=tuple(sorted(with_partitions.intersection(committed)))), now)

    def marked(
        self, producer: ProducerIdentity, partitions: Iterable[TransactionPartition], now: Situation
    ) -> tuple[Change, ...]:
        """Remove partitions that have the marker of `producer`; the last partition completes the transaction."""
        if self.open is None or self.metadata.phase not in PREPARED:
            return ()
        self.open.remove(producer, partitions)
        return () if self.open.partition_count else self._complete(self.metadata, now)

    def delete(self) -> tuple[Change, ...]:
        """Delete the id; returns the tombstones of all its records."""
        return (*self._without_pages(), Change(TransactionKey(self.transactional_id), None))

    def _complete(self, decided: TransactionMetadata, now: Situation) -> tuple[Change, ...]:
        self.open = None
        phase = TRANSITIONS[decided.phase, Input.MARKED]
        done = self.update(replace(decided, phase=phase, started_ms=0, committed=(), writers=()), now)
        return (*done, *self._without_pages())

    def _without_pages(self) -> tuple[Change, ...]:
        stored, self._stored_pages = self._stored_pages, 0
        return tuple(Change(PageKey(self.transactional_id, page), None) for page in range(1, stored + 1))
