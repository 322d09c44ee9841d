# SPDX-License-Identifier: Apache-2.0
"""Keyed values that open transactions have written to a log, and that no marker has ended yet (rule X17). Pure.

The state of a key is the last value in the order of the log among those that are not pending or aborted, as the cleaner
keeps it. So a committed value counts only if no later value of its key was in force before its marker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Writer(NamedTuple):
    """The producer of a transaction."""

    producer_id: int
    producer_epoch: int


class _Pending(NamedTuple, Generic[V]):
    """A value, the epoch of its transaction, and its place in the order of the log."""

    producer_epoch: int
    order: int
    value: V


Undo = dict[K, tuple[_Pending[V], _Pending[V] | None]]
"""By key, the value that `add` put and the earlier one of the same producer."""


class PendingWrites(Generic[K, V]):
    """Invariant: every value could still come into force: no later value of its key is in force.

    Attributes:
        _of: by producer id and key.
        _writers: by key, the producer ids with a value.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[K, _Pending[V]]] = {}
        self._writers: dict[K, set[int]] = {}
        self._order = 0

    def __len__(self) -> int:
        """The number of values."""
        return sum(map(len, self._of.values()))

    @property
    def keys(self) -> Collection[K]:
        """The keys whose value a marker may change."""
        return self._writers.keys()

    def add(self, producer: Writer, values: Iterable[tuple[K, V]]) -> Undo[K, V]:
        """Values that a transaction writes behind all values so far; returns the argument of `undo`."""
        undo: Undo[K, V] = {}
        for key, value in values:
            self._order += 1
            added = _Pending(producer.producer_epoch, self._order, value)
            undo[key] = added, self._of.get(producer.producer_id, {}).get(key)
            self._put(producer.producer_id, key, added)
        return undo

    def undo(self, producer: Writer, undo: Undo[K, V]) -> None:
        """The values of an `add` were not written after all."""
        for key, (added, before) in undo.items():
            if self._of.get(producer.producer_id, {}).get(key) is added:
                self._remove(producer.producer_id, key)
                if before is not None:
                    self._put(producer.producer_id, key, before)

    def overwrite(self, key: K) -> None:
        """A value of the key without a transaction is written behind all values so far."""
        for producer_id in tuple(self._writers.get(key, ())):
            self._remove(producer_id, key)

    def end(self, producer_id: int, marker_epoch: int, *, commit: bool) -> list[tuple[K, V]]:
        """A marker ends the transactions of earlier epochs; returns the values that come into force, if any."""
        ended = {key: one for key, one in self._of.get(producer_id, {}).items() if one.producer_epoch < marker_epoch}
        for key in ended:
            self._remove(producer_id, key)
        if not commit:
            return []
        for key, one in ended.items():
            for other in tuple(self._writers.get(key, ())):
                if self._of[other][key].order < one.order:
                    self._remove(other, key)
        return [(key, one.value) for key, one in ended.items()]

    def by_producer(self) -> list[tuple[Writer, list[tuple[K, V]]]]:
        """All values, for `add` in this order."""
        everything = [
            (Writer(producer_id, one.producer_epoch), key, one)
            for producer_id, of_one in self._of.items()
            for key, one in of_one.items()
        ]
        everything.sort(key=lambda found: found[2].order)
        return [(producer, [(key, one.value)]) for producer, key, one in everything]

    def _put(self, producer_id: int, key: K, value: _Pending[V]) -> None:
        self._of.setdefault(producer_id, {})[key] = value
        self._writers.setdefault(key, set()).add(producer_id)

    def _remove(self, producer_id: int, key: K) -> None:
        del self._of[producer_id][key]
        if not self._of[producer_id]:
            del self._of[producer_id]
        self._writers[key].discard(producer_id)
        if not self._writers[key]:
            del self._writers[key]
