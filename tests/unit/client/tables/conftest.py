# SPDX-License-Identifier: Apache-2.0
"""Catalogs of Iceberg tables: SQLite in the archive's directory, and REST."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.tables.rest_server import RestServer

_REAL = os.environ.get("TIDEMARK_TEST_REST_CATALOG", "")
"""Address of an Iceberg REST catalog that is empty at the start."""


@pytest.fixture
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with RestServer(tmp_path_factory.mktemp("rest") / "server").serving() as found:
        yield found


@pytest.fixture(params=["sql", "rest", *(["real"] if _REAL else [])])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str] | None:
    """Properties of a catalog."""
    if request.param == "sql":
        return None
    return {"type": "rest", "uri": _REAL if request.param == "real" else request.getfixturevalue("rest").uri}
