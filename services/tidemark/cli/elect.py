# SPDX-License-Identifier: Apache-2.0
"""`tidemark elect`: leader election of preferred replicas, or of the last known log (rules T4, Z4)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import Cluster, DryRunOption, confirm, parse_targets, refuse_json_question
from tidemark.cli.common.output import (
    counted,
    error_json,
    name_of,
    print_json,
    print_line,
    print_table,
    raise_all,
    shown_time,
)
from tidemark.model import ElectionKind, ElectionOutcome, TopicPartition, UncleanElection

if TYPE_CHECKING:
    from tidemark.client import AdminClient

_LOSS_COLUMNS: Final = (
    "partition",
    "lineage",
    "leader",
    "log end",
    "high watermark",
    "lost, known",
    "offsets",
    "unheard",
)
_FORESEEN: Final = "would be elected, as far as it is known"


def elect(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="--last-known and --rebuild-state take TOPIC:PARTITION.",
            autocompletion=completion.places,
        ),
    ] = None,
    preferred: Annotated[
        bool, typer.Option("--preferred", help="Elect the preferred replicas; without TOPIC, of all topics.")
    ] = False,
    last_known: Annotated[
        bool, typer.Option("--last-known", help="Elect the longest live log of a partition without a leader.")
    ] = False,
    rebuild_state: Annotated[
        bool,
        typer.Option("--rebuild-state", help="Elect the longest live log where the ZooKeeper node is unreadable."),
    ] = False,
    reports: Annotated[
        bool, typer.Option("--reports", help="Show losses of unclean elections; without TOPIC, of all topics.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation before records may be lost.")] = False,
    dry_run: DryRunOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Elect leaders where the controller does not do so automatically.

    \b
    --preferred   Elects the first assigned replica of each partition, if it is in sync. Use this after a broker
                  restarted, since its partitions still have other leaders. No record is lost.
    --last-known  For a partition without a leader, since no live replica is certain to have every acknowledged record.
                  Wait for such a replica if it can return. Otherwise this elects the live replica with the longest log.
                  Records that only other replicas have are LOST, even when those return; a new lineage begins. The
                  command shows the known loss and asks for confirmation first.
    --rebuild-state
                  For a partition whose leaderAndISR node in ZooKeeper was damaged or deleted manually. The controller
                  writes the node again by itself where the live replicas prove its content. Start all brokers first.
                  Otherwise the command accepts the state that the live replicas know, and elects as --last-known does.
    --reports     Shows the losses of such elections, and of those by unclean.leader.election.enable=true.

    \b
    Of each unclean election: "lost, known" counts acknowledged records that a live replica knows of, with their
    offsets, both inclusive. "unheard" lists replicas that did not answer. Records that only these replicas knew of are
    lost too; their number is unknown.

    \b
    Examples:
      tidemark elect --preferred
      tidemark elect --preferred flights orders:3
      tidemark elect --last-known flights:0 flights:4
      tidemark elect --last-known flights:0 --dry-run
      tidemark elect --rebuild-state flights:0
      tidemark elect --reports flights --output json | jq 'map(.records_maybe_lost) | add'
    """
    if preferred + last_known + rebuild_state + reports != 1:
        raise typer.BadParameter("expected one of --preferred, --last-known, --rebuild-state and --reports")
    topics, partitions = parse_targets(targets or [])
    unclean = ElectionKind.REBUILD_STATE if rebuild_state else ElectionKind.LAST_KNOWN if last_known else None
    _check_targets(topics, partitions, unclean, reports=reports)
    if unclean is not None:
        refuse_json_question(cluster.output, yes=yes, dry_run=dry_run)
    with cluster.connect() as client:
        if reports:
            _show_reports(cluster, client.list_unclean_elections(topics))
        elif unclean is None:
            outcomes = client.elect_leaders(ElectionKind.PREFERRED, partitions, topics=topics, validate_only=dry_run)
            _show_preferred(cluster, outcomes, dry_run=dry_run)
        else:
            _elect_uncleanly(cluster, client, unclean, partitions, yes=yes, dry_run=dry_run)


def _check_targets(
    topics: Sequence[str], partitions: Sequence[TopicPartition], unclean: ElectionKind | None, *, reports: bool
) -> None:
    if unclean is not None and (topics or not partitions):
        hint = "--rebuild-state" if unclean is ElectionKind.REBUILD_STATE else "--last-known"
        raise typer.BadParameter("expected partitions as TOPIC:PARTITION, since records may be lost", param_hint=hint)
    if reports and partitions:
        raise typer.BadParameter("reports are listed by topic: omit :PARTITION", param_hint="--reports")


