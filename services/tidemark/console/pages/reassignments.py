# SPDX-License-Identifier: Apache-2.0
"""Reassignments of partitions: plan, progress, reason for a wait, the command that cancels; and recent refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemark.client.outputs.reassignments import progress_json
from tidemark.console.page import Asked, View
from tidemark.console.pages.cancel_reassignments import place_command
from tidemark.console.pages.paging import one_of, part_of, searched
from tidemark.core.reassignment.progress import ReassignmentPhase, ReassignmentProgress
from tidemark.model import Refusal

REFUSALS_MAX: Final = 20
_STATES: Final = ("all", "waiting", *ReassignmentPhase)


async def load(asked: Asked) -> View:
    """The page `/reassignments?q=TEXT&state=STATE&page=NUMBER`."""
    text = searched(asked.query)
    state = one_of(asked.query, "state", _STATES)
    found = await asked.need_admin("reassignments", lambda admin: admin.list_partition_reassignments())
    moves = [one for one in found.moves if text.lower() in one.partition.topic.lower() and _has_state(one, state)]
    part = part_of(sorted(moves, key=lambda one: one.partition), asked.query)
    data = {
        "moves": [_facts(one) for one in part.rows],
        "sums": _sums(found.moves),
        "refusals": [_refusal(one) for one in found.refusals[: -REFUSALS_MAX - 1 : -1]],
        "q": text,
        "state": state,
        "states": list(_STATES),
        **part.facts(),
    }
    return View("Reassignments", "tidemark reassign list", data)


def _has_state(one: ReassignmentProgress, state: str) -> bool:
    return state == "all" or (bool(one.waiting_for) if state == "waiting" else one.phase == state)


def _facts(one: ReassignmentProgress) -> dict[str, object]:
    copied = one.bytes_done is not None and one.bytes_total
    return {
        **progress_json(one),
        "percent": 100 * (one.bytes_done or 0) // (one.bytes_total or 1) if copied else None,
        "cancel_command": place_command(one.partition),
    }


def _sums(moves: Sequence[ReassignmentProgress]) -> dict[str, object]:
    """Counts of all reassignments, and the sum of the known bytes."""
    return {
        "count": len(moves),
        "waiting": sum(bool(one.waiting_for) for one in moves),
        "bytes_done": sum(one.bytes_done or 0 for one in moves),
        "bytes_total": sum(one.bytes_total or 0 for one in moves),
        "rate_bytes_per_s": sum(one.rate_bytes_per_s or 0 for one in moves),
    }


def _refusal(one: Refusal) -> dict[str, object]:
    where = one.partition
    return {
        "kind": one.kind,
        "topic": None if where is None else where.topic,
        "partition": None if where is None else where.partition,
        "code": str(one.error.code),
        "message": one.error.message,
        "request_id": one.request_id,
        "refused_at_ms": one.at_ms,
    }
