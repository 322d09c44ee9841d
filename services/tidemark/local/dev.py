# SPDX-License-Identifier: Apache-2.0
"""`tidemark dev`: run a cluster in the foreground, show its state, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from pathlib import Path
from shlex import quote
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidemark.local.cluster import CERTIFICATES, LocalCluster, fixed_ports
from tidemark.model import invalid_request
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark.runtime.interrupts import signals_as_interrupt
from tidemark.zookeeper.closing import is_closed_to_plain_sessions

_REFRESH_S: Final = 0.5
_CONSOLE_PACKAGES: Final = ("starlette", "uvicorn", "jinja2")


def run(
    directory: Path,
    *,
    brokers: int,
    controllers: int,
    free_ports: bool,
    secure: bool = False,
    console: bool = False,
    console_write: bool = False,
) -> None:
    """Start a cluster, show it until SIGINT, SIGTERM or SIGHUP, stop it in order.

    Args:
        free_ports: the cluster takes free ports instead of `fixed_ports`.
        console: run the console too, if its packages are installed.
        console_write: its setting console.write.

    Raises:
        TidemarkError: the cluster did not start, or did not stop cleanly.
    """
    out = Console()
    ports = None if free_ports else fixed_ports(brokers, controllers)
    guarded = {"authorization.enabled": "true"} if secure else {}
    cluster = LocalCluster(
        directory,
        brokers=brokers,
        controllers=controllers,
        ports=ports,
        settings={"broker": guarded, "admin": guarded, "console": {"console.write": str(console_write).lower()}},
        secure=secure,
        console=console and _has_console(),
        before_services=lambda connect: None if secure else _check_open(directory, connect),
    )
    with signals_as_interrupt():
        started_s = time.monotonic()
        try:
            with out.status(f"starting {brokers} brokers, {controllers} controllers, admin and ZooKeeper"):
                cluster.start()
            out.print(f"ready in {time.monotonic() - started_s:.1f} s; data in {cluster.directory}")
            _show_next_steps(out, cluster)
            _watch(out, cluster)
        except KeyboardInterrupt:
            _stop(out, cluster)
        except (OSError, SystemExit):  # of the output: the terminal was closed, or (rich) the reader of a pipe ended
            _stop(out, cluster)
            raise


def _check_open(directory: Path, connect: str) -> None:
    """Refuse plain services, which would wait for a closed tree."""
    if (directory / CERTIFICATES).exists() and asyncio.run(is_closed_to_plain_sessions(connect)):
        sentence = f"{directory} has the data of a secure cluster: add --secure, or name another --directory"
        raise invalid_request(sentence)


def _show_next_steps(out: Console, cluster: LocalCluster) -> None:
    for label, value in (
        ("bootstrap", cluster.bootstrap),
        ("admin", cluster.admin_address),
        ("console", cluster.console_url or "off" if _has_console() else "pip install 'tidemark[console]'"),
        ("ZooKeeper", cluster.zookeeper.connect),
        ("logs", str(cluster.directory / "logs")),
    ):
        out.print(f"  {label:<10} {value}", highlight=False, soft_wrap=True)
    out.print("next, in another terminal:")
    for command in (
        f"export TIDEMARK_BOOTSTRAP={cluster.bootstrap}",
        *_identity_steps(cluster),
        "tidemark topic create greetings --partitions 3",
        "echo hello | tidemark produce greetings",
        "tidemark consume greetings --from earliest --max-records 1",
    ):
        out.print(f"  {command}", highlight=False, soft_wrap=True)
    out.print("Ctrl-C stops everything.")


def _has_console() -> bool:
    return all(importlib.util.find_spec(package) is not None for package in _CONSOLE_PACKAGES)


def _identity_steps(cluster: LocalCluster) -> list[str]:
    """Commands that set the user's identity for later commands; empty on plain-text ports."""
    if cluster.token_file is None:
        return []
    files = zip(FILE_VARIABLES, cluster.client_files, strict=True)
    token_file = quote(str(cluster.token_file))
    return [
        *(f"export {variable}={quote(path)}" for variable, path in files),
        f"# with a token: TIDEMARK_BOOTSTRAP={cluster.token_bootstrap} TIDEMARK_TOKEN_FILE={token_file}",
        "# other users need a certificate or a token, and rules: tidemark acl add --help",
    ]


def _watch(out: Console, cluster: LocalCluster) -> None:
    """Show the state until KeyboardInterrupt: a table on a terminal, else a line for each change."""
    alive = dict.fromkeys(cluster.names, True)
    live = Live(_table(cluster), console=out, auto_refresh=False) if out.is_terminal else contextlib.nullcontext()
    with live as shown:
        while True:
            time.sleep(_REFRESH_S)
            before, alive = alive, {name: cluster.process(name).running for name in cluster.names}
            for name in cluster.names:
                if before[name] and not alive[name]:
                    service = cluster.process(name)
                    out.print(f"{name} ended with status {service.exit_status}; its log: {service.log}")
            if isinstance(shown, Live) and alive != before:
                shown.update(_table(cluster), refresh=True)


def _table(cluster: LocalCluster) -> Table:
    table = Table("service", "address", "metrics", "pid", "state")
    for name in cluster.names:
        service = cluster.process(name)
        state = "running" if service.running else f"[red]ended, status {service.exit_status}[/red]"
        table.add_row(name, cluster.address(name), cluster.metrics_address(name), str(service.pid), state)
    return table


def _stop(out: Console, cluster: LocalCluster) -> None:
    """Stop in order; a second Ctrl-C kills all processes immediately."""
    try:
        with contextlib.suppress(OSError, SystemExit):
            out.print("stopping")
        cluster.stop()
    except KeyboardInterrupt:
        cluster.kill_all()
