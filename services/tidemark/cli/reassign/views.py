# SPDX-License-Identifier: Apache-2.0
"""Output of reassignments: their plan; their progress as a live table on a terminal, lines elsewhere, and JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidemark.cli.common.output import counted, error_json, listed, name_of, print_line, print_table
from tidemark.client.units import shown_bytes, shown_duration
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentProgress
from tidemark.core.reassignment.request import ANY_LOG_DIR
from tidemark.model import Refusal, TopicPartition

if TYPE_CHECKING:
    from tidemark.client.aio.admin.results import PlannedMoves

COLUMNS: Final = ("partition", "from", "to", "state", "copied", "rate", "left", "throttle", "waits for")
REPLICA_COLUMNS: Final = ("partition", "broker", "is", "assigned", "state", "bytes", "directory")
_LIVE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "throttle")
_PLAN_ROWS_MAX: Final = 50
_ROWS_MAX: Final = 20
_LINES_MAX: Final = 50
"""With more reassignments, only a summary is printed."""
_REASONS_MAX: Final = 5
_LINE_EVERY_S: Final = 10.0


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
            for move in plan.moves[:_PLAN_ROWS_MAX]
        ],
    )
    if len(plan.moves) > _PLAN_ROWS_MAX:
        print_line(f"... and {len(plan.moves) - _PLAN_ROWS_MAX} more; --output json has them all")
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


def between_brokers(moved: ReassignmentProgress) -> tuple[str, str]:
    """Original and target replicas of a reassignment."""
    return listed(moved.original), listed(moved.target)


def row_of(
    moved: ReassignmentProgress, ends: Callable[[ReassignmentProgress], tuple[str, str]] = between_brokers
) -> tuple[str, ...]:
    """The cells of a reassignment under `COLUMNS`; `ends` returns source and target."""
    return (
        name_of(moved.partition),
        *ends(moved),
        str(moved.phase),
        _copied(moved),
        "-" if moved.rate_bytes_per_s is None else f"{shown_bytes(moved.rate_bytes_per_s)}/s",
        "-" if moved.eta_s is None else shown_duration(moved.eta_s),
        f"{shown_bytes(moved.throttle_bytes_per_s)}/s" if moved.throttle_bytes_per_s else "none",
        moved.waiting_for or "-",
    )


def replica_rows(moved: ReassignmentProgress) -> list[tuple[object, ...]]:
    """The replicas of a reassignment under `REPLICA_COLUMNS`."""
    return [
        (
            name_of(moved.partition),
            broker,
            "added" if broker in moved.adding else "removed" if broker in moved.removing else "kept",
            "yes" if broker in moved.assigned else "no",
            state,
            shown_bytes(moved.sizes_bytes.get(broker)),
            moved.log_dirs.get(broker, ANY_LOG_DIR),
        )
        for broker, state in sorted(moved.replicas.items())
    ]


def _copied(moved: ReassignmentProgress) -> str:
    if moved.bytes_done is None or moved.bytes_total is None:
        return "-"
    if not moved.bytes_total:
        return "nothing to copy"
    share = 100 * moved.bytes_done / moved.bytes_total
    return f"{share:.0f}% of {shown_bytes(moved.bytes_total)}"


def ended_json(ended: EndedReassignment) -> Mapping[str, object]:
    """A reassignment that ended, as JSON."""
    return {
        **ended.partition._asdict(),
        "replicas": list(ended.replicas),
        "error": error_json(ended.error),
    }


def refusal_json(refusal: Refusal) -> Mapping[str, object]:
    """A refusal as JSON."""
    where = refusal.partition
    return {
        "kind": refusal.kind,
        "topic": None if where is None else where.topic,
        "partition": None if where is None else where.partition,
        "error": error_json(refusal.error),
        "request_id": refusal.request_id,
        "refused_at_ms": refusal.at_ms,
    }


def summary(moves: Sequence[ReassignmentProgress]) -> str:
    """All reassignments in one line."""
    known = [one for one in moves if one.bytes_done is not None and one.bytes_total is not None]
    total = sum(one.bytes_total or 0 for one in known)
    done = sum(one.bytes_done or 0 for one in known)
    rate = sum(one.rate_bytes_per_s or 0 for one in moves)
    parts = [f"{counted(len(moves), 'partition')} left"]
    if total:
        parts.append(f"{100 * done / total:.0f}% of {shown_bytes(total)} copied")
    if rate:
        parts += [f"{shown_bytes(rate)}/s", f"about {shown_duration((total - done) / rate)} to go"]
    return ", ".join(parts)


class MoveView:
    """Shows progress on stdout, unless `silent`; `ends` returns source and target of a move, as shown."""

    def __init__(
        self,
        *,
        silent: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        ends: Callable[[ReassignmentProgress], tuple[str, str]] = between_brokers,
    ) -> None:
        self._silent = silent
        self._now_s = now_s
        self._ends = ends
        self._live: Live | None = None
        self._stack = ExitStack()
        self._said: dict[tuple[TopicPartition, tuple[int, ...]], tuple[str, str]] = {}
        self._summed_at_s = -_LINE_EVERY_S

    def __enter__(self) -> Self:
        if not self._silent and sys.stdout.isatty():
            console = Console(markup=False, highlight=False)
            self._live = self._stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, moves: Sequence[ReassignmentProgress], ended: Sequence[EndedReassignment], more: str = "") -> None:
        """Show the running moves, and those that ended since the last call."""
        if self._silent:
            return
        if len(moves) + len(ended) <= _LINES_MAX:
            for one in ended:
                verb = "is on" if one.error is None else "stays on"
                self.say(f"{name_of(one.partition)} {verb} {listed(one.replicas)}")
        if self._live is not None:
            self._live.update(_table(moves, more, self._ends) if moves else more.lstrip(",; "), refresh=True)
            return
        if len(moves) <= _LINES_MAX:
            self._show_each(moves)
        if moves and self._now_s() - self._summed_at_s >= _LINE_EVERY_S:
            self._summed_at_s = self._now_s()
            self.say(summary(moves) + more)
            if len(moves) > _LINES_MAX:
                reasons = Counter(one.waiting_for for one in moves if one.waiting_for)
                for why, count in reasons.most_common(_REASONS_MAX):
                    self.say(f"  {counted(count, 'partition')}: {why}")

    def _show_each(self, moves: Sequence[ReassignmentProgress]) -> None:
        """Print a line for each move whose state or reason for waiting changed."""
        for moved in moves:
            said = (str(moved.phase), moved.waiting_for)
            which = (moved.partition, moved.target)
            if self._said.get(which) != said:
                self._said[which] = said
                why = f", waits: {moved.waiting_for}" if moved.waiting_for else ""
                where = " -> ".join(self._ends(moved))
                self.say(f"{name_of(moved.partition)} {where} {said[0]}{why}")

    def say(self, line: str) -> None:
        """Print a line above the table; nothing if `silent`."""
        if self._silent:
            return
        if self._live is not None:
            self._live.console.print(line, soft_wrap=True)
        else:
            print_line(line)
            sys.stdout.flush()


def _table(
    moves: Sequence[ReassignmentProgress], more: str, ends: Callable[[ReassignmentProgress], tuple[str, str]]
) -> Table:
    shown = sorted(moves, key=lambda one: (one.phase == "queued", one.partition))[:_ROWS_MAX]
    hidden = f", {len(moves) - len(shown)} not shown" if len(shown) < len(moves) else ""
    table = Table(caption=summary(moves) + more + hidden, caption_justify="left")
    for name in _LIVE_COLUMNS:
        table.add_column(name, no_wrap=name != COLUMNS[-1], overflow="fold")
    for moved in shown:
        cells = dict(zip(COLUMNS, row_of(moved, ends), strict=True))
        table.add_row(*(cells[name] for name in _LIVE_COLUMNS))
    return table
