# SPDX-License-Identifier: Apache-2.0
"""One open transaction in memory: its writers and partitions, and the pages that store them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemark.core.transactions.state import PAGE_ITEMS, ProducerIdentity, TransactionPartition, Writer


class _Page:
    """The content of one record; `items` counts its writers and partitions."""

    __slots__ = ("items", "writers")

    def __init__(self) -> None:
        self.items = 0
        self.writers: dict[ProducerIdentity, list[TransactionPartition]] = {}


class OpenTransaction:
    """Writers and partitions of a transaction that is open, or is being completed.

    Attributes:
        renewed_ms: start of the timeout, monotonic; not persistent.
        writers: by producer id, its epoch and its partitions. While markers are sent: the partitions that lack theirs.
        partition_count: writers' partitions in all.
        _pages: the writers and partitions in the order in which they were added; the first page is in the id's record.
    """

    __slots__ = ("_pages", "partition_count", "renewed_ms", "writers")

    def __init__(self, now_ms: int) -> None:
        self.renewed_ms = now_ms
        self.writers: dict[int, tuple[int, set[TransactionPartition]]] = {}
        self.partition_count = 0
        self._pages = [_Page()]

    @classmethod
    def replay(cls, pages: Iterable[tuple[Writer, ...]], now_ms: int) -> OpenTransaction:
        """The transaction that these pages store, with a full timeout."""
        found = cls(now_ms)
        found._pages = []
        for writers in pages:
            page = _Page()
            found._pages.append(page)
            for writer in writers:
                found._put(page, writer.producer, writer.partitions)
        return found

    def is_writer(self, producer: ProducerIdentity) -> bool:
        """Whether the producer writes to this transaction with this epoch."""
        known = self.writers.get(producer.producer_id)
        return known is not None and known[0] == producer.producer_epoch

    def add(self, producer: ProducerIdentity, partitions: Iterable[TransactionPartition]) -> list[int]:
        """Add a writer with partitions, each of which may be known; returns the pages that have changed."""
        changed: dict[int, None] = {}
        if not self.is_writer(producer):
            changed[self._note(producer, ())] = None
        known = self.writers[producer.producer_id][1]
        for partition in partitions:
            if partition not in known:
                changed[self._note(producer, (partition,))] = None
        return list(changed)

    def page(self, page: int) -> tuple[Writer, ...]:
        """The writers of a page, as stored."""
        return tuple(Writer(producer, tuple(added)) for producer, added in self._pages[page].writers.items())

    def remove(self, producer: ProducerIdentity, partitions: Iterable[TransactionPartition]) -> None:
        """Forget partitions that have their marker; unknown ones are ignored."""
        if not self.is_writer(producer):
            return
        known = self.writers[producer.producer_id][1]
        before = len(known)
        known.difference_update(partitions)
        self.partition_count -= before - len(known)

    def all_writers(self) -> Iterator[Writer]:
        """Every writer with all of its partitions, sorted."""
        return (
            Writer(ProducerIdentity(producer_id, epoch), tuple(sorted(partitions)))
            for producer_id, (epoch, partitions) in self.writers.items()
        )

    def _note(self, producer: ProducerIdentity, partitions: tuple[TransactionPartition, ...]) -> int:
        if self._pages[-1].items >= PAGE_ITEMS:
            self._pages.append(_Page())
        self._put(self._pages[-1], producer, partitions)
        return len(self._pages) - 1

    def _put(self, page: _Page, producer: ProducerIdentity, partitions: tuple[TransactionPartition, ...]) -> None:
        stored = page.writers.get(producer)
        if stored is None:
            stored = page.writers[producer] = []
            page.items += 1
        stored.extend(partitions)
        page.items += len(partitions)
        _, known = self.writers.setdefault(producer.producer_id, (producer.producer_epoch, set()))
        known.update(partitions)
        self.partition_count += len(partitions)
