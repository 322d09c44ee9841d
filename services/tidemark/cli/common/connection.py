# SPDX-License-Identifier: Apache-2.0
"""The addresses of a cluster, as --bootstrap and --admin have them, and a client of the admin service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from tidemark.runtime.host_port import HostPort

if TYPE_CHECKING:
    from tidemark.client import AdminClient


_OPTIONS: Final = ("bootstrap", "admin")


def drop_other_address(ctx: typer.Context) -> None:
    """Drop the --bootstrap or --admin of the environment if the command line gives the other one: the environment may
    name another cluster.
    """
    sources = {option: getattr(ctx.get_parameter_source(option), "name", "") for option in _OPTIONS}
    if "COMMANDLINE" in sources.values():
        ctx.params.update({option: "" for option, source in sources.items() if source == "ENVIRONMENT"})


def need_bootstrap(bootstrap: str) -> str:
    """The brokers' addresses; raises BadParameter without any."""
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap:
        raise typer.BadParameter(
            "no cluster is given: expected HOST:PORT of any broker, or TIDEMARK_BOOTSTRAP", param_hint="--bootstrap"
        )
    return _checked(bootstrap, "--bootstrap")


def connect_admin(bootstrap: str, admin: str, *, timeout_s: float = 30.0) -> AdminClient:
    """A client of the admin service at `admin`, or of the admin service that the brokers name.

    Raises BadParameter if neither is given.
    """
    bootstrap = bootstrap.strip(" ,")
    if not bootstrap and not admin:
        raise typer.BadParameter(
            "no cluster is given: expected HOST:PORT of any broker or of the admin service, "
            "or TIDEMARK_BOOTSTRAP or TIDEMARK_ADMIN",
            param_hint=["--bootstrap", "--admin"],
        )
    _checked(bootstrap, "--bootstrap")
    _checked(admin, "--admin")
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.client import AdminClient

    return AdminClient(bootstrap or None, admin=admin or None, timeout_s=timeout_s)


def _checked(addresses: str, option: str) -> str:
    for address in filter(None, (part.strip() for part in addresses.split(","))):
        try:
            port = HostPort.parse(address).port
        except ValueError:
            port = 0
        if port == 0:
            raise typer.BadParameter(f"{address!r}: expected HOST:PORT", param_hint=option)
    return addresses
