# SPDX-License-Identifier: Apache-2.0
"""Closing a tree while it changes, and after an interruption; over znodes in memory, with ZooKeeper's requests."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetACL, GetChildren, SetACL
from kazoo.security import ACL, ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE, Id, Permissions
from tidemark.model import ErrorCode, TidemarkError
from tidemark.zookeeper import closing
from tidemark.zookeeper.closing import Pass, Tree
from tidemark.zookeeper.security.access import AccessError, NodeAccess, WhoAmI, closed_acl, open_acl

SUBJECT = "CN=services,O=shop"
SIGNED, CLOSED = open_acl(SUBJECT), closed_acl(SUBJECT)
NODES = ("/", "/zookeeper", "/zookeeper/quota", "/shop", "/shop/cluster", "/shop/cluster/id", "/shop/brokers/ids/1")


class Nodes:
    """Answers requests from a dictionary of ACLs; `before` sees each request first."""

    def __init__(self, *paths: str) -> None:
        self.acls: dict[str, list[ACL]] = {}
        for path in paths:
            self.add(path, SIGNED)
        self.changes = 0

    def add(self, path: str, acl: list[ACL]) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.acls:
            self.add(parent, acl)
        self.acls[path] = acl

    def before(self, request: Any) -> None:
        """Empty, unless a test sets a value."""

    async def ask(self, request: Any) -> Any:
        self.before(request)
        if isinstance(request, WhoAmI):
            return [("ip", "127.0.0.1"), ("x509", SUBJECT)]
        if request.path not in self.acls:
            raise NoNodeError
        if isinstance(request, GetACL):
            return self.acls[request.path], None
        if isinstance(request, GetChildren):
            below = request.path.rstrip("/") + "/"
            return {path.removeprefix(below).partition("/")[0] for path in self.acls if path.startswith(below)} - {""}
        assert isinstance(request, SetACL)
        self.acls[request.path] = list(request.acls)
        self.changes += 1
        return None

    def open(self) -> list[str]:
        return [path for path, acl in self.acls.items() if acl != CLOSED]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "NOTICE_S", 0.0)


def silent(_: Pass) -> None:
    """No progress is shown."""


async def test_a_second_run_completes_an_interrupted_one_and_a_third_changes_nothing() -> None:
    nodes = Nodes(*NODES, *(f"/shop/brokers/topics/t{number}" for number in range(300)))
    tree = Tree(nodes.ask, "/shop", SUBJECT)

    def fail(_: Any) -> None:
        if nodes.changes == 100:
            raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "the connection was lost")

    nodes.before = fail  # type: ignore[method-assign]
    with pytest.raises(TidemarkError, match="the connection was lost"):
        await tree.close(silent)
    assert len(nodes.open()) > 100
    nodes.before = lambda _: None  # type: ignore[method-assign]
    await tree.close(silent)
    assert nodes.open() == []
    assert await tree.close(silent) == 0
    assert await tree.open(silent) == len(nodes.acls)


async def test_nodes_that_come_and_go_during_a_pass_are_closed_or_ignored() -> None:
    nodes = Nodes(*NODES, "/shop/brokers/topics/gone", "/shop/brokers/topics/kept")
    seen: list[str] = []

    def change(request: Any) -> None:
        if isinstance(request, GetACL) and request.path.startswith("/shop/brokers/topics/"):
            nodes.acls.pop("/shop/brokers/topics/gone", None)
            seen.append(request.path)
            if len(seen) == 1:  # a service that has not read the root yet creates it, below a visited parent
                nodes.add("/shop/cluster/late", SIGNED)

    nodes.before = change  # type: ignore[method-assign]
    await Tree(nodes.ask, "/shop", SUBJECT).close(silent)
    assert "/shop/cluster/late" in nodes.acls
    assert nodes.open() == []


async def test_the_root_is_closed_before_any_other_node() -> None:
    """Services create nodes with the root's access: nodes that they create after a pass must be closed already."""
    nodes = Nodes(*NODES)
    order: list[str] = []

    def note(request: Any) -> None:
        if isinstance(request, SetACL):
            order.append(request.path)

    nodes.before = note  # type: ignore[method-assign]
    await Tree(nodes.ask, "/shop", SUBJECT).close(silent)
    assert order[0] == "/shop"
    assert set(order) == set(nodes.acls)


async def test_nodes_of_other_systems_stay_as_they_are() -> None:
    nodes = Nodes(*NODES, "/kafka/brokers")
    await Tree(nodes.ask, "/shop", SUBJECT).close(silent)
    assert sorted(nodes.open()) == ["/", "/kafka", "/kafka/brokers", "/zookeeper", "/zookeeper/quota"]


