# SPDX-License-Identifier: Apache-2.0
"""`tidemark cluster safe-to-restart`: may a broker be restarted now, and waiting until it may (rule C2)."""

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
"""The last look is begun so long before the end."""
_NAMED_MAX: Final = 5


def safe_to_restart(
    broker: Annotated[
        str, typer.Argument(metavar="BROKER", envvar="TIDEMARK_BROKER_ID", help="Its id.", show_envvar=True)
    ],
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="Ask again for so long, until it is safe.")
    ] = 0.0,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Tell whether a broker can be restarted now without anybody noticing; exit status 0 if so, 1 if not, and why.

    \b
    Not while a partition would have nobody in sync to lead it, or fewer than min.insync.replicas; nor while another
    broker is away, or a replica on this one is being moved or has not caught up. With --wait what is in the way is
    told whenever it changes, and brokers or an admin service that do not answer are asked again too. What waiting
    cannot mend ends it: topics with as many replicas as min.insync.replicas (NO_REPLICA_TO_SPARE, and in JSON
    "waiting_helps": false).

    \b
    Examples, the second to restart one broker after another, the third in a pod's preStop hook:
      tidemark cluster safe-to-restart 1
      tidemark cluster safe-to-restart 1 --wait 300 && kubectl delete pod tidemark-1
      tidemark cluster safe-to-restart 1 --wait 20 --bootstrap localhost:9192 || true
    """
    (broker_id,) = parse_brokers([broker])
    deadline_s = time.monotonic() + wait_s
    said = ""
    while True:
        obstacles, problem = _look(broker_id, bootstrap, admin, deadline_s if wait_s else None)
        pause_s = min(_PAUSE_S, deadline_s - _CALL_S_MIN - time.monotonic())
        over = pause_s <= 0
        if problem is None and (over or not any(one.may_pass for one in obstacles)):
            break
        if problem is not None and over:
            raise problem
        state = problem.message if problem is not None else f"not yet: {obstacles[0].reason}: {obstacles[0].message}"
        if output is Output.TEXT and state != said:
            said = state
            print_line(state)
            sys.stdout.flush()
        time.sleep(pause_s)
    _tell(broker_id, obstacles, output)
    if obstacles:
        raise typer.Exit(1)


def _look(
    broker: int, bootstrap: str, admin: str, deadline_s: float | None
) -> tuple[Sequence[RestartObstacle], TidemarkError | None]:
    """What is in the way, or what may go away when it is asked again."""
    left_s = _CALL_S if deadline_s is None else max(_CALL_S_MIN, min(_CALL_S, deadline_s - time.monotonic()))
    try:
        with connect_admin(bootstrap, admin, timeout_s=left_s) as client:
            return client.obstacles_to_restart(broker), None
    except TidemarkError as error:
        if not error.retriable:
            raise
        return (), error


def _tell(broker: int, obstacles: Sequence[RestartObstacle], output: Output) -> None:
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
        verdict = "must not be restarted now" if passing else "cannot be restarted unnoticed"
        print_line(f"no: broker {broker} {verdict}")
        for one in obstacles:
            some = ", ".join(name_of(partition) for partition in one.partitions[:_NAMED_MAX])
            more = ", ..." if len(one.partitions) > _NAMED_MAX else ""
            print_line(f"  {one.reason}: {one.message}{f' ({some}{more})' if some else ''}")
