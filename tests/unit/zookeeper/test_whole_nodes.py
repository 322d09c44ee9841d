# SPDX-License-Identifier: Apache-2.0
"""Reads of nodes that hold all facts of a kind, from a server of ZooKeeper that is behind the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.zookeeper import paths
from tidemark.zookeeper.whole_nodes import acls as access_rules
from tidemark.zookeeper.whole_nodes import quotas


class LaggingSession:
    """A new session with a server that gets the newest version of a node at the next sync."""

    def __init__(self, path: str, old: bytes, new: bytes) -> None:
        self._path = path
        self._versions = [(old, SimpleNamespace(version=3)), (new, SimpleNamespace(version=4))]
        self._at = 0

    async def sync(self) -> None:
        self._at = 1

    async def exists(self, path: str, watch: Callable[[Any], None] | None = None) -> object:
        return self._versions[self._at][1]

    async def get(self, path: str) -> tuple[bytes, Any]:
        assert path == self._path
        return self._versions[self._at]


@pytest.mark.parametrize("watch", [None, lambda event: None])
async def test_rules_and_quotas_are_as_new_as_the_read(watch: Callable[[Any], None] | None) -> None:
    """After a new session, rules that were removed before it must not come back."""
    of_rules: Any = LaggingSession(paths.ACLS, access_rules.encode([]), access_rules.encode([]))
    assert (await access_rules.read(of_rules, watch)).generation == 4
    of_quotas: Any = LaggingSession(paths.QUOTAS, quotas.encode({}), quotas.encode({}))
    assert (await quotas.read(of_quotas, watch)).generation == 4