@pytest.mark.parametrize(
    ("paths", "chroot", "closed"),
    [
        (("/", "/zookeeper", "/zookeeper/quota"), "", True),
        (("/", "/zookeeper", "/zookeeper/quota"), "/shop", True),
        (NODES, "/shop", False),
        (("/", "/zookeeper", "/zookeeper/quota", "/kafka"), "", False),
    ],
)
async def test_a_service_closes_a_new_tree_only(paths: tuple[str, ...], chroot: str, closed: bool) -> None:
    nodes, access = Nodes(*paths), NodeAccess()
    await access.begin(nodes.ask, chroot)
    assert access.closed is closed
    assert nodes.open() == ([] if closed else list(nodes.acls))


@pytest.mark.parametrize("moment", [GetACL, GetChildren])
async def test_a_service_that_starts_while_another_one_closes_a_new_tree_creates_closed_nodes(
    monkeypatch: pytest.MonkeyPatch, moment: type
) -> None:
    nodes, access = Nodes("/", "/zookeeper", "/zookeeper/quota", "/shop"), NodeAccess()

    def close_first(request: Any) -> None:
        if isinstance(request, moment) and request.path == "/shop" and "/shop/config" not in nodes.acls:
            nodes.acls["/shop"] = CLOSED
            nodes.add("/shop/config", CLOSED)

    monkeypatch.setattr(nodes, "before", close_first)
    await access.begin(nodes.ask, "/shop")
    assert access.closed


async def test_services_without_a_certificate_and_of_other_subjects_are_named() -> None:
    nodes = Nodes(*NODES, "/shop/controller")
    nodes.add("/shop/brokers/ids/10", list(OPEN_ACL_UNSAFE))
    nodes.add("/shop/brokers/ids/2", open_acl("CN=broker-2"))
    tree = Tree(nodes.ask, "/shop", SUBJECT)
    assert await tree.services_without_certificate() == ["broker 2", "broker 10"]
    with pytest.raises(TidemarkError, match="nothing was changed: broker 2, broker 10 would lose access"):
        await tree.close(silent)
    assert nodes.changes == 0


EVIL = ACL(Permissions.ALL, Id("digest", "evil:hash"))


@pytest.mark.parametrize(
    "foreign",
    [
        [EVIL, *CLOSED],
        [ACL(Permissions.ALL, Id("ip", "0.0.0.0/0")), *CLOSED],
        [ACL(Permissions.READ, ANYONE_ID_UNSAFE), *CLOSED],
        [ACL(Permissions.READ, Id("x509", SUBJECT))],
    ],
)
@pytest.mark.parametrize("paths", [("/", "/shop"), NODES])
async def test_a_root_with_rights_of_others_is_not_closed_and_a_service_refuses_the_root(
    paths: tuple[str, ...], foreign: list[ACL]
) -> None:
    nodes, access = Nodes(*paths), NodeAccess()
    nodes.add("/shop", foreign)
    with pytest.raises(AccessError, match=r"ACL of /shop .*tidemark zookeeper close"):
        await access.begin(nodes.ask, "/shop")
    assert access.acl is None
    assert nodes.changes == 0


async def test_the_command_closes_a_root_with_rights_of_others() -> None:
    nodes, access = Nodes(*NODES), NodeAccess()
    nodes.add("/shop", [EVIL, *CLOSED])
    tree = Tree(nodes.ask, "/shop", SUBJECT)
    assert not await tree.closed()
    await tree.close(silent)
    assert nodes.open() == []
    await access.begin(nodes.ask, "/shop")
    assert access.closed


async def test_a_missing_root_or_rights_of_others_keep_the_last_known_state(caplog: pytest.LogCaptureFixture) -> None:
    nodes, access = Nodes(*NODES), NodeAccess()
    await Tree(nodes.ask, "/shop", SUBJECT).close(silent)
    await access.begin(nodes.ask, "/shop")
    del nodes.acls["/shop"]
    await access.check(nodes.ask, "/shop")
    assert access.closed
    for _ in range(2):
        nodes.add("/shop", [EVIL, *CLOSED])
        await access.check(nodes.ask, "/shop")
        assert access.closed
    assert [record.getMessage().count("digest:evil:hash") for record in caplog.records] == [1]
    nodes.add("/shop", SIGNED)
    await access.check(nodes.ask, "/shop")
    assert not access.closed
