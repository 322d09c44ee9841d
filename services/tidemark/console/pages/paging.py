# SPDX-License-Identifier: Apache-2.0
"""Lists in parts of a fixed size, chosen by the parameter `page`; and the other parameters of addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

from tidemark.console.page import Refused

T = TypeVar("T")

ROWS: Final = 50
SEARCH_CHARACTERS_MAX: Final = 249
"""The longest name of a topic, group or transactional id."""
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of a list.

    Attributes:
        number: number of the page, from 1.
        pages: number of pages, at least 1.
        total: number of rows on all pages.
        previous: query part of the address of the page before; "": no such page.
        next: query part of the address of the page after; "": there is none.
    """

    rows: Sequence[T]
    number: int
    pages: int
    total: int
    previous: str
    next: str

    def facts(self) -> dict[str, object]:
        """The numbers, for the template and the JSON twin."""
        facts = {"page": self.number, "pages": self.pages, "total": self.total}
        return {**facts, "previous": self.previous, "next": self.next}


def part_of(rows: Sequence[T], query: Mapping[str, str], *, size: int = ROWS) -> Part[T]:
    """The page that `query` names; beyond the end, the last page. Raises `Refused` for a page that is not a number."""
    pages = max(1, -(-len(rows) // size))
    number = min(whole(query.get("page") or "1", "page", smallest=1), pages)
    first = (number - 1) * size
    return Part(
        rows[first : first + size],
        number,
        pages,
        len(rows),
        _address(query, number - 1) if number > 1 else "",
        _address(query, number + 1) if number < pages else "",
    )


def whole(text: str, name: str, *, smallest: int = 0) -> int:
    """The number that an address states; raises `Refused` for other text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX) or int(text) < smallest:
        raise Refused(400, f"{name} is {text[:40]!r}: expected a whole number from {smallest}.")
    return int(text)


def one_of(query: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The choice that an address states, by default the first one; raises `Refused` for another text."""
    text = query.get(name) or choices[0]
    if text not in choices:
        raise Refused(400, f"{name} is {text[:40]!r}: expected {', '.join(choices)}.")
    return text


def searched(query: Mapping[str, str], name: str = "q") -> str:
    """The text that an address searches for; raises `Refused` for a long text."""
    return named(query.get(name, "").strip(), name)


def named(text: str, name: str) -> str:
    """A name of the cluster that an address states; raises `Refused` for a longer text than any name."""
    if len(text) > SEARCH_CHARACTERS_MAX:
        raise Refused(400, f"{name} has {len(text)} characters: expected at most {SEARCH_CHARACTERS_MAX}.")
    return text


def _address(query: Mapping[str, str], number: int) -> str:
    return "?" + urlencode({**query, "page": str(number)})
