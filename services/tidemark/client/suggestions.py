# SPDX-License-Identifier: Apache-2.0
"""The hint "did you mean" of errors about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LIKENESS: Final = 0.6
"""Smallest ratio of difflib, 0 to 1, at which a name is suggested."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to `name`, ignoring case; None if no name is similar."""
    by_letters = {one.casefold(): one for one in names}
    found = get_close_matches(name.casefold(), by_letters, 1, _LIKENESS)
    return by_letters[found[0]] if found else None
