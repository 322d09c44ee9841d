# SPDX-License-Identifier: Apache-2.0
"""Cancels reassignments: first the dry run with the replicas that each partition gets back, then the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.client.aio import AdminClient
from tidemark.console.page import NEED_S, Asked, Done, Refused, View
from tidemark.console.pages.dry_run import CHANGED, is_confirmed, named_partition, parameters, plan_id, without_plan
from tidemark.console.pages.paging import Part, part_of
from tidemark.core.reassignment.progress import ReassignmentPhase, ReassignmentProgress
from tidemark.model import TopicPartition

_NOTHING: Final = "No such reassignment is requested or running: there is nothing to cancel."
_KIND: Final = "cancel_reassignments"


async def load(asked: Asked) -> View | Done:
    """The page `/reassignments/cancel?topic=TOPIC&partition=P`, of all without a topic; POST cancels."""
    given = parameters(asked)
    chosen = await _chosen(asked, given)
    plan = plan_id(*((*one.partition, list(one.original), list(one.target)) for one in chosen))
    if not is_confirmed(asked, plan) or not chosen:
        notice = CHANGED if asked.changes else "" if chosen else _NOTHING
        return _view(asked, given, chosen, notice, plan if chosen else "")
    await _cancel(asked, chosen)
    data = {**_facts(given, part_of(chosen, {}, size=len(chosen))), "changed": True}
    return Done(View("Reassignments being cancelled", "tidemark reassign list", data))


async def _chosen(asked: Asked, given: Mapping[str, str]) -> list[ReassignmentProgress]:
    topic, partition = named_partition(given)
    found = await asked.read(
        "reassignments", lambda admin: admin.list_partition_reassignments(), AdminClient, patience_s=NEED_S
    )
    return sorted(
        (
            one
            for one in found.moves
            if one.phase is not ReassignmentPhase.CANCELLING
            and topic in ("", one.partition.topic)
            and partition in (None, one.partition.partition)
        ),
        key=lambda one: one.partition,
    )


async def _cancel(asked: Asked, chosen: Sequence[ReassignmentProgress]) -> None:
    partitions = [one.partition for one in chosen]
    altered = await asked.change(
        _KIND, lambda admin: admin.alter_partition_reassignments(cancel=partitions), AdminClient
    )
    for one in altered.outcomes:
        if one.error is not None:
            raise Refused(409, f"Nothing was cancelled: {one.partition}: {one.error.message}", error=one.error)


def _view(
    asked: Asked, given: Mapping[str, str], chosen: Sequence[ReassignmentProgress], notice: str, plan: str
) -> View:
    data = {
        **_facts(given, part_of(chosen, without_plan(given))),
        "changed": False,
        "notice": notice,
        "plan": plan,
        "may_change": asked.may_change,
        "fields": {name: given.get(name, "") for name in ("topic", "partition")},
    }
    return View("Cancel reassignments", "tidemark reassign list", data, 409 if notice else 200)


def _facts(given: Mapping[str, str], part: Part[ReassignmentProgress]) -> dict[str, object]:
    return {"partitions": [_row(one) for one in part.rows], "command": cancel_command(given), **part.facts()}


def _row(one: ReassignmentProgress) -> dict[str, object]:
    return {
        **one.partition._asdict(),
        "state": str(one.phase),
        "target_replicas": list(one.target),
        "original_replicas": list(one.original),
    }


def cancel_command(given: Mapping[str, str]) -> str:
    """The `tidemark` command that cancels the reassignments of a request: of a partition, of a topic, or all."""
    topic, partition = given.get("topic", ""), given.get("partition", "")
    return f"tidemark reassign cancel {f'{topic}:{partition}' if partition else topic or '--all'}"


def place_command(where: TopicPartition) -> str:
    """The command that cancels the reassignment of one partition."""
    return cancel_command({"topic": where.topic, "partition": str(where.partition)})
