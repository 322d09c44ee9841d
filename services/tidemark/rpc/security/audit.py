# SPDX-License-Identifier: Apache-2.0
"""Audit lines of denials: one JSON line each, limited for each principal, so that denied loops do not fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from tidemark.core.security.acls import Operation, Resource
from tidemark.core.security.authorizer import Decision
from tidemark.runtime.metrics import METRICS, Metrics

AUDIT: Final = logging.getLogger("tidemark.audit")

_WINDOW_S: Final = 10.0
_LINES_MAX: Final = 20
"""Lines of one key, such as a principal, in a window."""
_KEYS_MAX: Final = 1_000
"""Number of keys that are counted separately in a window; all others share one count."""
_OTHERS: Final = ""
_CHARACTERS_MAX: Final = 1_000
_ITEMS_MAX: Final = 100
"""A fact of a line has this number of characters, or of items with this number of characters, at most: callers choose
names and numbers of partitions.
"""


def bounded(fact: object) -> object:
    """A fact for a line: the beginning of long texts, lists and mappings."""
    if isinstance(fact, str):
        return fact if len(fact) <= _CHARACTERS_MAX else f"{fact[:_CHARACTERS_MAX]}..."
    if isinstance(fact, Mapping):
        return {bounded(name): bounded(value) for name, value in islice(fact.items(), _ITEMS_MAX)}
    if isinstance(fact, list):
        more = [f"... and {len(fact) - _ITEMS_MAX} more"] if len(fact) > _ITEMS_MAX else []
        return [*map(bounded, fact[:_ITEMS_MAX]), *more]
    return fact


class LineLimit:
    """Bounds the lines that unknown callers can cause: 20 in ten seconds for each key.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._lines: dict[str, int] = {}

    def has_room(self, key: str) -> bool:
        """Whether one more line may be written for the key; counts the line."""
        now_s = self._now_s()
        if now_s >= self._until_s:
            self._until_s = now_s + _WINDOW_S
            self._lines.clear()
        counted = key if key in self._lines or len(self._lines) < _KEYS_MAX else _OTHERS
        self._lines[counted] = count = self._lines.get(counted, 0) + 1
        return count <= _LINES_MAX


class Audit:
    """Writes and counts denials.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, metrics: Metrics | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limit = LineLimit(now_s)
        self._denials = self._unwritten = None
        if metrics is not None:
            doc = "Denied operations, by resource type and operation"
            self._denials = metrics.counter("authorization_denials", doc, ("resource_type", "operation"))
            doc = "Denials without a line of the audit log: their principal had too many in ten seconds"
            self._unwritten = metrics.counter("audit_lines_dropped", doc)

    def denied(self, principal: str, host: str, operation: Operation, resource: Resource, decision: Decision) -> None:
        """Count a denial, and write its line unless the principal has too many."""
        if self._denials is not None:
            self._denials.labels(resource.type, operation).inc()
        if not self._limit.has_room(principal):
            if self._unwritten is not None:
                self._unwritten.inc()
            return
        facts = {
            "principal": principal,
            "host": host,
            "operation": str(operation),
            "resource": str(resource),
            "rule": decision.reason if decision.rule is None else str(decision.rule),
            "outcome": "DENIED",
        }
        AUDIT.warning("denied", extra=facts)


DENIALS: Final = Audit(METRICS)
"""The denials of this process; tests create their own."""
