"""One cluster for all tests that only use it; tests that hurt a cluster start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tidemark.local.cluster import LocalCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers, two controllers and an admin service, healthy; leave it so."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
