# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster ...`: show the cluster, change its brokers, check if one can be restarted (rule C2)."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import (
    Cluster,
    Commands,
    DryRunOption,
    YesOption,
    confirm,
    parse_brokers,
    refuse_json_question,
)
from tidemark.cli.common.output import counted, listed, name_of, print_json, print_line, print_table, raise_all
from tidemark.cli.common.units import parse_rate
from tidemark.cli.reassign.commands import NoWaitOption, ThrottleOption
from tidemark.cli.reassign.copy_time import warn_of_long_copies
from tidemark.cli.reassign.submit import MoveFeed, interrupted
from tidemark.cli.reassign.views import MoveView, ended_json, plan_json, show_plan
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentProgress
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.client.aio.admin.results import PlannedMoves

_PAUSE_S: Final = 0.5
_RESTART_PAUSE_S: Final = 1.0
_PATIENCE_S: Final = 60.0
_CALL_S: Final = 30.0
_CALL_S_MIN: Final = 0.5
"""Time of the last call before the deadline."""
_NAMED_MAX: Final = 5

_Answer = TypeVar("_Answer")

BrokersArgument = Annotated[
    list[str],
    typer.Argument(metavar="BROKER", help="Broker ids, such as 3 4.", autocompletion=completion.brokers),
]

cluster_app = Commands(help="Show the cluster and change its brokers.")


@cluster_app.command("create", short_help="Wait until exactly these brokers are live.")
def create(
    brokers: Annotated[str, typer.Option("--brokers", metavar="0,1,2", help="Ids of all brokers of the cluster.")],
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Time to wait.")] = 60.0,
    cluster: Cluster = Cluster(),
) -> None:
    """Wait until exactly these brokers are live, and report the missing ones.

    A cluster forms without this command: each broker that starts with the same zookeeper.connect joins the cluster.
    The command starts and changes nothing.

    \b
    Examples:
      tidemark cluster create --brokers 0,1,2
      tidemark cluster create --brokers 0,1,2 --timeout 300 --output json
    """
    wanted = set(parse_brokers([brokers]))
    deadline_s = time.monotonic() + timeout_s
    shown = ""
    while True:
        left_s = max(_CALL_S_MIN, min(_CALL_S, deadline_s - time.monotonic())) if timeout_s else _CALL_S
        view = _ask(cluster, left_s, lambda client: client.describe_cluster().view)
        if isinstance(view, TidemarkError):
            state = view.message
        else:
            missing, others = sorted(wanted - view.brokers.keys()), sorted(view.brokers.keys() - wanted)
            if not missing and not others:
                break
            parts = [f"not live: broker {listed(missing)}"] if missing else []
            parts += [f"live, but not named: broker {listed(others)}"] if others else []
            state = "; ".join(parts)
        if not cluster.json and state != shown:
            shown = state
            print_line(state)
            sys.stdout.flush()
        pause_s = min(_PAUSE_S, deadline_s - _CALL_S_MIN - time.monotonic())
        if pause_s <= 0:
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"after {timeout_s:g} s: {state}")
        time.sleep(pause_s)
    if cluster.json:
        print_json({"cluster_id": view.cluster_id, "brokers": sorted(view.brokers)})
    else:
        print_line(f"cluster {view.cluster_id} is live with brokers {listed(sorted(view.brokers))}")


def _ask(cluster: Cluster, timeout_s: float, ask: Callable[[AdminClient], _Answer]) -> _Answer | TidemarkError:
    """The answer, or a retriable error."""
    try:
        with cluster.connect(timeout_s=timeout_s) as client:
            return ask(client)
    except TidemarkError as error:
        if not error.retriable:
            raise
        return error


@cluster_app.command("describe", short_help="Show brokers, controller, counts of partitions.")
def describe(cluster: Cluster = Cluster()) -> None:
    """Show brokers, the active controller, and counts of under-replicated and offline partitions.

    \b
    Examples:
      tidemark cluster describe
      tidemark cluster describe --output json | jq .offline_count
    """
    with cluster.connect() as client:
        found = client.describe_cluster()
    brokers = [found.view.brokers[broker_id] for broker_id in sorted(found.view.brokers)]
    counts = {
        "topic_count": found.topic_count,
        "partition_count": found.partition_count,
        "under_replicated_count": found.under_replicated_count,
        "under_min_isr_count": found.under_min_isr_count,
        "offline_count": found.offline_count,
    }
    if cluster.json:
        print_json(
            {
                "cluster_id": found.view.cluster_id,
                "controller_id": found.view.controller_id,
                "admin_address": found.view.admin_address,
                "brokers": [
                    {
                        "broker_id": broker.broker_id,
                        "host": broker.host,
                        "port": broker.port,
                        "rack": broker.rack,
                        "broker_epoch": broker.broker_epoch,
                    }
                    for broker in brokers
                ],
                **counts,
                "draining_brokers": list(found.draining_brokers),
                "leader_election_wait_ms": found.election_wait_ms,
            }
        )
        return
    controller = found.view.controller_id if found.view.controller_id >= 0 else "none"
    print_line(f"cluster {found.view.cluster_id}, controller {controller}, admin {found.view.admin_address}")
    print_table(
        ("broker", "address", "rack", "epoch"),
        [(broker.broker_id, broker.address, broker.rack, broker.broker_epoch) for broker in brokers],
    )
    if found.draining_brokers:
        draining = ", ".join(str(broker) for broker in found.draining_brokers)
        print_line(f"draining: broker {draining}; no new replicas until tidemark cluster add-brokers")
    print_table(("topics", "partitions", "under-replicated", "under min ISR", "offline"), [tuple(counts.values())])
    if found.election_wait_ms is not None:
        print_line(f"leader.election.wait.ms of the active controller: {found.election_wait_ms}")


