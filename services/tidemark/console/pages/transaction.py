# SPDX-License-Identifier: Apache-2.0
"""One transactional id: phase, producer, and the partitions of its open transaction."""

from __future__ import annotations

import shlex

from tidemark.client.aio.transaction_admin import TransactionAdmin
from tidemark.console.page import Asked, View
from tidemark.console.pages.paging import part_of


async def load(asked: Asked) -> View:
    """The page `/transactions/{id}?page=NUMBER`."""
    name = asked.path["id"]
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
