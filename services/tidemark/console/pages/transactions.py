# SPDX-License-Identifier: Apache-2.0
"""Transactions: those that hold a stable offset back, and the transactional ids, open ones first."""

from __future__ import annotations

from typing import Final

from tidemark.client.aio.hanging_transactions import find_hanging
from tidemark.client.aio.transaction_admin import TransactionAdmin, TransactionListing
from tidemark.console.page import Asked, Refused, View
from tidemark.console.pages.paging import one_of, part_of
from tidemark.core.transactions.phases import Phase

ID_CHARACTERS_MAX: Final = 249
HANGING_MAX: Final = 50
HANGING_LIFE_MS: Final = 10_000
"""Every leader is asked for all of its partitions, so pages share the answer for longer."""
_STATES: Final = ("all", "open", *Phase)


async def load(asked: Asked) -> View:
    """The page `/transactions?q=TEXT&state=STATE&page=NUMBER`."""
    text = asked.query.get("q", "").strip()
    if len(text) > ID_CHARACTERS_MAX:
        raise Refused(400, f"q has {len(text)} characters: expected at most {ID_CHARACTERS_MAX}.")
    state = one_of(asked.query, "state", _STATES)
    listed, missing = await asked.need("transactions", lambda admin: admin.list_transactions(), TransactionAdmin)
    held = await asked.see(
        "hanging", lambda admin: find_hanging(admin, (), 0, asked.now_ms()), TransactionAdmin, life_ms=HANGING_LIFE_MS
    )
    hanging, unknown = held.value or ([], [])
    found = [one for one in listed if text.lower() in one.transactional_id.lower() and _has_state(one, state)]
    found.sort(key=lambda one: (one.started_at_ms <= 0, one.started_at_ms, one.transactional_id))
    part = part_of(found, asked.query)
    data = {
        "hanging": [one.as_json() for one in hanging[:HANGING_MAX]],
        "hanging_count": len(hanging) if held.value is not None else None,
        "transactions": [{**one._asdict(), "started_at_ms": one.started_at_ms or None} for one in part.rows],
        "open_count": sum(one.started_at_ms > 0 for one in listed),
        "id_count": len(listed),
        "missing": sorted({error.message for error in (*missing, *unknown)}),
        "q": text,
        "state": state,
        "states": list(_STATES),
        **part.facts(),
    }
    return View("Transactions", "tidemark transaction find-hanging --open-longer-than 0", data)


def _has_state(one: TransactionListing, state: str) -> bool:
    return state == "all" or (one.started_at_ms > 0 if state == "open" else one.phase == state)
