# SPDX-License-Identifier: Apache-2.0
"""Output of a reassignment plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemark.cli.common.output import counted, listed, name_of, print_line, print_table
from tidemark.cli.common.units import shown_bytes

if TYPE_CHECKING:
    from tidemark.client.aio.admin.results import PlannedMoves

_SHOWN_MAX: Final = 50


def show_plan(planned: PlannedMoves) -> None:
    """Print a plan and its cost."""
    plan = planned.plan
    if not plan.moves:
        print_line("no reassignment is needed")
        return
    before = {move.partition: move.replicas for move in plan.current}
    print_table(
        ("partition", "from", "to"),
        [
            (name_of(move.partition), listed(before.get(move.partition, ())), listed(move.replicas))
            for move in plan.moves[:_SHOWN_MAX]
        ],
    )
    if len(plan.moves) > _SHOWN_MAX:
        print_line(f"... and {len(plan.moves) - _SHOWN_MAX} more; --output json has them all")
    print_table(
        ("broker", "replicas", "", "leaders", "", "bytes", ""),
        [
            (
                broker,
                was.replicas,
                f"-> {plan.after[broker].replicas}",
                was.leaders,
                f"-> {plan.after[broker].leaders}",
                shown_bytes(was.replica_bytes),
                f"-> {shown_bytes(plan.after[broker].replica_bytes)}",
            )
            for broker, was in plan.before.items()
        ],
    )
    print_line(cost_of(planned))


def cost_of(planned: PlannedMoves) -> str:
    """The cost of a plan in one line."""
    plan = planned.plan
    unknown = ""
    if planned.unknown_sizes:
        unknown = f"; the size of {counted(planned.unknown_sizes, 'partition')} is unknown"
    return (
        f"cost: {counted(len(plan.moves), 'reassignment')}, {counted(plan.moved_replicas, 'replica')} to copy, "
        f"{shown_bytes(plan.moved_bytes)}{unknown}"
    )


def plan_json(planned: PlannedMoves) -> Mapping[str, object]:
    """A plan and its cost as JSON; `moves` and `rollback` have the format of tidemark reassign execute."""
    plan = planned.plan
    return {
        "moves": {"version": 1, "partitions": [_entry(move.partition, move.replicas) for move in plan.moves]},
        "rollback": {"version": 1, "partitions": [_entry(move.partition, move.replicas) for move in plan.current]},
        "moved_replicas": plan.moved_replicas,
        "moved_bytes": plan.moved_bytes,
        "unknown_sizes": planned.unknown_sizes,
        "brokers": [
            {
                "broker_id": broker,
                "replicas_before": was.replicas,
                "replicas_after": plan.after[broker].replicas,
                "leaders_before": was.leaders,
                "leaders_after": plan.after[broker].leaders,
                "bytes_before": was.replica_bytes,
                "bytes_after": plan.after[broker].replica_bytes,
            }
            for broker, was in plan.before.items()
        ],
    }


def _entry(partition: tuple[str, int], replicas: Sequence[int]) -> Mapping[str, object]:
    return {"topic": partition[0], "partition": partition[1], "replicas": list(replicas)}
