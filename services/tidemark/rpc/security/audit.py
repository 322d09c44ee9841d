# SPDX-License-Identifier: Apache-2.0
"""Audit lines of denials: one JSON line each, limited for each principal, so that denied loops do not fill the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tidemark.core.security.acls import Operation, Resource
from tidemark.core.security.authorizer import Decision
from tidemark.runtime.metrics import METRICS, Metrics

AUDIT: Final = logging.getLogger("tidemark.audit")

_WINDOW_S: Final = 10.0
_LINES_MAX: Final = 20
"""Lines of one principal in a window."""
_PRINCIPALS_MAX: Final = 1_000
"""Principals that are counted apart in a window; all others share one count."""
_OTHERS: Final = ""


class Audit:
    """Writes and counts denials.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, metrics: Metrics | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._lines: dict[str, int] = {}
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
        if not self._has_room(principal):
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

    def _has_room(self, principal: str) -> bool:
        now_s = self._now_s()
        if now_s >= self._until_s:
            self._until_s = now_s + _WINDOW_S
            self._lines.clear()
        key = principal if principal in self._lines or len(self._lines) < _PRINCIPALS_MAX else _OTHERS
        self._lines[key] = count = self._lines.get(key, 0) + 1
        return count <= _LINES_MAX


DENIALS: Final = Audit(METRICS)
"""The denials of this process; tests create their own."""
