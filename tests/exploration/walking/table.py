# SPDX-License-Identifier: Apache-2.0
"""Millions of 64-bit marks, each with a number: open addressing in arrays, many at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Marks = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
Costs = NDArray[np.int32]

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_STIR: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)


def stirred(marks: Marks) -> Marks:
    """Mixed marks: every bit depends on every bit, and different marks stay different."""
    marks = marks ^ (marks >> _HALF)
    marks *= _STIR
    marks ^= marks >> _HALF
    marks *= _STIR
    marks ^= marks >> _HALF
    return marks


def joined(mark: Marks, column: int, values: NDArray[np.int32]) -> Marks:
    """The marks with one more column included."""
    salt = (column + 1) * 0xA24BAED4963EE407 & 0xFFFFFFFFFFFFFFFF
    return stirred(mark + (values.astype(np.uint64) + np.uint64(1)) * _SPREAD + np.uint64(salt))


class Table:
    """Marks with or without numbers; at most two thirds full. The mark 0 stands for an empty place."""

    def __init__(self, *, bits: int = 12, numbered: bool = True) -> None:
        self._bits = bits
        self._marks: Marks = np.zeros(1 << bits, np.uint64)
        self._numbers: Numbers | None = np.zeros(1 << bits, np.int64) if numbered else None
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def bytes_with(self, more: int) -> int:
        """Largest memory while this number of marks is entered: old and new arrays while the table grows."""
        each = 8 if self._numbers is None else 16
        places = len(self._marks)
        while (self.count + more) * 3 > places * 2:
            places *= 2
        return each * (places + (places // 2 if places > len(self._marks) else 0))

    def find(self, marks: Marks) -> Numbers:
        """The number of each mark; -1 for an unknown mark."""
        places = self.places(marks)
        assert self._numbers is not None, "a table without numbers has none to find"
        return np.where(places < 0, -1, self._numbers[places])

    def places(self, marks: Marks) -> Numbers:
        """The place of each mark; -1 for an unknown mark."""
        found = np.full(len(marks), -1, np.int64)
        asked = np.arange(len(marks))
        places = self._first_places(marks)
        while len(asked):
            there = self._marks[places]
            hit = there == marks[asked]
            found[asked[hit]] = places[hit]
            on = ~hit & (there != 0)
            asked = asked[on]
            places = (places[on] + 1) & (len(self._marks) - 1)
        return found

    def add(self, marks: Marks, numbers: Numbers | None = None) -> None:
        """Enter new marks, each once."""
        while (self.count + len(marks)) * 3 > len(self._marks) * 2:
            self._grow()
        self._enter(marks, numbers)
        self.count += len(marks)

    def _first_places(self, marks: Marks) -> Numbers:
        return ((marks * _SPREAD) >> np.uint64(64 - self._bits)).astype(np.int64)

    def _enter(self, marks: Marks, numbers: Numbers | None) -> None:
        left = np.arange(len(marks))
        places = self._first_places(marks)
        while len(left):
            free = self._marks[places] == 0
            mine = marks[left]
            self._marks[places[free]] = mine[free]
            won = free & (self._marks[places] == mine)
            if self._numbers is not None and numbers is not None:
                self._numbers[places[won]] = numbers[left[won]]
            left = left[~won]
            places = (places[~won] + 1) & (len(self._marks) - 1)

    def _grow(self) -> None:
        marks, numbers = self._marks, self._numbers
        self._bits += 1
        self._marks = np.zeros(1 << self._bits, np.uint64)
        if numbers is not None:
            self._numbers = np.zeros(1 << self._bits, np.int64)
        step = 1 << 20
        for start in range(0, len(marks), step):
            some = marks[start : start + step]
            taken = some != 0
            self._enter(some[taken], None if numbers is None else numbers[start : start + step][taken])
