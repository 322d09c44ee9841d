# SPDX-License-Identifier: Apache-2.0
"""Limit of events of an address per second, with a burst."""

from __future__ import annotations

from collections.abc import Hashable


class Rate:
    """Computes the number of seconds by which an event of an address is too early (generic cell rate algorithm).

    Args:
        per_s: events per second.
        at_once: events that may occur together after a time without events.
    """

    def __init__(self, per_s: float, at_once: int = 1) -> None:
        self._interval_s = 1 / per_s
        self._ahead_s = (at_once - 1) / per_s
        self._due_s: dict[Hashable, float] = {}

    def early_s(self, host: Hashable, now_s: float) -> float:
        """Count an event; seconds until the rate allows it."""
        due_s = max(now_s, self._due_s.get(host, now_s))
        self._due_s[host] = due_s + self._interval_s
        return max(0.0, due_s - self._ahead_s - now_s)

    def forget(self, now_s: float) -> None:
        """Drop the addresses without recent events."""
        quiet = [host for host, due_s in self._due_s.items() if due_s <= now_s]
        for host in quiet:
            del self._due_s[host]
