# SPDX-License-Identifier: Apache-2.0
"""`tidemark zookeeper ...`: close the znodes of a cluster to all but its services, while the cluster runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import Commands, DryRunOption
from tidemark.cli.common.output import counted, print_line
from tidemark.model import invalid_request
from tidemark.runtime.host_port import zookeeper_hosts

if TYPE_CHECKING:
    from tidemark.zookeeper.closing import Pass, Tree

_PROGRESS_NODES: Final = 5_000

zookeeper_app = Commands(help="Protect the cluster's nodes in ZooKeeper.")


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """The options of a command that connects to ZooKeeper as a service does."""

    connect: Annotated[
        str,
        typer.Option(
            "--connect",
            envvar="TIDEMARK_ZOOKEEPER_CONNECT",
            metavar="HOST:PORT,.../CHROOT",
            help="The services' value of zookeeper.connect, with TLS ports.",
        ),
    ]
    ca: Annotated[
        str,
        typer.Option(
            "--ca-file",
            envvar=["TIDEMARK_ZOOKEEPER_TLS_CA_FILE", "TIDEMARK_TLS_CA_FILE"],
            metavar="FILE",
            help="Authorities of ZooKeeper's servers.",
        ),
    ]
    certificate: Annotated[
        str,
        typer.Option(
            "--certificate-file",
            envvar=["TIDEMARK_ZOOKEEPER_TLS_CERTIFICATE_FILE", "TIDEMARK_TLS_CERTIFICATE_FILE"],
            metavar="FILE",
            help="The certificate of any service of the cluster.",
        ),
    ]
    key: Annotated[
        str,
        typer.Option(
            "--key-file",
            envvar=["TIDEMARK_ZOOKEEPER_TLS_KEY_FILE", "TIDEMARK_TLS_KEY_FILE"],
            metavar="FILE",
            help="Private key of the certificate.",
        ),
    ]

    def run(self, act: Callable[[Tree], Awaitable[None]]) -> None:
        """Open a session and act on the tree; raises BadParameter for an address that is none."""
        try:
            zookeeper_hosts(self.connect)
        except ValueError as error:
            reason = f"{self.connect!r}: {error}; expected host:port[,host:port...][/chroot]"
            raise typer.BadParameter(reason, param_hint="--connect") from None
        from tidemark.rpc.security.paths import TlsFiles
        from tidemark.zookeeper.closing import tree_of
        from tidemark.zookeeper.security.tls import ZooKeeperTls

        tls = ZooKeeperTls(
            TlsFiles(self.ca, self.certificate, self.key), ("--ca-file", "--certificate-file", "--key-file")
        )

        async def acting() -> None:
            async with tree_of(self.connect, tls) as tree:
                await act(tree)

        asyncio.run(acting())


@zookeeper_app.command("close", short_help="Close the nodes to all but the services.")
def close(zookeeper: ZooKeeper, dry_run: DryRunOption = False) -> None:
    """Give every node of the cluster an ACL for the subject of the services' certificates, while the cluster runs.

    All services must use TLS to ZooKeeper with certificates of this subject; the command checks brokers and the active
    controller. An interrupted command is completed by a second one. Values and versions of nodes do not change.

    \b
    Example:
      tidemark zookeeper close --connect zk-1.example.com:2281 --ca-file certs/ca.crt \\
        --certificate-file certs/admin.crt --key-file certs/admin.key
    """

    async def act(tree: Tree) -> None:
        await tree.closed()
        if dry_run:
            await _show(tree, close=True)
            return
        changed = await tree.close(_progress())
        print_line(f"closed for {tree.subject}: {counted(changed, 'node')} changed, every node has the ACL")

    zookeeper.run(act)


@zookeeper_app.command("open", short_help="Open the nodes to every session.")
def open_(zookeeper: ZooKeeper, dry_run: DryRunOption = False) -> None:
    """Give every node of the cluster an ACL for every session, while the cluster runs: the reverse of `close`.

    Use this before services return to sessions without TLS, or change the subject of their certificates.

    \b
    Example:
      tidemark zookeeper open --connect zk-1.example.com:2281 --ca-file certs/ca.crt \\
        --certificate-file certs/admin.crt --key-file certs/admin.key
    """

    async def act(tree: Tree) -> None:
        await tree.closed()
        if dry_run:
            await _show(tree, close=False)
            return
        changed = await tree.open(_progress())
        print_line(f"open to every session: {counted(changed, 'node')} changed")

    zookeeper.run(act)


async def _show(tree: Tree, *, close: bool) -> None:
    found = await tree.look(close=close, tell=_progress())
    state = "closed" if await tree.closed() else "open"
    first = f", such as {found.first}" if found.first else ""
    print_line(f"the root is {state}; {counted(found.nodes, 'node')}, of which {found.other} would change{first}")
    without = await tree.services_without_certificate() if close else []
    if without:
        raise invalid_request(
            f"the tree cannot be closed: {', '.join(without)} would lose access, because the session with ZooKeeper "
            f"has no certificate with the subject {tree.subject}"
        )


def _progress() -> Callable[[Pass], None]:
    """Writes the state of a long pass to stderr."""
    told = 0

    def tell(found: Pass) -> None:
        nonlocal told
        told = min(told, found.nodes)  # after a new pass, the count begins at 0
        if found.nodes - told >= _PROGRESS_NODES:
            told = found.nodes
            sys.stderr.write(f"{counted(found.nodes, 'node')} seen, {found.other} with another ACL\n")

    return tell
