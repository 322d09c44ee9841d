# SPDX-License-Identifier: Apache-2.0
"""A root of its own in the test worker's ZooKeeper, for a cluster that would start a ZooKeeper for itself.

Half of the CPU time of a cluster's start is that of its ZooKeeper. Tests that stop or suspend their cluster's ZooKeeper
use the fixture `own_zookeeper`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark.local.zookeeper_process import ZooKeeperProcess
from tidemark.rpc.security.paths import TlsFiles


class ZooKeeperRoot:
    """Replaces a ZooKeeperProcess; a later start with the same directory finds the data.

    Only a cluster may start and stop it, and there is nothing else to do with it.
    """

    def __init__(self, server: ZooKeeperProcess, directory: Path) -> None:
        self._server = server
        self._root = directory.absolute().as_posix().strip("/").replace("/", "-")

    @property
    def connect(self) -> str:
        """The value of `zookeeper.connect`."""
        return f"{self._server.connect}/{self._root}"

    def start(self, timeout_s: float = 30.0) -> None:
        """Start the server, if it does not run."""
        if not self._server.running:
            self._server.start(timeout_s)

    def stop(self) -> None:
        """Do nothing: the server stays for other clusters."""

    kill = stop


@contextlib.contextmanager
def roots_of(server: ZooKeeperProcess) -> Iterator[None]:
    """Meanwhile a cluster without TLS, and without a fixed port of its ZooKeeper, has a root of `server`."""

    def made(directory: Path, port: int | None, *, tls: TlsFiles | None) -> ZooKeeperProcess | ZooKeeperRoot:
        if port is None and tls is None:
            return ZooKeeperRoot(server, directory)
        return ZooKeeperProcess(directory, port, tls=tls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.local.cluster.ZooKeeperProcess", made)
        yield


@contextlib.contextmanager
def own_zookeepers() -> Iterator[None]:
    """Meanwhile each cluster has a ZooKeeper of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.local.cluster.ZooKeeperProcess", ZooKeeperProcess)
        yield
