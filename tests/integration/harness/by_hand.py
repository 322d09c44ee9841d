# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper, for manual changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from tidemark.local.cluster import LocalCluster


@contextmanager
def kazoo_of(cluster: LocalCluster) -> Iterator[KazooClient]:
    """A session of the test's own."""
    client = KazooClient(cluster.zookeeper.connect, timeout=20)
    client.start()
    yield client
    client.stop()
    client.close()