def _elect_uncleanly(
    cluster: Cluster,
    client: AdminClient,
    kind: ElectionKind,
    partitions: Sequence[TopicPartition],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    foreseen = client.elect_leaders(kind, partitions, validate_only=True)
    if dry_run or any(outcome.error is not None for outcome in foreseen):
        _show_unclean(cluster, foreseen, _FORESEEN)
        return
    if not cluster.json:
        _show_unclean(cluster, foreseen, _FORESEEN)
        if not yes:
            confirm(f"Elect {counted(len(foreseen), 'leader')}, and lose the missing records permanently?")
    outcomes = client.elect_leaders(kind, partitions, request_id=uuid.uuid4().hex)
    _show_unclean(cluster, outcomes, "elected")


def _show_preferred(cluster: Cluster, outcomes: Sequence[ElectionOutcome], *, dry_run: bool) -> None:
    if cluster.json:
        print_json([outcome_json(outcome) for outcome in outcomes])
    else:
        moved = [outcome for outcome in outcomes if outcome.changed]
        if moved:
            print_table(
                ("partition", "leader before", "leader after"),
                [(name_of(one.partition), _leader(one.leader_before), _leader(one.leader)) for one in moved],
            )
        there = sum(outcome.error is None and not outcome.changed for outcome in outcomes)
        verb = "would move" if dry_run else "moved"
        if moved or there:
            leaders = counted(len(moved), "leader")
            print_line(f"{leaders} {verb} to the preferred replica, {there} were there already")
    raise_all([outcome.error for outcome in outcomes if outcome.error is not None])


def _show_unclean(cluster: Cluster, outcomes: Sequence[ElectionOutcome], what: str) -> None:
    if cluster.json:
        print_json([outcome_json(outcome) for outcome in outcomes])
    else:
        reports = [outcome.unclean for outcome in outcomes if outcome.unclean is not None]
        if reports:
            print_line(f"{what}:")
            print_table(_LOSS_COLUMNS, [_row(report) for report in reports])
            unheard = sorted({broker for report in reports for broker in report.unheard})
            if unheard:
                print_line(
                    f"no answer: brokers {_listed(unheard)}; records that only they hold are lost too, not counted"
                )
        for outcome in outcomes:
            if outcome.error is None and outcome.unclean is None:
                print_line(f"{name_of(outcome.partition)}: broker {outcome.leader} returned and leads; nothing is lost")
    raise_all([outcome.error for outcome in outcomes if outcome.error is not None])


def _show_reports(cluster: Cluster, reports: Sequence[UncleanElection]) -> None:
    if cluster.json:
        print_json([report_json(report) for report in reports])
    elif not reports:
        print_line("there is no report of an unclean election")
    else:
        print_table(
            ("when (UTC)", *_LOSS_COLUMNS, "requested by"),
            [
                (shown_time(report.elected_at_ms), *_row(report), report.request_id or "the topic's setting")
                for report in reports
            ],
        )


def _row(report: UncleanElection) -> tuple[object, ...]:
    lost = lost_offsets(report)
    return (
        name_of(report.partition),
        report.lineage,
        _leader(report.leader),
        _known(report.log_end_offset),
        _known(report.high_watermark),
        _known(report.records_maybe_lost),
        "-" if lost is None else f"{lost[0]} to {lost[1]}",
        _listed(report.unheard) or "-",
    )


def lost_offsets(report: UncleanElection) -> tuple[int, int] | None:
    """First and last offset known to be lost, both inclusive; None: no known loss."""
    if not report.records_maybe_lost or report.log_end_offset is None or report.high_watermark is None:
        return None
    return report.log_end_offset, report.high_watermark - 1


def _leader(broker: int) -> str:
    return str(broker) if broker >= 0 else "none"


def _known(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(str(broker) for broker in brokers)


def outcome_json(outcome: ElectionOutcome) -> Mapping[str, object]:
    """The outcome for a partition as JSON; leader -1: none."""
    return {
        **outcome.partition._asdict(),
        "leader_before": outcome.leader_before,
        "leader": outcome.leader,
        "leader_epoch": outcome.leader_epoch,
        "changed": outcome.changed,
        "unclean": None if outcome.unclean is None else report_json(outcome.unclean),
        "error": error_json(outcome.error),
    }


def report_json(report: UncleanElection) -> Mapping[str, object]:
    """A loss report as JSON; null is unknown."""
    lost = lost_offsets(report)
    return {
        **report.partition._asdict(),
        "topic_id": report.topic_id,
        "lineage": report.lineage,
        "leader": report.leader,
        "leader_epoch": report.leader_epoch,
        "elected_at_ms": report.elected_at_ms or None,
        "last_epoch": report.last_epoch,
        "log_end_offset": report.log_end_offset,
        "high_watermark": report.high_watermark,
        "records_maybe_lost": report.records_maybe_lost,
        "lost_from_offset": None if lost is None else lost[0],
        "lost_to_offset": None if lost is None else lost[1],
        "unheard": list(report.unheard),
        "request_id": report.request_id,
    }
