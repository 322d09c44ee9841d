# SPDX-License-Identifier: Apache-2.0
"""The wait that a service states to a client, kept within bounds: a faulty service must not stop a client for weeks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidemark.core.quotas.accounts import WAIT_MAX_S

TOLD_MAX_S: Final = 2 * WAIT_MAX_S
"""Longest wait that a client accepts; brokers state at most half of it."""
_MS_MAX: Final = 1 << 40
_HEADER: Final = "throttle-time-ms"
_DIGITS_MAX: Final = 20
"""Digits of a wait that are read: more are beyond `TOLD_MAX_S` in any case, and `int` refuses more than 4,300."""


def wait_headers(throttle_time_ms: int) -> tuple[tuple[str, str], ...]:
    """The initial metadata of a stream that the service does not read yet."""
    return ((_HEADER, str(throttle_time_ms)),)


def wait_of_headers_s(headers: Iterable[tuple[str, Any]] | None) -> float:
    """Seconds until the service reads a new stream; 0 without the header, or with an invalid one."""
    text = dict(headers or ()).get(_HEADER, "")
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal()
    return told_wait_s(int(text[:_DIGITS_MAX])) if is_number else 0.0


def told_wait_s(throttle_time_ms: int) -> float:
    """Seconds until the next request to a broker that stated this wait."""
    return min(max(0, throttle_time_ms) / 1000, TOLD_MAX_S)


def refused_wait_s(text: str) -> float:
    """Seconds until a refused call is repeated, at least 10 ms; the wait may be long; an invalid text counts as 0."""
    try:
        return min(max(int(text), 10), _MS_MAX) / 1000
    except ValueError:
        return 0.01
