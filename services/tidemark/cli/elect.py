# SPDX-License-Identifier: Apache-2.0
"""`tidemark elect`: preferred replicas lead again, or the last known log leads what nobody leads (rule T4)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.confirmation import confirm, refuse_json_question
from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, counted, error_json, print_error, print_json, print_line, print_table
from tidemark.cli.common.partition_targets import parse_targets
from tidemark.model import (
    ElectionKind,
    ElectionOutcome,
    TopicPartition,
    UncleanElection,
)

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


def elect(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC[:PARTITION]", help="Which; --last-known wants partitions.")
    ] = None,
    preferred: Annotated[
        bool, typer.Option("--preferred", help="The first assigned replica leads again; without TOPIC, everywhere.")
    ] = False,
    last_known: Annotated[
        bool, typer.Option("--last-known", help="The furthest live replica leads a partition that nobody leads.")
    ] = False,
    reports: Annotated[
        bool, typer.Option("--reports", help="Show what unclean elections have lost; without TOPIC, everywhere.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before records may be lost.")] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check, show what would come of it, change nothing.")
    ] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Choose who leads, where the cluster does not do it by itself.

    \b
    --preferred   After a broker has come back, others still lead what it led before. This gives leadership back to
                  the first assigned replica of each partition, where it is in sync. Nothing is lost.
    --last-known  When no replica is left that surely has every acknowledged record, nobody leads: wait for such a
                  replica to come back if it can. If it cannot, this takes the live replica whose log goes furthest.
                  What only others had is GONE, even when they come back, and a new lineage begins. Shows what is
                  known to be missing, and asks, before anything is changed.
    --reports     What was lost by such elections, also by those that unclean.leader.election.enable=true allowed.

    \b
    Of each unclean election: "lost, known" counts acknowledged records that a replica still knows to have existed,
    at the offsets named, both inclusive. "unheard" are replicas that did not answer: what only they knew is lost too,
    and nobody can say how much.

    \b
    Examples:
      tidemark elect --preferred
      tidemark elect --preferred flights orders:3
      tidemark elect --last-known flights:0 flights:4
      tidemark elect --last-known flights:0 --validate-only
      tidemark elect --reports flights --output json | jq 'map(.records_maybe_lost) | add'
    """
    if preferred + last_known + reports != 1:
        raise typer.BadParameter("say one of --preferred, --last-known and --reports")
    topics, partitions = parse_targets(targets or [])
    if last_known and (topics or not partitions):
        raise typer.BadParameter(
            "name each partition as TOPIC:PARTITION: records may be lost", param_hint="--last-known"
        )
    if reports and partitions:
        raise typer.BadParameter("reports are listed by topic: leave :PARTITION out", param_hint="--reports")
    if last_known:
        refuse_json_question(output, yes=yes, dry_run=validate_only, options="--yes or --validate-only")
    with connect_admin(bootstrap, admin) as client:
        if reports:
            _show_reports(client.list_unclean_elections(topics), output)
        elif preferred:
            outcomes = client.elect_leaders(
                ElectionKind.PREFERRED, partitions, topics=topics, validate_only=validate_only
            )
            _show_preferred(outcomes, output, validate_only=validate_only)
        else:
            _elect_last_known(client, partitions, output, yes=yes, validate_only=validate_only)


def _elect_last_known(
    client: AdminClient, partitions: Sequence[TopicPartition], output: Output, *, yes: bool, validate_only: bool
) -> None:
    foreseen = client.elect_leaders(ElectionKind.LAST_KNOWN, partitions, validate_only=True)
    if validate_only or any(outcome.error is not None for outcome in foreseen):
        _show_unclean(foreseen, output, "would be elected, as far as it is known")
        return
    if output is Output.TEXT:
        _show_unclean(foreseen, output, "would be elected, as far as it is known")
        if not yes:
            confirm(f"Elect {counted(len(foreseen), 'leader')}, and lose the missing records for ever?")
    outcomes = client.elect_leaders(ElectionKind.LAST_KNOWN, partitions, request_id=uuid.uuid4().hex)
    _show_unclean(outcomes, output, "elected")


