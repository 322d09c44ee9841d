# SPDX-License-Identifier: Apache-2.0
"""Access rules, quotas and the audit log: searched, in pages; read-only."""

from __future__ import annotations

import shlex
from typing import Final

from tidemark.console.page import Asked, View
from tidemark.console.pages.cluster import SLOW_LIFE_MS
from tidemark.console.pages.paging import one_of, part_of, searched
from tidemark.core.quotas.quotas import Limits, QuotaEntity
from tidemark.core.security.audit_lines import ServiceAudit

AUDIT_LINES_MAX: Final = 500
"""Number of lines of each service; a search finds older lines."""
OUTCOMES: Final = ("all", "ok", "denied", "failed")


async def load_acls(asked: Asked) -> View:
    """The page `/acls?q=TEXT&page=NUMBER`."""
    text = searched(asked.query)
    found = await asked.need_admin("acls", lambda admin: admin.list_acls(), life_ms=SLOW_LIFE_MS)
    part = part_of([one for one in found if any(text.lower() in word.lower() for word in one)], asked.query)
    data = {
        "acls": [{**one._asdict(), "sentence": str(one)} for one in part.rows],
        "acl_count": len(found),
        "q": text,
        **part.facts(),
    }
    return View("Access rules", "tidemark acl list", data)


async def load_quotas(asked: Asked) -> View:
    """The page `/quotas?q=TEXT&page=NUMBER`."""
    text = searched(asked.query)
    found = await asked.need_admin("quotas", lambda admin: admin.describe_client_quotas(), life_ms=SLOW_LIFE_MS)
    named = {str(entity): (entity, limits) for entity, limits in found.items()}
    part = part_of([named[name] for name in sorted(named) if text.lower() in name.lower()], asked.query)
    data = {
        "quotas": [_quota(entity, limits) for entity, limits in part.rows],
        "quota_count": len(found),
        "q": text,
        **part.facts(),
    }
    return View("Quotas", "tidemark quota list", data)


async def load_audit(asked: Asked) -> View:
    """The page `/audit?q=TEXT&principal=TEXT&outcome=ok|denied|failed&page=NUMBER`."""
    text, principal = searched(asked.query), searched(asked.query, "principal")
    outcome = one_of(asked.query, "outcome", OUTCOMES)
    code = "" if outcome == OUTCOMES[0] else outcome.upper()
    services = await asked.need_admin(
        "audit",
        lambda admin: admin.list_audit_lines(principal=principal, resource=text, outcome=code, limit=AUDIT_LINES_MAX),
        key=(text, principal, code),
        life_ms=SLOW_LIFE_MS,
    )
    lines = [(one.service, line) for one in services for line in one.lines]
    lines.sort(key=lambda pair: -pair[1].at_ms)
    part = part_of(lines, asked.query)
    data = {
        "lines": [{"service": service, **line._asdict()} for service, line in part.rows],
        "services": [_service(one) for one in services],
        "authorization_enabled": any(one.authorization_enabled for one in services),
        "q": text,
        "principal": principal,
        "outcome": outcome,
        "outcomes": OUTCOMES,
        **part.facts(),
    }
    chosen = (("--principal", principal), ("--resource", text), ("--outcome", code))
    options = [f"{name} {shlex.quote(value)}" for name, value in chosen if value]
    return View("Audit", " ".join(["tidemark audit", *options]), data)


def _service(one: ServiceAudit) -> dict[str, object]:
    error = None if one.error is None else one.error.message
    return {"service": one.service, "since_ms": one.since_ms, "error": error}


def _quota(entity: QuotaEntity, limits: Limits) -> dict[str, object]:
    shown = {str(kind): limit for kind, limit in sorted(limits.items())}
    return {**entity._asdict(), "entity": str(entity), "limits": shown}
