# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations for readers: in the command's tables and the console's pages."""

from __future__ import annotations

from typing import Final

_KILO: Final = 1000
UNITS_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of the units of timestamps."""


def shown_bytes(count: float | None) -> str:
    """A size such as "1.5 MB"; "unknown" for None."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < _KILO:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _KILO
    return f"{count:.1f} TB"


def shown_duration(seconds: float | None) -> str:
    """A duration such as "1 h 05 min"; "unknown" for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
