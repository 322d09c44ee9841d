# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and what they mean together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.common.output import Output
from tidemark.runtime.host_port import HostPort

if TYPE_CHECKING:
    from tidemark.client import AdminClient

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", metavar="HOST:PORT,...", help="Any of the cluster's brokers."
    ),
]
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar="TIDEMARK_ADMIN",
        metavar="HOST:PORT",
        help="The admin service; else the brokers are asked where it is.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="For people or for scripts.")]


def fits_int32(value: int) -> int:
    """A number that the contract can carry; bad usage when it is beyond: the service judges all others."""
    if not -(2**31) <= value < 2**31:
        raise typer.BadParameter(f"{value} is out of range")
    return value


def need_bootstrap(bootstrap: str) -> str:
    """The brokers' addresses; bad usage when none is given."""
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap:
        raise typer.BadParameter(
            "say where the cluster is: HOST:PORT of any broker, or TIDEMARK_BOOTSTRAP", param_hint="--bootstrap"
        )
    return _checked(bootstrap, "--bootstrap")


def connect_admin(bootstrap: str, admin: str, *, timeout_s: float = 30.0) -> AdminClient:
    """A client of the admin service at `admin`, else of the one that the brokers know; bad usage without either."""
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap and not admin:
        raise typer.BadParameter(
            "say where the cluster is: HOST:PORT of any broker, or of the admin service; "
            "TIDEMARK_BOOTSTRAP and TIDEMARK_ADMIN do too",
            param_hint=["--bootstrap", "--admin"],
        )
    _checked(bootstrap, "--bootstrap")
    _checked(admin, "--admin")
    # Only here: the client's libraries take longer to import than bad usage and help need.
    from tidemark.client import AdminClient

    return AdminClient(admin or None, bootstrap=bootstrap or None, timeout_s=timeout_s)


def _checked(addresses: str, option: str) -> str:
    for address in filter(None, (part.strip() for part in addresses.split(","))):
        try:
            port = HostPort.parse(address).port
        except ValueError:
            port = 0
        if port == 0:
            raise typer.BadParameter(f"{address!r}: want HOST:PORT", param_hint=option)
    return addresses


def parse_configs(settings: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE of each; bad usage when one is not, or comes twice."""
    configs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{setting!r}: want KEY=VALUE", param_hint="--config")
        if name in configs:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--config")
        configs[name] = value
    return configs
