# SPDX-License-Identifier: Apache-2.0
"""The isolation levels of readers, by name. Pure; Spark's planning imports this, so it imports little."""

from __future__ import annotations

from typing import Final

from tidemark.client.argument_types import text
from tidemark.model import ErrorCode, TidemarkError

ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")


def check_isolation_level(isolation_level: str) -> None:
    """Raise TypeError for another type than text, INVALID_CONFIG for an unknown level."""
    if text("isolation_level", isolation_level) not in ISOLATION_LEVELS:
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"isolation_level is {isolation_level!r}: expected {' or '.join(ISOLATION_LEVELS)}",
        )
