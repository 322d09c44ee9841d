# SPDX-License-Identifier: Apache-2.0
"""Steps and moves that several tests share, computed once: a step depends on the core and the event alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.exploration.model.brokers import Brokers
from tests.exploration.model.cluster import Cluster
from tests.exploration.model.state import Scope
from tests.exploration.walking.search import Search
from tests.exploration.walking.walk import Walk


class Known:
    """Steps of the shipping core, or of one mutant of it, and moves of each scope."""

    def __init__(self) -> None:
        self._brokers = Brokers()
        self._walks: dict[Scope, Walk] = {}

    def walk(self, scope: Scope, **options: Any) -> Walk:
        """A new walk; it computes only moves that no earlier walk of the scope needed."""
        first = self._walks.get(scope)
        if first is None:
            first = self._walks[scope] = Walk(scope, cluster=self.cluster(scope))
        return Walk(scope, after=first, **options)

    def cluster(self, scope: Scope) -> Cluster:
        """A new cluster, which shares computed steps, but no moves."""
        return Cluster(scope, self._brokers)

    def search(self, scope: Scope, cluster: type[Cluster] = Cluster) -> Search:
        """A search of a kind of cluster; tests share one search of each kind."""
        return Search(scope, cluster(scope, self._brokers))


_KNOWN: dict[Callable[[pytest.MonkeyPatch], None] | None, Known] = {}
"""Results by mutant; None: the shipping core."""


@pytest.fixture
def known(request: pytest.FixtureRequest) -> Known:
    """Results of the mutant of this test, or of the shipping core without a mutant."""
    mutant = request.node.callspec.params.get("mutant") if hasattr(request.node, "callspec") else None
    assert mutant is not None or "monkeypatch" not in request.fixturenames, "a patched core is another one"
    return _KNOWN.setdefault(None if mutant is None else mutant.patch, Known())
