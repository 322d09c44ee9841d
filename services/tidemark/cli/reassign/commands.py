# SPDX-License-Identifier: Apache-2.0
"""`tidemark reassign ...`: move replicas between brokers (rule M1)."""

from __future__ import annotations

import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, counted, error_json, print_json, print_line, print_table
from tidemark.cli.common.partition_targets import parse_targets
from tidemark.cli.common.units import parse_rate
from tidemark.cli.reassign.cancel import ended_meanwhile, give_up, raise_refused
from tidemark.cli.reassign.log_dir_status import FoundReplica, look, places_of
from tidemark.cli.reassign.log_dirs import (
    Placed,
    Present,
    back,
    copying_goes_on,
    directories_state,
    follow_directories,
    found_json,
    present_directories,
    print_places,
)
from tidemark.cli.reassign.plan_view import cost_of, parse_brokers, plan_json
from tidemark.cli.reassign.progress_view import (
    COLUMNS,
    REPLICA_COLUMNS,
    MoveView,
    ended_json,
    listed,
    name_of,
    progress_json,
    refusal_json,
    replica_rows,
    row_of,
)
from tidemark.cli.reassign.submit import MoveFeed, interrupted, raise_all
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome
from tidemark.core.reassignment.request import ANY_LOG_DIR, format_reassignments, named_log_dirs, parse_reassignments
from tidemark.model import ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.core.cluster_view import TopicView

_LOOK: Final = "tidemark reassign list shows how far they are"
_FILE_BYTES_MAX: Final = 64 << 20

reassign_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Move replicas between brokers.

\b
A move is asked for, copied in the background, and done when the new replicas are in sync; the topic is written and
read all the while. In order:
  tidemark reassign execute moves.json --dry-run     what would be done
  tidemark reassign execute moves.json --throttle 50MB
  tidemark reassign list                             how far it is, and what it waits for
  tidemark reassign cancel test:2                    the original replicas again
  tidemark reassign verify moves.json                whether all is as the file says
To add a broker, or to take one away: tidemark cluster add-brokers, tidemark cluster remove-brokers.
""",
)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Moves as JSON; - for stdin.", allow_dash=True, dir_okay=False)
]
ThrottleOption = Annotated[
    str,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="What each broker may send in a second to new replicas, such as 50MB; it ends with the moves.",
    ),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Return when it is begun, not when it is done.")]


@reassign_app.callback()
def reassign() -> None:
    """Move replicas between brokers."""


@reassign_app.command("generate", short_help="Propose moves that spread topics over brokers.")
def generate(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Which; all if none is named.")] = None,
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="0,1,2", help="Where they shall be; all live brokers if left out.")
    ] = "",
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Propose moves that spread topics over brokers as if they were created now; changes nothing.

    \b
    stdout has the proposal alone, in the form that execute takes; what it costs is on stderr.
    Nothing is spared: to move as little as possible see tidemark cluster add-brokers and remove-brokers.
    log_dirs is "any" throughout: put in the log directory that a replica shall lie in where that matters.

    \b
    Examples:
      tidemark reassign generate orders > moves.json
      tidemark reassign generate orders flights --brokers 0,1,2,3 > moves.json
      tidemark reassign generate --output json | jq .rollback
    """
    spread = parse_brokers([brokers]) if brokers else []
    with connect_admin(bootstrap, admin) as client:
        names = topics or client.list_topics()
        planned = client.plan_brokers(topics=names, spread=spread) if names else None
    if planned is None:
        raise TidemarkError(ErrorCode.UNKNOWN_TOPIC, "there is no topic to spread")
    if output is Output.JSON:
        print_json(plan_json(planned))
        return
    moves = [replace(move, log_dirs=(ANY_LOG_DIR,) * len(move.replicas)) for move in planned.plan.moves]
    print_line(format_reassignments(moves).rstrip("\n"))
    typer.echo(f"{cost_of(planned)}; execute it with tidemark reassign execute, which prints the way back", err=True)


