# SPDX-License-Identifier: Apache-2.0
"""How much one request may name: what comes beyond is refused before anything is done for it.

Up to there a request is worked through in slices (`runtime.slices.Pace`), and its answer fits a message even where each
of what it names is refused.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

NAMED_MAX: Final = 50_000


def check_named(named: Sized, what: str) -> None:
    """Raises INVALID_REQUEST; `what` in the plural."""
    if len(named) > NAMED_MAX:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a request names at most {NAMED_MAX} {what}, this one {len(named)}; send several requests",
            {"named_max": str(NAMED_MAX)},
        )