@cluster_app.command("add-brokers", short_help="Give new brokers their share of replicas.")
def add_brokers(
    brokers: BrokersArgument,
    throttle: ThrottleOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    no_wait: NoWaitOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Give running brokers their share of the replicas, with as little data to copy as possible.

    \b
    Start the brokers first; they join the cluster without replicas. The command shows the plan with its cost, asks for
    confirmation, and starts the reassignments. A removed broker is added again in the same way.

    \b
    Examples:
      tidemark cluster add-brokers 3 4 --dry-run
      tidemark cluster add-brokers 3 4 --throttle 50MB
      tidemark cluster add-brokers 3 --yes --no-wait --output json
    """
    ids = parse_brokers(brokers)
    rate = parse_rate(throttle) if throttle else 0
    refuse_json_question(cluster.output, yes=yes, dry_run=dry_run)
    request_id = uuid.uuid4().hex
    with cluster.connect() as client:
        planned = client.add_brokers(ids, throttle_bytes_per_s=rate, validate_only=True, request_id=request_id)
        _warn_of_long_copies(client, planned, rate)
        if not _agreed(cluster, planned, f"add broker {listed(ids)}", dry_run, yes=yes or not planned.plan.moves):
            return
        try:
            begun = client.add_brokers(ids, throttle_bytes_per_s=rate, request_id=request_id)
            # Reassignments that do not fit into ZooKeeper's node start as earlier reassignments end.
            feed = MoveFeed(client, begun.plan.moves, rate, request_id)
            with MoveView(silent=no_wait or cluster.json) as view:
                ended = [] if no_wait else feed.follow(view)
        except KeyboardInterrupt:
            raise interrupted("the reassignment") from None
    failed = [one.error for one in ended if one.error is not None]
    if cluster.json:
        print_json({**plan_json(begun), "begun": True, "ended": [ended_json(one) for one in ended]})
    elif no_wait:
        print_line(f"{counted(begun.begun, 'reassignment')} started; tidemark reassign list shows their progress")
    else:
        print_line(f"broker {listed(ids)} {'has its' if len(ids) == 1 else 'have their'} share")
    raise_all(failed)


@cluster_app.command("remove-brokers", short_help="Drain brokers and deregister them.")
def remove_brokers(
    brokers: BrokersArgument,
    throttle: ThrottleOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Drain brokers: reassign all their replicas, wait, and deregister them; then stop their processes.

    \b
    From the start of the command the brokers get no new replicas. Ctrl-C ends the wait, not the reassignments; the same
    command continues. To undo: tidemark cluster add-brokers. Stop the process of a broker when the command reports
    that the broker is removed. Its id may be used again, also on another machine.

    \b
    Examples:
      tidemark cluster remove-brokers 1 --dry-run
      tidemark cluster remove-brokers 1 --throttle 50MB
      tidemark cluster remove-brokers 1 2 --yes --output json
    """
    ids = parse_brokers(brokers)
    rate = parse_rate(throttle) if throttle else 0
    refuse_json_question(cluster.output, yes=yes, dry_run=dry_run)
    with cluster.connect() as client:
        (first,) = client.remove_brokers(ids, throttle_bytes_per_s=rate, validate_only=True)
        planned = first.planned
        assert planned is not None, "the first update has the plan"
        _warn_of_long_copies(client, planned, rate)
        if not _agreed(cluster, planned, f"remove broker {listed(ids)}", dry_run, yes=yes):
            return
        try:
            with MoveView(silent=cluster.json) as view:
                _drain(client, ids, rate, view)
        except KeyboardInterrupt:
            raise interrupted("the reassignment") from None
    if cluster.json:
        print_json({**plan_json(planned), "begun": True, "removed": ids})
    else:
        end = "is removed and holds nothing: stop it now"
        if len(ids) > 1:
            end = "are removed and hold nothing: stop them now"
        print_line(f"broker {listed(ids)} {end}")


def _agreed(cluster: Cluster, planned: PlannedMoves, purpose: str, dry_run: bool, *, yes: bool) -> bool:
    """Show the plan and ask for confirmation, which `yes` skips; False for a dry run."""
    if not cluster.json:
        show_plan(planned)
    elif dry_run:
        print_json({**plan_json(planned), "begun": False})
    if not (dry_run or yes):
        confirm(f"Move {counted(planned.plan.moved_replicas, 'replica')} to {purpose}?")
    return not dry_run


def _warn_of_long_copies(client: AdminClient, planned: PlannedMoves, rate: int) -> None:
    before = {move.partition: move.replicas for move in planned.plan.current}
    warn_of_long_copies(client, planned.plan.moves, before, rate)


def _drain(client: AdminClient, ids: Sequence[int], rate: int, view: MoveView) -> None:
    request_id = uuid.uuid4().hex
    patience_until_s = time.monotonic() + _PATIENCE_S
    before: dict[TopicPartition, ReassignmentProgress] = {}
    while True:
        try:
            for update in client.remove_brokers(ids, throttle_bytes_per_s=rate, request_id=request_id):
                patience_until_s = time.monotonic() + _PATIENCE_S
                if update.removed:
                    return
                if update.planned is None:
                    now = {moved.partition: moved for moved in update.moves}
                    ended = [EndedReassignment(one, before[one].target) for one in sorted(before) if one not in now]
                    before = now
                    view.show(update.moves, ended, f"; {counted(update.partitions_left, 'partition')} to go")
        except TidemarkError as error:
            # The service or ZooKeeper is unavailable for a while; the same call continues.
            if not error.retriable or time.monotonic() > patience_until_s:
                raise
            time.sleep(_PAUSE_S)


@cluster_app.command("safe-to-restart", short_help="Check if a broker can be restarted now.")
def safe_to_restart(
    broker: Annotated[
        str,
        typer.Argument(
            metavar="BROKER",
            envvar="TIDEMARK_BROKER_ID",
            help="Broker id.",
            show_envvar=True,
            autocompletion=completion.brokers,
        ),
    ],
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="Time to wait until the restart is safe.")
    ] = 0.0,
    claim: Annotated[
        bool, typer.Option("--claim", help="Claim the restart: other brokers wait for this one, for 30 s at most.")
    ] = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Check if a broker can be restarted now without an effect on clients; exit status 0 if so, 1 with reasons if not.

    \b
    A restart is not safe if a partition would have no in-sync replica left, or fewer than min.insync.replicas. The
    check also fails while another broker is unavailable or has claimed a restart, or a replica on this broker is
    reassigned or not caught up. With --wait the command prints each change of the reason, and retries brokers and admin
    services that do not answer. Waiting ends early if it cannot help: a topic has as many replicas as
    min.insync.replicas (NO_REPLICA_TO_SPARE, and in JSON "waiting_helps": false).

    \b
    Examples; the second is for a rolling restart, the third for a pod's preStop hook:
      tidemark cluster safe-to-restart 1
      tidemark cluster safe-to-restart 1 --wait 300 && kubectl delete pod tidemark-1
      tidemark cluster safe-to-restart 1 --wait 20 --claim --bootstrap localhost:9192 || true
    """
    (broker_id,) = parse_brokers([broker])
    deadline_s = time.monotonic() + wait_s
    shown = ""
    while True:
        left_s = max(_CALL_S_MIN, min(_CALL_S, deadline_s - time.monotonic())) if wait_s else _CALL_S
        found = _ask(cluster, left_s, lambda client: client.obstacles_to_restart(broker_id, claim=claim))
        pause_s = min(_RESTART_PAUSE_S, deadline_s - _CALL_S_MIN - time.monotonic())
        if isinstance(found, TidemarkError):
            if pause_s <= 0:
                raise found
            state = found.message
        elif pause_s <= 0 or not any(one.may_pass for one in found):
            break
        else:
            state = f"not yet: {found[0].reason}: {found[0].message}"
        if not cluster.json and state != shown:
            shown = state
            print_line(state)
            sys.stdout.flush()
        time.sleep(pause_s)
    _print_verdict(cluster, broker_id, found)
    if found:
        raise typer.Exit(1)


def _print_verdict(cluster: Cluster, broker: int, obstacles: Sequence[RestartObstacle]) -> None:
    if cluster.json:
        print_json(
            {
                "broker_id": broker,
                "safe": not obstacles,
                "waiting_helps": any(one.may_pass for one in obstacles),
                "obstacles": [
                    {
                        "reason": str(one.reason),
                        "message": one.message,
                        "partitions": [name_of(partition) for partition in one.partitions],
                    }
                    for one in obstacles
                ],
            }
        )
    elif not obstacles:
        print_line(f"yes: broker {broker} can be restarted")
    else:
        passing = any(one.may_pass for one in obstacles)
        verdict = "must not be restarted now" if passing else "cannot be restarted without an effect on clients"
        print_line(f"no: broker {broker} {verdict}")
        for one in obstacles:
            some = ", ".join(name_of(partition) for partition in one.partitions[:_NAMED_MAX])
            more = ", ..." if len(one.partitions) > _NAMED_MAX else ""
            print_line(f"  {one.reason}: {one.message}{f' ({some}{more})' if some else ''}")
