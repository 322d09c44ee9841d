# SPDX-License-Identifier: Apache-2.0
"""The znodes of a secure cluster by a session with a certificate, and a walk that continues while the cluster works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL
from tidemark.rpc.security.paths import TlsFiles
from tidemark.zookeeper.security.access import is_open
from tidemark.zookeeper.security.tls import ZooKeeperTls

from tests.integration.harness.beside import Beside

NOT_OURS = "/zookeeper/config"
"""ZooKeeper's own node: every session may read it, none may write it."""

CONNECT_S = 30.0

Acls = dict[str, list[ACL]]


@contextmanager
def kazoo_with(connect: str, files: TlsFiles | None) -> Iterator[KazooClient]:
    """A session with a certificate, or without TLS."""
    handler = None if files is None else ZooKeeperTls(files).handler()
    client = KazooClient(connect, timeout=20, handler=handler)
    client.start(CONNECT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def acls_of(client: KazooClient) -> Acls:
    found: Acls = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(NoNodeError):
            found[path] = list(client.get_acls(path)[0])
            waiting += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    found.pop(NOT_OURS, None)
    return found


def open_nodes(acls: Acls) -> list[str]:
    """Paths of znodes that every session may change."""
    return sorted(path for path, acl in acls.items() if is_open(acl))


class Walk(Beside):
    """Walks the tree repeatedly on its own thread; `acls` has the first ACL of each znode that ever existed."""

    def __init__(self, connect: str, files: TlsFiles) -> None:
        self.acls: Acls = {}
        self._connect = connect
        self._files = files
        super().__init__()

    def run(self) -> None:
        with kazoo_with(self._connect, self._files) as client:
            while not self.stopping.wait(0.02):
                self.acls = acls_of(client) | self.acls
            self.acls = acls_of(client) | self.acls
