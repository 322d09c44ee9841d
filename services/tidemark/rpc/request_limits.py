# SPDX-License-Identifier: Apache-2.0
"""Checks of a request before any work: the number of items that it names, and its waits.

Requests within the limit are handled in slices (`runtime.slices.Pace`). An answer that refuses 50,000 items with short
names has some 17 MB. gRPC refuses an answer above `channel.MESSAGE_BYTES_MAX`; such a request must name fewer.
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


def check_wait(wait_ms: int, name: str) -> None:
    """Raises INVALID_REQUEST for a negative wait; `name` is that of the field."""
    if wait_ms < 0:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{name} is {wait_ms}: give 0 or more milliseconds")
