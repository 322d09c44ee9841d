# SPDX-License-Identifier: Apache-2.0
"""Closes the znodes of a running cluster to all sessions except those of its services, or opens the znodes again.

Order: the root's ACL first, since services create znodes as their root is. Then a pause until every session has checked
the root (`access.CHECK_S`); then passes over the tree until a pass makes no change. Each step can be repeated: after an
interruption, the same command completes the tree. Values and versions of znodes do not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from kazoo.protocol.serialization import GetChildren
from kazoo.security import ACL, Id

from tidemark.model import TidemarkError, invalid_request
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper import paths
from tidemark.zookeeper.security.access import (
    CHECK_S,
    REFUSALS,
    Ask,
    NodeAccess,
    acl_of,
    children_of,
    closed_acl,
    is_closed,
    open_acl,
    own_ancestors,
    set_acl,
    subject_of,
)
from tidemark.zookeeper.security.tls import ZooKeeperTls
from tidemark.zookeeper.sessions.session import ZooKeeperSession
from tidemark.zookeeper.sessions.session_metrics import SessionTally

_BATCH: Final = 100
_SESSION_TIMEOUT_MS: Final = 10_000
_SYSTEM: Final = "/zookeeper"
NOTICE_S: Final = 2 * CHECK_S
"""Time in which every session checks the root."""


@dataclass(slots=True)
class Pass:
    """The counts of one pass over the tree.

    Attributes:
        nodes: number of znodes that were checked.
        other: number of these znodes without the wanted ACL.
        first: path of one of these znodes; "" if there are none.
    """

    nodes: int = 0
    other: int = 0
    first: str = ""


Tell = Callable[[Pass], None]
"""Receives the state of a pass after each part of it."""


class Tree:
    """The znodes of one cluster, by a session with the certificate of its services.

    Args:
        ask: sends a request whose paths include the chroot.
        chroot: chroot of `zookeeper.connect`; "" if there is none.
        subject: subject of the certificate, as ZooKeeper writes it.
    """

    def __init__(self, ask: Ask, chroot: str, subject: str) -> None:
        self._ask = ask
        self._chroot = chroot
        self.subject = subject

    async def closed(self) -> bool:
        """Whether the root is closed; raises INVALID_REQUEST if there is no cluster."""
        found = await is_closed(self._ask, self._chroot or "/", self.subject)
        if found is None or await acl_of(self._ask, self._chroot + paths.CLUSTER_ID) is None:
            raise invalid_request(
                f"ZooKeeper has no cluster at {self._chroot or '/'}: give the services' value of zookeeper.connect"
            )
        return found

    async def services_without_certificate(self) -> list[str]:
        """Registered services whose session has no certificate with this subject: "broker 3", "the controller".

        Their session created their znode, and its ACL has the subject of the session.
        """
        names = await children_of(self._ask, self._chroot + paths.BROKERS)
        nodes = {f"broker {name}": f"{paths.BROKERS}/{name}" for name in sorted(names, key=lambda one: (len(one), one))}
        nodes["the active controller"] = paths.CONTROLLER
        acls = {service: await acl_of(self._ask, self._chroot + path) for service, path in nodes.items()}
        ours = Id("x509", self.subject)
        return [service for service, acl in acls.items() if acl is not None and all(one.id != ours for one in acl)]

    async def look(self, *, close: bool, tell: Tell) -> Pass:
        """Count the znodes that `close` or `open` would change."""
        return await self._pass(self._wanted(close), tell, change=False)

    async def close(self, tell: Tell) -> int:
        """Close all znodes; returns how many were changed.

        Raises:
            TidemarkError: INVALID_REQUEST: there is no cluster; or a service has no certificate, and would lose its
                access.
        """
        await self.closed()
        without = await self.services_without_certificate()
        if without:
            raise invalid_request(
                f"nothing was changed: {', '.join(without)} would lose access, because the session with ZooKeeper has "
                f"no certificate with the subject {self.subject}; set zookeeper.tls.ca.file there, and restart"
            )
        return await self._change(close=True, tell=tell)

    async def open(self, tell: Tell) -> int:
        """Open all znodes to every session, as without TLS; returns the number of changed znodes."""
        return await self._change(close=False, tell=tell)

    async def _change(self, *, close: bool, tell: Tell) -> int:
        wanted = self._wanted(close)
        changed = 0
        if await self.closed() is not close:
            await set_acl(self._ask, self._chroot or "/", wanted)
            changed += 1
            await asyncio.sleep(NOTICE_S)
        for path in await own_ancestors(self._ask, self._chroot):
            acl = await acl_of(self._ask, path)
            if acl is not None and set(acl) != set(wanted):
                changed += await set_acl(self._ask, path, wanted)
        while True:
            found = await self._pass(wanted, tell, change=True)
            changed += found.other
            if not found.other:
                return changed

    def _wanted(self, close: bool) -> list[ACL]:
        return closed_acl(self.subject) if close else open_acl(self.subject)

    async def _pass(self, wanted: list[ACL], tell: Tell, *, change: bool) -> Pass:
        found = Pass()
        waiting = [self._chroot or "/"]
        while waiting:
            part, waiting = waiting[-_BATCH:], waiting[:-_BATCH]
            results = await asyncio.gather(*(self._visit(path, wanted, found, change=change) for path in part))
            waiting += [child for children in results for child in children]
            tell(found)
        return found

    async def _visit(self, path: str, wanted: list[ACL], found: Pass, *, change: bool) -> list[str]:
        """Change one znode where needed; returns the paths of its children."""
        acl = await acl_of(self._ask, path)
        if acl is None:
            return []
        found.nodes += 1
        if set(acl) != set(wanted):
            found.other += 1
            found.first = found.first or path
            if change:
                await set_acl(self._ask, path, wanted)
        below = [f"{path.rstrip('/')}/{name}" for name in await children_of(self._ask, path)]
        return [child for child in below if child != _SYSTEM]


class _Visitor(NodeAccess):
    """The access of a session that creates nothing, and claims no new tree."""

    async def begin(self, ask: Ask, chroot: str) -> None:
        """Learn the subject of the certificate."""
        self.subject = await subject_of(ask)

    async def check(self, ask: Ask, chroot: str) -> None:
        """Has no effect: this session creates no znodes."""


async def is_closed_to_plain_sessions(connect: str) -> bool:
    """Whether the root is closed to sessions without a certificate; raises COORDINATION_UNAVAILABLE: no server."""
    session = ZooKeeperSession(connect, _SESSION_TIMEOUT_MS, SystemClock(), lambda _: None, SessionTally())
    await session.start()
    try:
        await session.ask(GetChildren(session.chroot or "/", None))
    except TidemarkError as error:
        if isinstance(error.__cause__, REFUSALS):
            return True
        raise
    finally:
        await session.stop()
    return False


@asynccontextmanager
async def tree_of(connect: str, tls: ZooKeeperTls) -> AsyncIterator[Tree]:
    """The znodes at `zookeeper.connect`; raises COORDINATION_UNAVAILABLE while no server accepts the session."""
    access = _Visitor()
    session = ZooKeeperSession(
        connect, _SESSION_TIMEOUT_MS, SystemClock(), lambda _: None, SessionTally(), tls, access=access
    )
    await session.start()
    try:
        yield Tree(session.ask, session.chroot, access.subject)
    finally:
        await session.stop()
