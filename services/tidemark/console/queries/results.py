# SPDX-License-Identifier: Apache-2.0
"""The results of changes, for the page to which a change leads its browser."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final, Generic, TypeVar

T = TypeVar("T")

RESULTS_MAX: Final = 200


class Results(Generic[T]):
    """The newest `RESULTS_MAX` results of this process; a user gets only their own results."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], T] = OrderedDict()

    def keep(self, identity_key: str, result: T) -> str:
        """Keep a result; returns its id for an address."""
        name = secrets.token_urlsafe(12)
        self._kept[identity_key, name] = result
        if len(self._kept) > RESULTS_MAX:
            self._kept.popitem(last=False)
        return name

    def get(self, identity_key: str, name: str) -> T | None:
        """The result; None for an unknown id."""
        return self._kept.get((identity_key, name))
