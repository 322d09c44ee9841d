# SPDX-License-Identifier: Apache-2.0
"""The limit on the number of items that a request names; larger requests are refused before any work.

Requests within the limit are handled in slices (`runtime.slices.Pace`), and their answers fit into a message even if
each item is refused.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

NAMED_MAX: Final = 50_000


def check_named(named: Sized, what: str) -> None:
    """Raises INVALID_REQUEST beyond the limit; `what` names the items in the plural."""
    if len(named) > NAMED_MAX:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a request names at most {NAMED_MAX} {what}, this one {len(named)}; send several requests",
            {"named_max": str(NAMED_MAX)},
        )