def _show_preferred(outcomes: Sequence[ElectionOutcome], output: Output, *, validate_only: bool) -> None:
    if output is Output.JSON:
        print_json([outcome_json(outcome) for outcome in outcomes])
    else:
        moved = [outcome for outcome in outcomes if outcome.changed]
        if moved:
            print_table(
                ("partition", "led by", "would be led by" if validate_only else "now led by"),
                [(_name(one.partition), _leader(one.leader_before), _leader(one.leader)) for one in moved],
            )
        there = sum(outcome.error is None and not outcome.changed for outcome in outcomes)
        verb = "would move" if validate_only else "moved"
        if moved or there:
            leaders = counted(len(moved), "leader")
            print_line(f"{leaders} {verb} to their preferred replica, {there} were there already")
    _end(outcomes)


def _show_unclean(outcomes: Sequence[ElectionOutcome], output: Output, what: str) -> None:
    if output is Output.JSON:
        print_json([outcome_json(outcome) for outcome in outcomes])
    else:
        reports = [outcome.unclean for outcome in outcomes if outcome.unclean is not None]
        if reports:
            print_line(f"{what}:")
            print_table(_LOSS_COLUMNS, [_row(report) for report in reports])
            unheard = sorted({broker for report in reports for broker in report.unheard})
            if unheard:
                print_line(f"not heard: brokers {_listed(unheard)}; what only they hold is lost too, and not counted")
        for outcome in outcomes:
            if outcome.error is None and outcome.unclean is None:
                print_line(f"{_name(outcome.partition)}: broker {outcome.leader} came back and leads; nothing is lost")
    _end(outcomes)


def _show_reports(reports: Sequence[UncleanElection], output: Output) -> None:
    if output is Output.JSON:
        print_json([report_json(report) for report in reports])
    elif not reports:
        print_line("no unclean election is on record")
    else:
        print_table(
            ("when (UTC)", *_LOSS_COLUMNS, "asked for by"),
            [(_when(report), *_row(report), report.request_id or "the topic's setting") for report in reports],
        )


def _end(outcomes: Iterable[ElectionOutcome]) -> None:
    refused = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in refused:
        print_error(error)
    if refused:
        raise typer.Exit(1)


def _row(report: UncleanElection) -> tuple[object, ...]:
    lost = lost_offsets(report)
    return (
        _name(report.partition),
        report.lineage,
        _leader(report.leader),
        _known(report.log_end_offset),
        _known(report.high_watermark),
        _known(report.records_maybe_lost),
        "-" if lost is None else f"{lost[0]} to {lost[1]}",
        _listed(report.unheard) or "-",
    )


def lost_offsets(report: UncleanElection) -> tuple[int, int] | None:
    """First and last offset of what is known to be lost, both inclusive; None: nothing is."""
    if not report.records_maybe_lost or report.log_end_offset is None or report.high_watermark is None:
        return None
    return report.log_end_offset, report.high_watermark - 1


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"


def _leader(broker: int) -> str:
    return str(broker) if broker >= 0 else "none"


def _known(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(str(broker) for broker in brokers)


def _when(report: UncleanElection) -> str:
    return datetime.fromtimestamp(report.elected_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def outcome_json(outcome: ElectionOutcome) -> Mapping[str, object]:
    """What became of a partition, for scripts; a leader of -1 is none."""
    return {
        "topic": outcome.partition.topic,
        "partition": outcome.partition.partition,
        "leader_before": outcome.leader_before,
        "leader": outcome.leader,
        "leader_epoch": outcome.leader_epoch,
        "changed": outcome.changed,
        "unclean": None if outcome.unclean is None else report_json(outcome.unclean),
        "error": None if outcome.error is None else error_json(outcome.error),
    }


def report_json(report: UncleanElection) -> Mapping[str, object]:
    """A loss report for scripts; null is unknown."""
    lost = lost_offsets(report)
    return {
        "topic": report.partition.topic,
        "partition": report.partition.partition,
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
