# SPDX-License-Identifier: Apache-2.0
"""Transactions: those that hold a stable offset back, the transactional ids, open ones first, and one of the ids."""

from __future__ import annotations

import shlex
from typing import Final

from tidemark.client.aio.hanging_transactions import find_hanging
from tidemark.client.aio.transaction_admin import TransactionAdmin, TransactionListing
from tidemark.console.page import Asked, View
from tidemark.console.pages.paging import named, one_of, part_of, searched
from tidemark.core.transactions.phases import Phase

HANGING_MAX: Final = 50
HANGING_LIFE_MS: Final = 10_000
"""Every leader is asked for all of its partitions, so pages share the answer for longer."""
_STATES: Final = ("all", "open", *Phase)


async def load(asked: Asked) -> View:
    """The page `/transactions?q=TEXT&state=STATE&page=NUMBER`."""
    text = searched(asked.query)
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


async def load_one(asked: Asked) -> View:
    """The page `/transactions/{id}?page=NUMBER`."""
    name = named(asked.path["id"], "the transactional id")
    (found,) = await asked.need(
        "transaction", lambda admin: admin.describe_transactions([name]), TransactionAdmin, key=name
    )
    part = part_of(sorted(found.partitions), asked.query)
    quoted = shlex.quote(name)
    data = {
        "transactional_id": found.transactional_id,
        "phase": found.phase,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "started_at_ms": found.started_at_ms or None,
        "timeout_ms": found.timeout_ms,
        "updated_at_ms": found.updated_at_ms,
        "generation": found.generation,
        "last_sequence": found.last_sequence,
        "partitions": [{**where._asdict(), **producer._asdict()} for where, producer in part.rows],
        "abort_command": f"tidemark transaction abort {quoted}" if found.started_at_ms > 0 else None,
        **part.facts(),
    }
    return View(f"Transactional id {name}", f"tidemark transaction describe {quoted}", data)


def _has_state(one: TransactionListing, state: str) -> bool:
    return state == "all" or (one.started_at_ms > 0 if state == "open" else one.phase == state)
