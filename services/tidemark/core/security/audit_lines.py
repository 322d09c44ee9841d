# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit log, as services keep them in memory; the log itself has all lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidemark.errors import TidemarkError

OK: Final = "OK"
DENIED: Final = "DENIED"
CANCELLED: Final = "CANCELLED"
"""Outcome of a change whose caller cancelled the call; the change may have been made."""
FAILED: Final = "FAILED"
"""Outcome in a filter for all outcomes except OK and DENIED."""


class AuditLine(NamedTuple):
    """One line of the audit log.

    Attributes:
        at_ms: milliseconds since 1970, UTC.
        event: RPC of a change, such as "CreateTopic", or "denied".
        operation: operation of a denial; otherwise "".
        resource: such as "topic:orders"; "" for a change of several resources.
        outcome: OK, DENIED, CANCELLED or an error code.
        rule: that decided.
        facts: further facts of a change; long ones are cut.
    """

    at_ms: int
    event: str
    principal: str
    host: str
    operation: str
    resource: str
    outcome: str
    rule: str
    facts: Mapping[str, str]


class AuditFilter(NamedTuple):
    """Lines to select; "" selects all.

    Attributes:
        principal: text that the principal contains, in any case.
        resource: text that the resource, the event or a fact contains, in any case.
        outcome: OK, DENIED, FAILED or an error code.
        limit: the most lines of each service, the newest ones; 0: no limit.
    """

    principal: str = ""
    resource: str = ""
    outcome: str = ""
    limit: int = 0

    def selects(self, line: AuditLine) -> bool:
        """Whether the filter selects the line."""
        named = (line.resource, line.event, *line.facts.values())
        return (
            self._has_outcome(line.outcome)
            and self.principal.lower() in line.principal.lower()
            and any(self.resource.lower() in one.lower() for one in named)
        )

    def _has_outcome(self, outcome: str) -> bool:
        if self.outcome == FAILED:
            return outcome not in (OK, DENIED)
        return self.outcome in ("", outcome)


@dataclass(frozen=True, slots=True)
class ServiceAudit:
    """The lines of one service.

    Attributes:
        service: such as "broker 1".
        since_ms: start of the service, since 1970; 0: not known. No line is older.
        authorization_enabled: if false, no call is denied.
        lines: the newest first.
        error: why the service did not answer; then there are no lines.
    """

    service: str
    since_ms: int = 0
    authorization_enabled: bool = False
    lines: tuple[AuditLine, ...] = ()
    error: TidemarkError | None = None
