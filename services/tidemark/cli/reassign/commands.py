# SPDX-License-Identifier: Apache-2.0
"""`tidemark reassign ...`: reassign partitions to other brokers (rule M1)."""

from __future__ import annotations

import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import Cluster, Commands, DryRunOption, TopicsArgument, parse_brokers, parse_targets
from tidemark.cli.common.output import (
    counted,
    error_json,
    listed,
    name_of,
    print_json,
    print_line,
    print_table,
    raise_all,
    shown_time,
)
from tidemark.cli.common.units import parse_rate
from tidemark.cli.reassign.copy_time import warn_of_long_copies
from tidemark.cli.reassign.log_dirs import (
    FoundReplica,
    Present,
    back,
    directories_state,
    follow_directories,
    found_json,
    look,
    places_of,
    present_directories,
    print_places,
)
from tidemark.cli.reassign.submit import MoveFeed, cancel, ended_meanwhile, interrupted, raise_refused
from tidemark.cli.reassign.views import (
    COLUMNS,
    REPLICA_COLUMNS,
    MoveView,
    cost_of,
    ended_json,
    plan_json,
    refusal_json,
    replica_rows,
    row_of,
)
from tidemark.client.outputs.reassignments import progress_json
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome
from tidemark.core.reassignment.request import ANY_LOG_DIR, format_reassignments, named_log_dirs, parse_reassignments
from tidemark.model import ErrorCode, PartitionReassignment, TidemarkError, TopicPartition, invalid_request
from tidemark.rpc.request_limits import in_requests
from tidemark.runtime.interrupts import signals_as_interrupt

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.core.cluster_view import TopicView

_SEE_LIST: Final = "tidemark reassign list shows their progress"
_FILE_BYTES_MAX: Final = 64 << 20

reassign_app = Commands(
    help="""Reassign partitions to other brokers.

\b
A reassignment copies replicas in the background, and completes when the new replicas are in sync. Clients produce and
consume all the time. In order:
  tidemark reassign execute moves.json --dry-run     show the plan
  tidemark reassign execute moves.json --throttle 50MB
  tidemark reassign list                             progress, and the reason for a wait
  tidemark reassign cancel test:2                    restore the original replicas
  tidemark reassign verify moves.json                compare the replicas with the file
To add or remove a broker: tidemark cluster add-brokers, tidemark cluster remove-brokers.
""",
)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Reassignments as JSON; - for stdin.", allow_dash=True, dir_okay=False)
]
ThrottleOption = Annotated[
    str,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Bytes per second that each broker sends to new replicas, such as 50MB; until the reassignments end.",
    ),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return after the start, without waiting for the end.")]


@reassign_app.command("generate", short_help="Propose an assignment of topics to brokers.")
def generate(
    topics: TopicsArgument = None,
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="0,1,2", help="Target brokers; default: all live brokers.")
    ] = "",
    cluster: Cluster = Cluster(),
) -> None:
    """Propose replicas for topics as if the topics were created now on these brokers; changes nothing.

    \b
    stdout has only the proposal, in the format of execute; the cost is on stderr. The proposal does not minimise the
    data to copy: tidemark cluster add-brokers and remove-brokers do. log_dirs is "any" everywhere: replace "any" by a
    log directory where that matters.

    \b
    Examples:
      tidemark reassign generate orders > moves.json
      tidemark reassign generate orders flights --brokers 0,1,2,3 > moves.json
      tidemark reassign generate --output json | jq .rollback
    """
    spread = parse_brokers([brokers]) if brokers else []
    with cluster.connect() as client:
        names = topics or client.list_topics()
        planned = client.plan_brokers(topics=names, spread=spread) if names else None
    if planned is None:
        raise TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no topic to reassign")
    if cluster.json:
        print_json(plan_json(planned))
        return
    moves = [replace(move, log_dirs=(ANY_LOG_DIR,) * len(move.replicas)) for move in planned.plan.moves]
    print_line(format_reassignments(moves).rstrip("\n"))
    typer.echo(f"{cost_of(planned)}; start it with tidemark reassign execute, which prints the rollback", err=True)


