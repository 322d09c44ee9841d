# SPDX-License-Identifier: Apache-2.0
"""Access rules and quotas: searched, in pages; read-only."""

from __future__ import annotations

from typing import Final

from tidemark.console.pages.page import Asked, Refused, View
from tidemark.console.pages.paging import part_of
from tidemark.console.queries.cluster import SLOW_LIFE_MS
from tidemark.core.quotas.quotas import Limits, QuotaEntity
from tidemark.core.security.acls import Acl

SEARCH_CHARACTERS_MAX: Final = 249


async def load_acls(asked: Asked) -> View:
    """The page `/acls?q=TEXT&page=NUMBER`."""
    text = _searched(asked)
    found = await asked.need_admin("acls", lambda admin: admin.list_acls(), life_ms=SLOW_LIFE_MS)
    part = part_of([one for one in found if _mentions(one, text)], asked.query)
    data = {
        "acls": [{**one._asdict(), "sentence": str(one)} for one in part.rows],
        "acl_count": len(found),
        "q": text,
        **part.facts(),
    }
    return View("Access rules", "tidemark acl list", data)


async def load_quotas(asked: Asked) -> View:
    """The page `/quotas?q=TEXT&page=NUMBER`."""
    text = _searched(asked)
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


def _searched(asked: Asked) -> str:
    text = asked.query.get("q", "").strip()
    if len(text) > SEARCH_CHARACTERS_MAX:
        raise Refused(400, f"q has {len(text)} characters: want at most {SEARCH_CHARACTERS_MAX}.")
    return text


def _mentions(one: Acl, text: str) -> bool:
    return any(text.lower() in part.lower() for part in one)


def _quota(entity: QuotaEntity, limits: Limits) -> dict[str, object]:
    shown = {str(kind): limit for kind, limit in sorted(limits.items())}
    return {**entity._asdict(), "entity": str(entity), "limits": shown}
