# SPDX-License-Identifier: Apache-2.0
"""Keyed values that open transactions have written to a log, and that no marker has ended yet (rule X17). Pure.

The state of a key is the last of its values that are not pending or aborted, in the order of the log. The cleaner keeps
the same value. So a committed value counts only if no later value of its key was in force before its marker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Writer(NamedTuple):
    """The producer of a transaction: its id and epoch."""

    producer_id: int
    producer_epoch: int


class _Pending(Generic[V]):
    """A value, the epoch of its transaction, and its place in the order of the log.

    Attributes:
        undone: the value was not written.
        before: for a value of a transaction, the earlier value of the same producer and key, which counts instead.
    """

    __slots__ = ("before", "order", "producer_epoch", "undone", "value")

    def __init__(self, producer_epoch: int, order: int, value: V) -> None:
        self.producer_epoch = producer_epoch
        self.order = order
        self.value = value
        self.undone = False
        self.before: _Pending[V] | None = None


Undo = dict[K, tuple[_Pending[V], _Pending[V] | None]]
"""By key, the value that `add` set and the earlier value of the same producer."""


class PendingWrites(Generic[K, V]):
    """Invariant: every value could still come into force: no later value of its key is in force.

    Attributes:
        _of: pending writes by producer id and key.
        _writers: producer ids with a value, by key.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[K, _Pending[V]]] = {}
        self._writers: dict[K, set[int]] = {}
        self._order = 0

    def __len__(self) -> int:
        """The number of values that no marker has ended."""
        return sum(map(len, self._of.values()))

    @property
    def keys(self) -> Collection[K]:
        """The keys whose value a marker may change."""
        return self._writers.keys()

    def get(self, producer: Writer, key: K) -> V | None:
        """The last value of the transaction of this producer epoch; None: no value."""
        found = self._of.get(producer.producer_id, {}).get(key)
        return found.value if found is not None and found.producer_epoch == producer.producer_epoch else None

    def values(self, key: K) -> list[tuple[Writer, V]]:
        """The values of a key that a marker may put in force, in the order of the log."""
        found = [(self._of[one][key], one) for one in self._writers.get(key, ())]
        found.sort(key=lambda one: one[0].order)
        return [(Writer(producer_id, one.producer_epoch), one.value) for one, producer_id in found]

    def add(self, producer: Writer, values: Iterable[tuple[K, V]]) -> Undo[K, V]:
        """Values that a transaction writes after all values so far; returns the argument of `undo`."""
        undo: Undo[K, V] = {}
        for key, value in values:
            self._order += 1
            added = _Pending(producer.producer_epoch, self._order, value)
            undo[key] = added, self._of.get(producer.producer_id, {}).get(key)
            self._put(producer.producer_id, key, added)
        return undo

    def undo(self, producer: Writer, undo: Undo[K, V]) -> None:
        """Undo an `add` whose values were not written; a later `add` of the same keys may be undone before."""
        for key, (added, before) in undo.items():
            added.undone, added.before = True, before
            if self._of.get(producer.producer_id, {}).get(key) is not added:
                continue
            self._remove(producer.producer_id, key)
            while before is not None and before.undone:
                before = before.before
            if before is not None:
                self._put(producer.producer_id, key, before)

    def overwrite(self, key: K) -> None:
        """Note that a value without a transaction is written after all values so far."""
        for producer_id in tuple(self._writers.get(key, ())):
            self._remove(producer_id, key)

    def end(self, producer_id: int, marker_epoch: int, *, commit: bool) -> list[tuple[K, V]]:
        """A marker ends the transactions of earlier epochs; returns the values that take effect, if any."""
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
