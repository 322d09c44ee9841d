# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster safe-to-restart`: check if a broker can be restarted, and wait until it can (rule C2)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin
from tidemark.cli.common.output import Output, print_json, print_line
from tidemark.cli.reassign.plan_view import parse_brokers
from tidemark.cli.reassign.progress_view import name_of
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.model import TidemarkError

_PAUSE_S: Final = 1.0
_CALL_S: Final = 30.0
_CALL_S_MIN: Final = 0.5
"""Time of the last call before the deadline."""
_NAMED_MAX: Final = 5


def safe_to_restart(
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", envvar="TIDEMARK_BROKER_ID", help="Broker id.", show_envvar=True)
    ],
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="Time to wait until the restart is safe.")
    ] = 0.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Check if a broker can be restarted now without an effect on clients; exit status 0 if so, 1 with reasons if not.

    \b
    A restart is not safe if a partition would have no in-sync replica left, or fewer than min.insync.replicas; nor
    while another broker is unavailable, or a replica on this broker is reassigned or not caught up. With --wait the
    command prints each change of the reason, and retries brokers and admin services that do not answer. Waiting ends
    early if it cannot help: a topic has as many replicas as min.insync.replicas (NO_REPLICA_TO_SPARE, and in JSON
    "waiting_helps": false).

    \b
    Examples; the second is for a rolling restart, the third for a pod's preStop hook:
      tidemark cluster safe-to-restart 1
      tidemark cluster safe-to-restart 1 --wait 300 && kubectl delete pod tidemark-1
      tidemark cluster safe-to-restart 1 --wait 20 --bootstrap localhost:9192 || true
    """
    (broker_id,) = parse_brokers([broker])
    deadline_s = time.monotonic() + wait_s
    shown = ""
    while True:
        obstacles, problem = _find_obstacles(broker_id, bootstrap, admin, deadline_s if wait_s else None)
        pause_s = min(_PAUSE_S, deadline_s - _CALL_S_MIN - time.monotonic())
        over = pause_s <= 0
        if problem is None and (over or not any(one.may_pass for one in obstacles)):
            break
        if problem is not None and over:
            raise problem
        state = problem.message if problem is not None else f"not yet: {obstacles[0].reason}: {obstacles[0].message}"
        if output is Output.TEXT and state != shown:
            shown = state
            print_line(state)
            sys.stdout.flush()
        time.sleep(pause_s)
    _print_verdict(broker_id, obstacles, output)
    if obstacles:
        raise typer.Exit(1)


def _find_obstacles(
    broker: int, bootstrap: str, admin: str, deadline_s: float | None
) -> tuple[Sequence[RestartObstacle], TidemarkError | None]:
    """The obstacles, or a retriable error."""
    left_s = _CALL_S if deadline_s is None else max(_CALL_S_MIN, min(_CALL_S, deadline_s - time.monotonic()))
    try:
        with connect_admin(bootstrap, admin, timeout_s=left_s) as client:
            return client.obstacles_to_restart(broker), None
    except TidemarkError as error:
        if not error.retriable:
            raise
        return (), error


def _print_verdict(broker: int, obstacles: Sequence[RestartObstacle], output: Output) -> None:
    if output is Output.JSON:
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