@reassign_app.command("execute", short_help="Begin the moves of a file, wait until they are done.")
def execute(
    file: FileArgument,
    throttle: ThrottleOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show what would move, change nothing.")] = False,
    no_wait: NoWaitOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Begin the moves of a file and wait until they are done.

    \b
    The file, for partition 2 of the topic test, with broker 2 as its preferred leader:
      {"version": 1,
       "partitions": [{"topic": "test", "partition": 2, "replicas": [2, 1], "log_dirs": ["any", "any"]}]}
    log_dirs may be left out. Instead of "any" it names the log directory that a replica shall lie in on its broker, by
    path or uuid (tidemark log-dirs describe); a replica that stays on its broker is copied from one to the other.
    Before anything begins, the present assignment is printed in the same form: keep it, and execute it to go back.
    Nothing is begun if any move is refused.

    \b
    Ctrl-C ends the waiting, not the moves. A throttle below what producers write to these partitions is refused: such
    a move would never end. More moves than fit into one ZooKeeper node are begun as earlier ones end; keep it running.

    \b
    Examples:
      tidemark reassign execute moves.json --dry-run
      tidemark reassign execute moves.json --throttle 50MB
      tidemark reassign execute moves.json --no-wait --output json
    """
    asked = read_file(file, throttle)
    moves, request_id = asked.moves, uuid.uuid4().hex
    with connect_admin(bootstrap, admin) as client:
        checked, present = _check(client, asked, request_id, output, dry_run=dry_run)
        if dry_run:
            return
        if asked.cancel:
            raise_refused(client.alter_partition_reassignments(cancel=asked.cancel, request_id=request_id).outcomes)
        before = {one.partition: one.before for one in checked}
        missing = [move for move in moves if before[move.partition] != move.replicas or named_log_dirs(move)]
        feed = MoveFeed(client, missing, asked.throttle_bytes_per_s, request_id)
        ended = _carry_out(feed, len(missing), output, no_wait=no_wait)
        placed = [] if no_wait else _place(client, missing, ended, output)
    failed = [one.error for one in ended if one.error is not None]
    if output is Output.JSON:
        rollback = json.loads(format_reassignments(back(checked, present)))
        _print_ended(request_id, ended, placed, rollback, begun=bool(missing))
    else:
        if len(missing) < len(moves):
            print_line(f"{counted(len(moves) - len(missing), 'partition')} had these replicas already")
        done = f"{counted(len(ended) - len(failed), 'move')} done"
        print_line(f"{counted(len(missing), 'move')} begun; {_LOOK}" if no_wait else done)
    failed += [error for _, error in placed if error is not None]
    if failed:
        raise_all(failed)


def _check(
    client: AdminClient, asked: AskedMoves, request_id: str, output: Output, *, dry_run: bool
) -> tuple[Sequence[ReassignmentOutcome], Present]:
    """What would become of every move, shown, and where replicas lie now; raises if any is refused."""
    checked = client.alter_partition_reassignments(
        asked.moves,
        cancel=asked.cancel,
        throttle_bytes_per_s=asked.throttle_bytes_per_s,
        validate_only=True,
        request_id=request_id,
    ).outcomes
    refused = [outcome.error for outcome in checked if outcome.error is not None]
    present = {} if refused else present_directories(client, asked.moves, checked)
    if output is Output.TEXT and (dry_run or not refused):
        _show_plan(checked, asked.moves, None if dry_run else present)
    if dry_run and output is Output.JSON:
        print_json({"moves": [_outcome_json(one, asked.moves) for one in checked], "begun": False})
    if refused:
        raise_all(refused)
    return checked, present


def _print_ended(
    request_id: str, ended: Sequence[EndedReassignment], placed: Sequence[Placed], rollback: object, *, begun: bool
) -> None:
    print_json(
        {
            "begun": begun,
            "request_id": request_id,
            "ended": [ended_json(one) for one in ended],
            "directories": [found_json(found) for found, _ in placed],
            "rollback": rollback,
        }
    )


def _place(
    client: AdminClient, moves: Sequence[PartitionReassignment], ended: Sequence[EndedReassignment], output: Output
) -> list[Placed]:
    """Moves end when brokers have been told the directories; what they still copy between these is followed here."""
    failed = {one.partition for one in ended if one.error is not None}
    try:
        return follow_directories(client, moves, failed, silent=output is Output.JSON)
    except KeyboardInterrupt:
        raise copying_goes_on() from None


def _carry_out(feed: MoveFeed, count: int, output: Output, *, no_wait: bool) -> list[EndedReassignment]:
    """Begin the moves of a feed, `count` of them, and follow them to their end."""
    try:
        left = feed.begin()
        if no_wait and left:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST,
                f"{count - left} of {count} moves are begun, the others do not fit into ZooKeeper's node; "
                "run it again without --no-wait: they begin as earlier ones end",
                {"moves_begun": str(count - left)},
            )
        with MoveView(silent=no_wait or output is Output.JSON) as view:
            return [] if no_wait else feed.follow(view)
    except KeyboardInterrupt:
        raise interrupted("what was begun") from None


@reassign_app.command("verify", short_help="Whether all is as a file of moves says.")
def verify(
    file: FileArgument, bootstrap: BootstrapOption = "", admin: AdminOption = "", output: OutputOption = Output.TEXT
) -> None:
    """Tell whether every partition of a file has the replicas that it says, and each replica for which the file names a
    log directory lies there; exit status 0 if so, else 1.

    \b
    Of each such replica: there, copying (how far), elsewhere (why, where that is known), or unknown, when its broker
    does not answer.

    \b
    Examples:
      tidemark reassign verify moves.json
      tidemark reassign verify moves.json --output json | jq '.[] | select(.state != "done")'
    """
    moves = [move for move in read_moves(file) if not move.cancel]
    with connect_admin(bootstrap, admin) as client:
        under_way = {one.partition: one for one in client.list_partition_reassignments().moves}
        topics = {view.topic: view for view in client.describe_topics(sorted({move.partition.topic for move in moves}))}
        known = [move for move in moves if _replicas(topics.get(move.partition.topic), move.partition.partition)]
        places = look(client, places_of(known))
    placed: defaultdict[TopicPartition, list[FoundReplica]] = defaultdict(list)
    for one in places:
        placed[one.place.partition].append(one)
    rows = []
    for move in sorted(moves, key=lambda one: one.partition):
        replicas = _replicas(topics.get(move.partition.topic), move.partition.partition)
        progress = under_way.get(move.partition)
        state = "gone" if not replicas else "done" if replicas == move.replicas else "different"
        if progress is not None:
            state = str(progress.phase) if progress.target == move.replicas else "moved elsewhere"
        found = placed[move.partition]
        rows.append((move, replicas, directories_state(found) if state == "done" else state, found))
    if output is Output.JSON:
        print_json(
            [
                {
                    "topic": move.partition.topic,
                    "partition": move.partition.partition,
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


@reassign_app.command("list", short_help="Moves under way: how far, and what each waits for.")
def list_moves(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Which; all if none is named.")
    ] = None,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Moves that are wanted or under way: how far, how fast, what each waits for; and what was refused lately.

    \b
    Of partitions and topics that are named, each replica is shown too: new, online, offline or non-existent.
    States: queued (not begun), copying, finishing (leader and old replicas are settled), cancelling.
    A node /admin/reassign_partitions that was written by hand and refused is among the refusals, with the reason.

    \b
    Examples:
      tidemark reassign list
      tidemark reassign list test:2 orders
      tidemark reassign list --output json | jq '.moves[] | select(.waiting_for != "")'
    """
    topics, partitions = parse_targets(targets or [])
    with connect_admin(bootstrap, admin) as client:
        found = client.list_partition_reassignments()
    moves = [one for one in found.moves if not targets or one.partition.topic in topics or one.partition in partitions]
    if output is Output.JSON:
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
        print_line("no move is wanted or under way")
    if found.refusals:
        print_line("refused lately:")
        print_table(
            ("when (UTC)", "what", "partition", "why"),
            [
                (
                    datetime.fromtimestamp(one.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                    one.kind,
                    "-" if one.partition is None else name_of(one.partition),
                    f"{one.error.code}: {one.error.message}",
                )
                for one in found.refusals
            ],
        )


@reassign_app.command("cancel", short_help="Give moves up: the original replicas again.")
def cancel_moves(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Whose move is given up.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All moves there are.")] = False,
    no_wait: NoWaitOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Give moves up: the partitions get exactly their original replicas back, in their order.

    A move that ends meanwhile by itself is told as such; it is an error where its partition was named.

    \b
    Examples:
      tidemark reassign cancel test:2
      tidemark reassign cancel test
      tidemark reassign cancel --all --no-wait
    """
    if everything == bool(targets):
        raise typer.BadParameter("name partitions or topics, or say --all")
    topics, partitions = parse_targets(targets or [])
    with connect_admin(bootstrap, admin) as client:
        moves = client.list_partition_reassignments().moves
        found = {
            one.partition: one.original
            for one in moves
            if (everything or one.partition.topic in topics) and one.partition not in partitions
        }
        if not found and not partitions:
            raise TidemarkError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                "no such move is wanted or under way: nothing to give up",
            )
        meanwhile, refused = give_up(client, sorted(set(partitions)), found)
        chosen = {*partitions, *found}.difference(meanwhile, refused)
        ended = []
        try:
            with MoveView(silent=no_wait or output is Output.JSON) as view:
                for left, ends in () if no_wait or not chosen else client.watch_partition_reassignments(sorted(chosen)):
                    view.show(left, ends)
                    ended += ends
        except KeyboardInterrupt:
            raise interrupted("the cancellation") from None
    too_late = ended_meanwhile(found, ended)
    meanwhile |= too_late
    chosen -= too_late
    failed = [one.error for one in ended if one.error is not None and one.partition not in too_late]
    told = {"cancelled": chosen, "ended_meanwhile": meanwhile}
    names = {what: [name_of(one) for one in sorted(which)] for what, which in told.items()}
    if output is Output.JSON:
        print_json({**names, "ended": [ended_json(one) for one in ended]})
    else:
        print_line(f"{counted(len(chosen) - len(failed), 'move')} {'to be ' if no_wait else ''}given up")
        if meanwhile:
            print_line(f"{counted(len(meanwhile), 'move')} ended meanwhile: {', '.join(names['ended_meanwhile'])}")
    failed += refused.values()
    if failed:
        raise_all(failed)


class AskedMoves(NamedTuple):
    """What a file of moves asks for; `throttle_bytes_per_s` 0: no limit."""

    moves: list[PartitionReassignment]
    cancel: list[TopicPartition]
    throttle_bytes_per_s: int


def read_file(file: Path, throttle: str) -> AskedMoves:
    """Moves, cancellations and the throttle of a file; `throttle` overrides what the file says.

    Raises:
        TidemarkError: every entry that is malformed is told.
    """
    rate = parse_rate(throttle) if throttle else None
    moves = read_moves(file)
    begun = [move for move in moves if not move.cancel]
    rates = {move.throttle_bytes_per_s for move in begun}
    if rate is None and len(rates) > 1:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            "the file names several throttles, and one request has one: split it, or say --throttle",
        )
    chosen = rate if rate is not None else next(iter(rates), 0)
    return AskedMoves(begun, [move.partition for move in moves if move.cancel], chosen)


def read_moves(file: Path) -> tuple[PartitionReassignment, ...]:
    """The moves of a file, one or more; every entry that is malformed is told."""
    moves, errors = parse_reassignments(_content(file))
    if errors:
        raise_all(errors)
    if not moves:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{file} names no partition: there is nothing to do")
    return moves


def _content(file: Path) -> bytes:
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(_FILE_BYTES_MAX)
        with file.open("rb") as opened:
            return opened.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, f"{file} cannot be read: {error.strerror}") from None


def _replicas(topic: TopicView | None, index: int) -> tuple[int, ...]:
    if topic is None or index not in topic.partitions:
        return ()
    return tuple(topic.partitions[index].assigned_replicas)


def _show_plan(
    outcomes: Sequence[ReassignmentOutcome], moves: Sequence[PartitionReassignment], rollback: Present | None
) -> None:
    """What would move; with `rollback`, the directories that replicas lie in now, also the way back."""
    targets = {move.partition: move for move in moves}
    if rollback is not None:
        print_line("the present assignment; keep it, and execute it to go back:")
        print_line(format_reassignments(back(outcomes, rollback)).rstrip("\n"))
    print_table(
        ("partition", "from", "to"),
        [
            (
                name_of(one.partition),
                listed(one.before),
                "as before its move" if one.cancelled else _to(targets[one.partition]),
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
        "topic": outcome.partition.topic,
        "partition": outcome.partition.partition,
        "replicas_before": list(outcome.before),
        "replicas": [] if move is None else list(move.replicas),
        "log_dirs": [] if move is None else list(move.log_dirs),
        "cancelled": outcome.cancelled,
        "error": None if outcome.error is None else error_json(outcome.error),
    }
