# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and their checks."""

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
        "--bootstrap", envvar="TIDEMARK_BOOTSTRAP", metavar="HOST:PORT,...", help="Any brokers of the cluster."
    ),
]
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        envvar="TIDEMARK_ADMIN",
        metavar="HOST:PORT",
        help="The admin service; by default its address comes from the brokers.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


def fits_int32(value: int) -> int:
    """The value, or bad usage if the protocol's int32 cannot carry it; the service validates the rest."""
    if not -(2**31) <= value < 2**31:
        raise typer.BadParameter(f"{value} is out of range")
    return value


def need_bootstrap(bootstrap: str) -> str:
    """The brokers' addresses; bad usage without any."""
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap:
        raise typer.BadParameter(
            "no cluster is given: want HOST:PORT of any broker, or TIDEMARK_BOOTSTRAP", param_hint="--bootstrap"
        )
    return _checked(bootstrap, "--bootstrap")


def connect_admin(bootstrap: str, admin: str, *, timeout_s: float = 30.0) -> AdminClient:
    """A client of the admin service at `admin`, or of the one that the brokers name; bad usage without either."""
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap and not admin:
        raise typer.BadParameter(
            "no cluster is given: want HOST:PORT of any broker or of the admin service, "
            "or TIDEMARK_BOOTSTRAP or TIDEMARK_ADMIN",
            param_hint=["--bootstrap", "--admin"],
        )
    _checked(bootstrap, "--bootstrap")
    _checked(admin, "--admin")
    # A late import: help and bad usage shall not wait for the client's libraries.
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


def parse_configs(settings: Sequence[str], *, option: str | None = "--config") -> dict[str, str]:
    """Key and value of each KEY=VALUE; bad usage for another form, or a key that is given twice."""
    configs: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{setting!r}: want KEY=VALUE", param_hint=option)
        if name in configs:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        configs[name] = value
    return configs
