# SPDX-License-Identifier: Apache-2.0
"""The ACL of znodes that tasks create while a session with TLS begins; over a client in memory, without ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from kazoo.client import KazooState, TransactionRequest
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create as CreateRequest
from kazoo.protocol.serialization import GetACL, GetChildren, SetACL, Transaction
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, CREATOR_ALL_ACL, Id, Permissions
from tidemark.model import ErrorCode
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.multis import Create, commit
from tidemark.zookeeper.security.access import Ask, NodeAccess, WhoAmI, closed_acl
from tidemark.zookeeper.security.tls import ZooKeeperTls
from tidemark.zookeeper.sessions.session import ZooKeeperSession
from tidemark.zookeeper.sessions.session_metrics import SessionTally

from tests.refusals import raises_code
from tests.turns import turns

SUBJECT = "CN=services,O=shop"


class Tls:
    """No files: the client in memory opens no connection."""

    failure = ""

    def handler(self) -> None:
        """The client brings its own."""


class Servers:
    negotiated_timeout_ms = 10_000

    def leave(self) -> None:
        """The server always answers."""


class Client:
    """Connects immediately; the tree is closed, and the answer about its ACL waits for `answer`."""

    chroot = "/shop"
    logger = logging.getLogger("client in memory")
    client_state = KeeperState.CONNECTED

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.default_acl: list[ACL] | None = None
        self.handler = SequentialThreadingHandler()
        self.client_id = (id(self), b"")

    def start_async(self) -> None:
        asyncio.get_running_loop().call_soon(
            self._tree.session._on_state, self, KazooState.CONNECTED, Servers.negotiated_timeout_ms, False
        )

    def transaction(self) -> TransactionRequest:
        return TransactionRequest(self)

    def _call(self, request: Any, result: Any) -> None:
        if isinstance(request, WhoAmI):
            result.set([("x509", SUBJECT)])
        elif isinstance(request, GetACL):
            self._tree.asked.set()
            self._tree.held.append(lambda: self._answer_acl(result))
            self._tree.release_if_open()
        elif isinstance(request, SetACL):
            result.set_exception(NoNodeError())
        elif isinstance(request, CreateRequest):
            self._tree.root = self._tree.made_by_another
            result.set_exception(NodeExistsError())
        elif isinstance(request, GetChildren):
            result.set(["brokers"])
        else:
            assert isinstance(request, Transaction)
            self._tree.written += [(one.path, list(one.acl)) for one in request.operations]
            result.set([one.path for one in request.operations])

    def _answer_acl(self, result: Any) -> None:
        if self._tree.root is None:
            result.set_exception(NoNodeError())
        else:
            result.set((self._tree.root, None))

    def stop(self) -> None:
        """Has no effect."""

    def close(self) -> None:
        """Has no effect."""


class Tree:
    def __init__(self, access: NodeAccess) -> None:
        self.written: list[tuple[str, list[ACL]]] = []
        self.asked = asyncio.Event()
        self.held: list[Any] = []
        self.root: list[ACL] | None = closed_acl(SUBJECT)
        self.made_by_another: list[ACL] = []
        self.answering = True
        self.session = ZooKeeperSession(
            "zookeeper:1", 10_000, SystemClock(), lambda _: None, SessionTally(), cast(ZooKeeperTls, Tls()), access
        )
        new_client: Any = lambda _: (Client(self), Servers())  # noqa: E731
        self.session._new_client = new_client  # type: ignore[method-assign]

    def release_if_open(self) -> None:
        while self.answering and self.held:
            self.held.pop()()

    def answer(self) -> None:
        self.answering = True
        self.release_if_open()


async def test_a_create_during_the_start_of_a_session_waits_for_the_acl_of_the_tree() -> None:
    tree = Tree(NodeAccess())
    await tree.session.start()
    tree.asked.clear()
    tree.answering = False
    renewing = asyncio.create_task(tree.session.renew())
    await tree.asked.wait()
    creating = asyncio.create_task(commit(tree.session, [Create("/brokers/topics/during", b"")]))
    await turns(20)  # passes of the event loop: more than a request takes to reach the client
    assert tree.written == []
    tree.answer()
    await asyncio.gather(renewing, creating)
    assert tree.written == [("/shop/brokers/topics/during", CREATOR_ALL_ACL)]
    await tree.session.stop()


class Unknowing(NodeAccess):
    async def begin(self, ask: Ask, chroot: str) -> None:
        """Has no effect."""


async def test_a_create_without_a_known_acl_is_refused_and_not_sent() -> None:
    tree = Tree(Unknowing())
    await tree.session.start()
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE, "the ACL of the root is not known yet") as refused:
        await commit(tree.session, [Create("/brokers/topics/early", b"")])
    assert refused.value.metadata["sent"] == "false"
    assert tree.written == []
    await tree.session.stop()


async def test_a_root_that_another_session_makes_after_the_start_is_refused() -> None:
    tree = Tree(NodeAccess())
    tree.root = None
    tree.made_by_another = [ACL(Permissions.ALL, Id("digest", "evil:hash")), *closed_acl(SUBJECT)]
    await tree.session.start()
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE, "digest:evil:hash"):
        await tree.session.ensure_chroot()
    await tree.session.stop()
