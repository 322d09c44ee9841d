# SPDX-License-Identifier: Apache-2.0
"""Fields of a state of which not everything is known: a look at what is not known says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

UNKNOWN: Final = object()


class NeedError(Exception):
    """A column of a row (see `columns`) was looked at that is not known."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


class Cells(list[Any]):
    """The values of one field by broker or pair, some of them UNKNOWN; `columns`: where each would be found."""

    def __init__(self, values: Iterable[Any], columns: tuple[int, ...]) -> None:
        super().__init__(values)
        self.columns = columns

    def __getitem__(self, place: Any) -> Any:
        value = super().__getitem__(place)
        if value is UNKNOWN:
            raise NeedError(self.columns[place])
        return value

    def __setitem__(self, place: Any, value: Any) -> None:
        _ = self[place]  # the parts of one column are known together
        super().__setitem__(place, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))


def raw(values: Sequence[Any]) -> list[Any]:
    """A plain copy, with UNKNOWN for what is not known."""
    return list.copy(values) if isinstance(values, list) else list(values)


def own(values: Sequence[Any]) -> list[Any]:
    """A copy to change: of cells, cells."""
    return Cells(raw(values), values.columns) if isinstance(values, Cells) else list(values)