@reassign_app.command("execute", short_help="Start the reassignments of a file and wait.")
def execute(
    file: FileArgument,
    throttle: ThrottleOption = "",
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Start the reassignments of a file and wait until they complete.

    \b
    The file, for partition 2 of the topic test, with broker 2 as the preferred replica:
      {"version": 1,
       "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 1], "log_dirs": ["any", "any"]}]}
    log_dirs is optional. An entry other than "any" names a log directory of that broker, by path or uuid (tidemark
    log-dirs describe). A replica that stays on its broker is copied from one log directory to the other.
    The command first prints the current assignment in the same format: keep it as the rollback.
    If one reassignment is refused, none starts.

    \b
    Ctrl-C ends the wait, not the reassignments. A throttle below the produce rate of these partitions is refused, since
    the copy would never catch up. Reassignments that do not fit into one ZooKeeper node start as earlier ones end;
    keep the command running until then.

    \b
    Examples:
      tidemark reassign execute moves.json --dry-run
      tidemark reassign execute moves.json --throttle 50MB
      tidemark reassign execute moves.json --no-wait --output json
    """
    requested = read_file(file, throttle)
    moves, request_id = requested.moves, uuid.uuid4().hex
    with cluster.connect() as client:
        checked, present = _check(cluster, client, requested, request_id, dry_run=dry_run)
        if dry_run:
            return
        if requested.cancel:
            raise_refused(client.alter_partition_reassignments(cancel=requested.cancel, request_id=request_id).outcomes)
        before = {one.partition: one.before for one in checked}
        missing = [move for move in moves if before[move.partition] != move.replicas or named_log_dirs(move)]
        feed = MoveFeed(client, missing, requested.throttle_bytes_per_s, request_id)
        document: dict[str, object] = {"begun": bool(missing), "request_id": request_id, "ended": [], "directories": []}
        document["rollback"] = json.loads(format_reassignments(back(checked, present)))
        try:
            with signals_as_interrupt():
                ended = _carry_out(cluster, feed, len(missing), no_wait=no_wait)
            document["ended"] = [ended_json(one) for one in ended]
            errors = {one.partition: one.error for one in ended if one.error is not None}
            placed = [] if no_wait else follow_directories(client, missing, errors.keys(), silent=cluster.json)
            document["directories"] = [found_json(found) for found, _ in placed]
        finally:
            if cluster.json and (feed.has_begun or not missing):
                print_json(document)  # an error or Ctrl-C ends the wait only: the rollback must not be lost
    failed = list(errors.values())
    if not cluster.json:
        if len(missing) < len(moves):
            print_line(f"{counted(len(moves) - len(missing), 'partition')} had these replicas already")
        done = f"{counted(len(ended) - len(failed), 'reassignment')} completed"
        print_line(f"{counted(len(missing), 'reassignment')} started; {_SEE_LIST}" if no_wait else done)
    failed += [error for _, error in placed if error is not None]
    raise_all(failed)


def _check(
    cluster: Cluster, client: AdminClient, requested: RequestedMoves, request_id: str, *, dry_run: bool
) -> tuple[Sequence[ReassignmentOutcome], Present]:
    """Validate and show the plan; returns it with the current log directories, or raises the refusals."""
    checked: list[ReassignmentOutcome] = []
    for some in in_requests(requested.moves):
        checked += client.alter_partition_reassignments(
            some,
            cancel=() if checked else requested.cancel,
            throttle_bytes_per_s=requested.throttle_bytes_per_s,
            validate_only=True,
            request_id=request_id,
        ).outcomes
    refused = [outcome.error for outcome in checked if outcome.error is not None]
    present = {} if refused else present_directories(client, requested.moves, checked)
    if not cluster.json and (dry_run or not refused):
        _show_plan(checked, requested.moves, None if dry_run else present)
    if dry_run and cluster.json:
        print_json({"moves": [_outcome_json(one, requested.moves) for one in checked], "begun": False})
    raise_all(refused)
    before = {one.partition: one.before for one in checked}
    warn_of_long_copies(client, requested.moves, before, requested.throttle_bytes_per_s)
    return checked, present


def _carry_out(cluster: Cluster, feed: MoveFeed, count: int, *, no_wait: bool) -> list[EndedReassignment]:
    """Start the `count` reassignments of a feed, and follow them to their end."""
    try:
        left = feed.begin()
        if no_wait and left:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST,
                f"{count - left} of {count} reassignments are started, the other reassignments do not fit into "
                "ZooKeeper's node; run the command again without --no-wait to start them later",
                {"moves_begun": str(count - left)},
            )
        with MoveView(silent=no_wait or cluster.json) as view:
            return [] if no_wait else feed.follow(view)
    except KeyboardInterrupt:
        raise interrupted("the reassignment") from None


@reassign_app.command("verify", short_help="Compare the replicas with a file.")
def verify(file: FileArgument, cluster: Cluster) -> None:
    """Compare partitions with a file: their replicas, and log directories that the file names. Exit status 0 if all
    are equal, else 1.

    \b
    The state of a replica with a named log directory: done, copying (with the progress), or elsewhere (with the reason,
    if the broker knows one). The state is unknown if the broker does not answer.

    \b
    Examples:
      tidemark reassign verify moves.json
      tidemark reassign verify moves.json --output json | jq '.[] | select(.state != "done")'
    """
    moves = [move for move in read_moves(file) if not move.cancel]
    with cluster.connect() as client:
        running = {one.partition: one for one in client.list_partition_reassignments().moves}
        topics = {view.topic: view for view in client.describe_topics(sorted({move.partition.topic for move in moves}))}
        known = [move for move in moves if _replicas(topics.get(move.partition.topic), move.partition.partition)]
        places = look(client, places_of(known))
    placed: defaultdict[TopicPartition, list[FoundReplica]] = defaultdict(list)
    for one in places:
        placed[one.place.partition].append(one)
    rows = []
    for move in sorted(moves, key=lambda one: one.partition):
        replicas = _replicas(topics.get(move.partition.topic), move.partition.partition)
        progress = running.get(move.partition)
        state = "gone" if not replicas else "done" if replicas == move.replicas else "different"
        if progress is not None:
            state = str(progress.phase) if progress.target == move.replicas else "moved elsewhere"
        found = placed[move.partition]
        rows.append((move, replicas, directories_state(found) if state == "done" else state, found))
    if cluster.json:
        print_json(
            [
                {
                    **move.partition._asdict(),
                    "wanted_replicas": list(move.replicas),
                    "replicas": list(replicas),
                    "state": state,
                    "log_dirs": [found_json(one) for one in found],
                }
                for move, replicas, state, found in rows
            ]
        )
    else:
        print_table(
            ("partition", "wanted", "replicas", "state"),
            [(name_of(move.partition), listed(move.replicas), listed(now), state) for move, now, state, _ in rows],
        )
        print_places(places)
    if any(state != "done" for _, _, state, _ in rows):
        raise typer.Exit(1)


@reassign_app.command("list", short_help="List running reassignments.")
def list_moves(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="Topics or partitions; default: all.",
            autocompletion=completion.places,
        ),
    ] = None,
    cluster: Cluster = Cluster(),
) -> None:
    """List requested and running reassignments with progress, rate and the reason for a wait; and recent refusals.

    \b
    Named topics and partitions are shown with their replicas: new, online, offline or non-existent.
    States: queued (not started), copying, finishing (leader election and removal of old replicas), cancelling.
    The refusals include a manually written node /admin/reassign_partitions that was refused.

    \b
    Examples:
      tidemark reassign list
      tidemark reassign list test:2 orders
      tidemark reassign list --output json | jq '.moves[] | select(.waiting_for != "")'
    """
    topics, partitions = parse_targets(targets or [])
    with cluster.connect() as client:
        found = client.list_partition_reassignments()
    moves = [one for one in found.moves if not targets or one.partition.topic in topics or one.partition in partitions]
    if cluster.json:
        print_json(
            {
                "moves": [progress_json(moved) for moved in moves],
                "refusals": [refusal_json(refusal) for refusal in found.refusals],
            }
        )
        return
    if moves:
        print_table(COLUMNS, [row_of(moved) for moved in moves])
        if targets:
            print_table(REPLICA_COLUMNS, [row for moved in moves for row in replica_rows(moved)])
    else:
        print_line("no reassignment is requested or running")
    if found.refusals:
        print_line("recent refusals:")
        print_table(
            ("when (UTC)", "what", "partition", "why"),
            [
                (
                    shown_time(one.at_ms),
                    one.kind,
                    "-" if one.partition is None else name_of(one.partition),
                    f"{one.error.code}: {one.error.message}",
                )
                for one in found.refusals
            ],
        )


@reassign_app.command("cancel", short_help="Cancel: restore the original replicas.")
def cancel_moves(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="Topics or partitions.", autocompletion=completion.places),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All reassignments.")] = False,
    no_wait: NoWaitOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Cancel reassignments: each partition gets its original replicas back, in their order.

    A reassignment that ends before its cancellation is reported; it is an error if its partition was named.

    \b
    Examples:
      tidemark reassign cancel test:2
      tidemark reassign cancel test
      tidemark reassign cancel --all --no-wait
    """
    if everything == bool(targets):
        raise typer.BadParameter("expected partitions or topics, or --all")
    topics, partitions = parse_targets(targets or [])
    with cluster.connect() as client:
        moves = client.list_partition_reassignments().moves
        found = {
            one.partition: one.original
            for one in moves
            if (everything or one.partition.topic in topics) and one.partition not in partitions
        }
        if not found and not partitions:
            raise TidemarkError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                "no matching reassignment is requested or running: nothing to cancel",
            )
        meanwhile, refused = cancel(client, sorted(set(partitions)), found)
        chosen = {*partitions, *found}.difference(meanwhile, refused)
        ended = []
        try:
            with MoveView(silent=no_wait or cluster.json) as view:
                for left, ends in () if no_wait or not chosen else client.watch_partition_reassignments(sorted(chosen)):
                    view.show(left, ends)
                    ended += ends
        except KeyboardInterrupt:
            raise interrupted("the cancellation") from None
    too_late = ended_meanwhile(found, ended)
    meanwhile |= too_late
    chosen -= too_late
    failed = [one.error for one in ended if one.error is not None and one.partition not in too_late]
    results = {"cancelled": chosen, "ended_meanwhile": meanwhile}
    names = {result: [name_of(one) for one in sorted(which)] for result, which in results.items()}
    if cluster.json:
        print_json({**names, "ended": [ended_json(one) for one in ended]})
    else:
        count = counted(len(chosen) - len(failed), "reassignment")
        print_line(f"{count} {'to be ' if no_wait else ''}cancelled")
        if meanwhile:
            before = ", ".join(names["ended_meanwhile"])
            print_line(f"{counted(len(meanwhile), 'reassignment')} ended before: {before}")
    failed += refused.values()
    raise_all(failed)


class RequestedMoves(NamedTuple):
    """Reassignments and cancellations of a file; `throttle_bytes_per_s` 0: no throttle."""

    moves: list[PartitionReassignment]
    cancel: list[TopicPartition]
    throttle_bytes_per_s: int


def read_file(file: Path, throttle: str) -> RequestedMoves:
    """Reassignments, cancellations and throttle of a file; `throttle` overrides the file.

    Raises:
        TidemarkError: for malformed entries, after all of them are printed.
    """
    rate = parse_rate(throttle) if throttle else None
    moves = read_moves(file)
    begun = [move for move in moves if not move.cancel]
    rates = {move.throttle_bytes_per_s for move in begun}
    if rate is None and len(rates) > 1:
        raise invalid_request(
            "the file has several throttles, and a request can have only one: split the file, or give --throttle"
        )
    chosen = rate if rate is not None else next(iter(rates), 0)
    return RequestedMoves(begun, [move.partition for move in moves if move.cancel], chosen)


def read_moves(file: Path) -> tuple[PartitionReassignment, ...]:
    """The entries of a file, one or more; malformed entries are all printed, then raised."""
    moves, errors = parse_reassignments(_content(file))
    raise_all(errors)
    if not moves:
        raise invalid_request(f"{file} names no partition")
    return moves


def _content(file: Path) -> bytes:
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(_FILE_BYTES_MAX)
        with file.open("rb") as opened:
            return opened.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise invalid_request(f"{file} cannot be read: {error.strerror}") from None


def _replicas(topic: TopicView | None, index: int) -> tuple[int, ...]:
    if topic is None or index not in topic.partitions:
        return ()
    return tuple(topic.partitions[index].assigned_replicas)


def _show_plan(
    outcomes: Sequence[ReassignmentOutcome], moves: Sequence[PartitionReassignment], rollback: Present | None
) -> None:
    """Print the plan; with `rollback` (the current log directories), first the current assignment."""
    targets = {move.partition: move for move in moves}
    if rollback is not None:
        print_line("the current assignment; keep it, it is the rollback:")
        print_line(format_reassignments(back(outcomes, rollback)).rstrip("\n"))
    print_table(
        ("partition", "from", "to"),
        [
            (
                name_of(one.partition),
                listed(one.before),
                "as before" if one.cancelled else _to(targets[one.partition]),
            )
            for one in outcomes
            if one.error is None
        ],
    )


def _to(move: PartitionReassignment) -> str:
    named = named_log_dirs(move)
    directories = "".join(f"; on {broker} in {named[broker]}" for broker in move.replicas if broker in named)
    return listed(move.replicas) + directories


def _outcome_json(outcome: ReassignmentOutcome, moves: Sequence[PartitionReassignment]) -> Mapping[str, object]:
    move = next((move for move in moves if move.partition == outcome.partition), None)
    return {
        **outcome.partition._asdict(),
        "replicas_before": list(outcome.before),
        "replicas": [] if move is None else list(move.replicas),
        "log_dirs": [] if move is None else list(move.log_dirs),
        "cancelled": outcome.cancelled,
        "error": error_json(outcome.error),
    }
