# SPDX-License-Identifier: Apache-2.0
"""The last lines of the audit log in memory.

The ring gets exactly the lines of the log, so a caller that is denied in a loop cannot fill the ring faster.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from heapq import merge
from itertools import islice
from typing import Final

from tidemark.core.security.audit_lines import DENIED, AuditFilter, AuditLine, ServiceAudit
from tidemark.rpc.security.audit import AUDIT
from tidemark.runtime.logging import extra_of

LINES_MAX: Final = 1_000
"""Changes, and the same number of denials: these never evict changes."""
FACT_CHARACTERS_MAX: Final = 300
_FACTS_MAX: Final = 20
_OWN: Final = ("principal", "host", "operation", "resource", "outcome", "rule", "peer")
_NAMED: Final = ("topic", "group", "transactional_id")


class AuditRing(logging.Handler):
    """A handler of the audit logger."""

    def __init__(self) -> None:
        super().__init__()
        self.since_ms = time.time_ns() // 1_000_000
        self._count = 0
        self._changes: deque[tuple[int, AuditLine]] = deque(maxlen=LINES_MAX)
        self._denials: deque[tuple[int, AuditLine]] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an audit line in the ring."""
        line = _line(record, extra_of(record))
        self._count += 1
        (self._denials if line.outcome == DENIED else self._changes).append((self._count, line))

    def audit(self, service: str, wanted: AuditFilter, *, authorization_enabled: bool) -> ServiceAudit:
        """The audit lines that the filter selects."""
        kept = tuple(self._changes)[::-1], tuple(self._denials)[::-1]
        both = merge(*kept, key=lambda numbered: -numbered[0])
        selected = (line for _, line in both if wanted.selects(line))
        lines = tuple(islice(selected, wanted.limit if wanted.limit > 0 else None))
        return ServiceAudit(service, self.since_ms, authorization_enabled, lines)


RING: Final = AuditRing()
"""The lines of this process, from `keep_audit_lines` on; tests create their own."""


def keep_audit_lines() -> None:
    """Begin to keep the lines of this process."""
    AUDIT.addHandler(RING)


def _line(record: logging.LogRecord, extra: Mapping[str, object]) -> AuditLine:
    own = {name: _cut(extra.get(name, "")) for name in _OWN}
    others = [(name, value) for name, value in extra.items() if name not in _OWN and value not in ("", [], {})]
    facts = {name: _cut(value) for name, value in others[:_FACTS_MAX]}
    resource = own["resource"] or next((f"{name}:{facts.pop(name)}" for name in _NAMED if name in facts), "")
    return AuditLine(
        int(record.created * 1000),
        record.getMessage(),
        own["principal"],
        own["host"],
        own["operation"],
        resource,
        own["outcome"],
        own["rule"],
        facts,
    )


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= FACT_CHARACTERS_MAX else f"{text[:FACT_CHARACTERS_MAX]}..."
