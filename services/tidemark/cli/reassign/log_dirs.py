# SPDX-License-Identifier: Apache-2.0
"""Log directories that the file of `tidemark reassign` names (rule M3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from tidemark.cli.common.output import error_json, print_table
from tidemark.cli.common.units import shown_bytes
from tidemark.cli.reassign.log_dir_status import FoundReplica, PlaceFollower, PlaceState, places_of
from tidemark.cli.reassign.progress_view import MoveView, name_of
from tidemark.cli.reassign.submit import EXIT_INTERRUPTED
from tidemark.core.reassignment.progress import ReassignmentOutcome
from tidemark.core.reassignment.request import ANY_LOG_DIR, named_log_dirs
from tidemark.model import BrokerId, PartitionReassignment, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient

Present = Mapping[tuple[BrokerId, TopicPartition], str]
"""Path of the log directory of each replica."""
Placed = tuple[FoundReplica, TidemarkError | None]
"""A replica at the end of its log directory move, and the error if the move failed."""


def present_directories(
    client: AdminClient, moves: Sequence[PartitionReassignment], outcomes: Sequence[ReassignmentOutcome]
) -> Present:
    """Current log directories of partitions for which a log directory is named; of brokers that answer."""
    named = {move.partition for move in moves if named_log_dirs(move)}
    brokers = {broker for one in outcomes if one.partition in named for broker in one.before}
    if not brokers:
        return {}
    return {
        (broker.broker_id, replica.partition): one.path
        for broker in client.describe_log_dirs(sorted(brokers), partitions=sorted(named))
        for one in broker.log_dirs
        for replica in one.replicas
        if not replica.future
    }


def back(outcomes: Sequence[ReassignmentOutcome], present: Present) -> list[PartitionReassignment]:
    """Reassignments that restore the assignment, with the log directories that are known."""
    moves = []
    for one in outcomes:
        if one.before and not one.cancelled:
            log_dirs = tuple(present.get((broker, one.partition), ANY_LOG_DIR) for broker in one.before)
            known = any(directory != ANY_LOG_DIR for directory in log_dirs)
            moves.append(PartitionReassignment(one.partition, one.before, log_dirs if known else ()))
    return moves


def follow_directories(
    client: AdminClient, moves: Sequence[PartitionReassignment], failed: Collection[TopicPartition], *, silent: bool
) -> list[Placed]:
    """Wait until each replica is in its named log directory, or its move failed; failed partitions are skipped."""
    places = [place for place in places_of(moves) if place.partition not in failed]
    if not places:
        return []
    follower = PlaceFollower(client)
    with MoveView(silent=silent, ends=follower.ends) as view:
        return follower.follow(places, view)


def copying_goes_on() -> typer.Exit:
    """Exit after Ctrl-C; the brokers continue to copy."""
    typer.echo("the copy continues; tidemark log-dirs describe --replicas shows its progress", err=True)
    return typer.Exit(EXIT_INTERRUPTED)


def directories_state(found: Sequence[FoundReplica]) -> str:
    """State of a partition that has its wanted replicas: "done", or the state of their log directories."""
    states = {one.state for one in found}
    if states <= {PlaceState.THERE}:
        return "done"
    if PlaceState.COPYING in states:
        return "copying directories"
    return "directories unknown" if states <= {PlaceState.THERE, PlaceState.UNKNOWN} else "other directories"


def print_places(found: Sequence[FoundReplica]) -> None:
    """Print replicas and their log directories; nothing if no log directory is named."""
    if found:
        print_table(
            ("partition", "broker", "wanted directory", "directory", "state"),
            [
                (
                    name_of(one.place.partition),
                    one.place.broker_id,
                    one.target,
                    one.log_dir or "-",
                    _state(one),
                )
                for one in found
            ],
        )


def _state(found: FoundReplica) -> str:
    if found.state is PlaceState.COPYING:
        share = "" if found.percent is None else f", {found.percent}% of {shown_bytes(found.bytes_total)}"
        return f"{found.state}{share}"
    return f"{found.state}: {found.why.message}" if found.why is not None else str(found.state)


def found_json(found: FoundReplica) -> Mapping[str, object]:
    """A replica and its wanted log directory as JSON; null is unknown."""
    return {
        "topic": found.place.partition.topic,
        "partition": found.place.partition.partition,
        "broker_id": found.place.broker_id,
        "wanted_log_dir": found.target,
        "log_dir": found.log_dir or None,
        "state": str(found.state),
        "bytes_done": found.bytes_done,
        "bytes_total": found.bytes_total,
        "percent": found.percent,
        "why": None if found.why is None else error_json(found.why),
    }
