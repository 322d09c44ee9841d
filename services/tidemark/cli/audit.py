# SPDX-License-Identifier: Apache-2.0
"""`tidemark audit`: lines of the audit log that services have in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import Cluster
from tidemark.cli.common.output import error_json, print_json, print_line, print_table, print_warning, shown_time

if TYPE_CHECKING:
    from tidemark.core.security.audit_lines import AuditLine, ServiceAudit

_COLUMNS: Final = ("time (UTC)", "service", "principal", "host", "event", "resource", "outcome", "rule or facts")
_FACTS_CHARACTERS_MAX: Final = 120


def audit(
    principal: Annotated[
        str, typer.Option("--principal", metavar="NAME", help="Only callers whose name contains this text.")
    ] = "",
    resource: Annotated[
        str,
        typer.Option("--resource", metavar="NAME", help="Only lines whose resource, event or facts contain this text."),
    ] = "",
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="OUTCOME", help="OK, DENIED, FAILED (all others) or an error code.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most this many lines.")] = 100,
    cluster: Cluster = Cluster(),
) -> None:
    """Show the last changes and denials, the newest at the end.

    \b
    The lines come from the memory of the brokers and of the admin service that answers, since their start. The log of
    each service is the record: its logger tidemark.audit has the same lines. The command needs ALTER on the cluster.

    \b
    Examples:
      tidemark audit
      tidemark audit --outcome DENIED --principal alice
      tidemark audit --resource orders --output json | jq -r '.lines[].event'
    """
    with cluster.connect() as client:
        services = client.list_audit_lines(principal=principal, resource=resource, outcome=outcome.upper(), limit=limit)
    found = [(one.service, line) for one in services for line in one.lines]
    newest = sorted(found, key=lambda pair: pair[1].at_ms)[-limit:]
    if cluster.json:
        lines = [{"service": service, **line._asdict()} for service, line in newest]
        print_json({"lines": lines, "services": list(map(_service_json, services))})
    elif newest:
        print_table(_COLUMNS, [_row(*pair) for pair in newest])
    else:
        print_line("there is no such line")
    for one in services:
        if one.error is not None:
            print_warning(f"lines of {one.service} are missing: {one.error.message}")


def _row(service: str, line: AuditLine) -> Sequence[object]:
    facts = ", ".join(f"{name}={value}" for name, value in sorted(line.facts.items()))
    event = f"{line.event} {line.operation}".rstrip()
    shown = facts if len(facts) <= _FACTS_CHARACTERS_MAX else f"{facts[:_FACTS_CHARACTERS_MAX]}..."
    last = shown or line.rule
    return (shown_time(line.at_ms), service, line.principal, line.host, event, line.resource, line.outcome, last)


def _service_json(one: ServiceAudit) -> Mapping[str, object]:
    return {
        "service": one.service,
        "since_ms": one.since_ms,
        "authorization_enabled": one.authorization_enabled,
        "error": error_json(one.error),
    }
