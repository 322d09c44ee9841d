# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster create|add-brokers|remove-brokers`: change the brokers of a cluster."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.confirmation import confirm, refuse_json_question
from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, counted, print_json, print_line
from tidemark.cli.common.units import parse_rate
from tidemark.cli.reassign.commands import NoWaitOption, ThrottleOption
from tidemark.cli.reassign.plan_view import parse_brokers, plan_json, show_plan
from tidemark.cli.reassign.progress_view import MoveView, ended_json, listed
from tidemark.cli.reassign.submit import MoveFeed, interrupted, raise_all
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentProgress
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient

_PAUSE_S: Final = 0.5
_PATIENCE_S: Final = 60.0
_CALL_S: Final = 30.0
_CALL_S_MIN: Final = 0.5
"""Time of the last call before the deadline."""
_NAMED_MAX: Final = 5

BrokersArgument = Annotated[list[str], typer.Argument(metavar="BROKER", help="Broker ids, such as 3 4.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan and its cost; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


def create(
    brokers: Annotated[str, typer.Option("--brokers", metavar="0,1,2", help="Ids of all brokers of the cluster.")],
    timeout_s: Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Time to wait.")] = 60.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
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
        left_s = min(_CALL_S, deadline_s - time.monotonic()) if timeout_s else _CALL_S
        cluster_id, live, problem = _live_brokers(bootstrap, admin, left_s)
        missing, others = sorted(wanted - live), sorted(live - wanted)
        if problem is None and not missing and not others:
            break
        parts = [f"not live: broker {listed(missing)}"] if missing else []
        parts += [f"live, but not named: broker {listed(others)}"] if others else []
        state = "; ".join(parts) if problem is None else problem.message
        if output is Output.TEXT and state != shown:
            shown = state
            print_line(state)
            sys.stdout.flush()
        pause_s = min(_PAUSE_S, deadline_s - _CALL_S_MIN - time.monotonic())
        if pause_s <= 0:
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"after {timeout_s:g} s: {state}")
        time.sleep(pause_s)
    if output is Output.JSON:
        print_json({"cluster_id": cluster_id, "brokers": sorted(live)})
    else:
        print_line(f"cluster {cluster_id} is live with brokers {listed(sorted(live))}")


def _live_brokers(bootstrap: str, admin: str, timeout_s: float) -> tuple[str, set[int], TidemarkError | None]:
    try:
        with connect_admin(bootstrap, admin, timeout_s=timeout_s) as client:
            view = client.describe_cluster().view
    except TidemarkError as error:
        if not error.retriable:
            raise
        return "", set(), error
    return view.cluster_id, {int(broker) for broker in view.brokers}, None


def add_brokers(
    brokers: BrokersArgument,
    throttle: ThrottleOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    no_wait: NoWaitOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
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
    refuse_json_question(output, yes=yes, dry_run=dry_run)
    request_id = uuid.uuid4().hex
    with connect_admin(bootstrap, admin) as client:
        planned = client.add_brokers(ids, throttle_bytes_per_s=rate, validate_only=True, request_id=request_id)
        if output is Output.TEXT:
            show_plan(planned)
        if dry_run:
            if output is Output.JSON:
                print_json({**plan_json(planned), "begun": False})
            return
        if not yes and planned.plan.moves:
            confirm(f"Move {counted(planned.plan.moved_replicas, 'replica')} to add broker {listed(ids)}?")
        try:
            begun = client.add_brokers(ids, throttle_bytes_per_s=rate, request_id=request_id)
            # Those that do not fit into ZooKeeper's node start as earlier ones end.
            feed = MoveFeed(client, begun.plan.moves, rate, request_id)
            with MoveView(silent=no_wait or output is Output.JSON) as view:
                ended = [] if no_wait else feed.follow(view)
        except KeyboardInterrupt:
            raise interrupted("the reassignment") from None
    failed = [one.error for one in ended if one.error is not None]
    if output is Output.JSON:
        print_json({**plan_json(begun), "begun": True, "ended": [ended_json(one) for one in ended]})
    elif no_wait:
        print_line(f"{counted(begun.begun, 'reassignment')} started; tidemark reassign list shows their progress")
    else:
        print_line(f"broker {listed(ids)} {'has its' if len(ids) == 1 else 'have their'} share")
    if failed:
        raise_all(failed)


def remove_brokers(
    brokers: BrokersArgument,
    throttle: ThrottleOption = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
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
    refuse_json_question(output, yes=yes, dry_run=dry_run)
    with connect_admin(bootstrap, admin) as client:
        (first,) = client.remove_brokers(ids, throttle_bytes_per_s=rate, validate_only=True)
        planned = first.planned
        assert planned is not None, "the first update has the plan"
        if output is Output.TEXT:
            show_plan(planned)
        if dry_run:
            if output is Output.JSON:
                print_json({**plan_json(planned), "begun": False})
            return
        if not yes:
            confirm(f"Move {counted(planned.plan.moved_replicas, 'replica')} to remove broker {listed(ids)}?")
        try:
            with MoveView(silent=output is Output.JSON) as view:
                _drain(client, ids, rate, view)
        except KeyboardInterrupt:
            raise interrupted("the reassignment") from None
    if output is Output.JSON:
        print_json({**plan_json(planned), "begun": True, "removed": ids})
    else:
        end = "is removed and holds nothing: stop it now"
        if len(ids) > 1:
            end = "are removed and hold nothing: stop them now"
        print_line(f"broker {listed(ids)} {end}")


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
