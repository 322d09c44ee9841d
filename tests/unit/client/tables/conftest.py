# SPDX-License-Identifier: Apache-2.0
"""Logs that replace brokers; catalogs of Iceberg tables: SQLite in the archive's directory, and REST."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from tidemark.client.tables import archiver, table_scan
from tidemark.client.tables.iceberg_catalog import opened_catalog

from tests.unit.client.tables.logs import FIRST, NAME, Logs
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


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    """A log of the first version, which archives and reads find instead of brokers."""
    found = Logs(FIRST)
    for module in (archiver, table_scan):
        monkeypatch.setattr(module, "RangeReader", found)
    return found


@pytest.fixture
def catalog(tmp_path: Path, properties: dict[str, str] | None) -> Iterator[Catalog]:
    """The catalog, without a table of the name."""
    with opened_catalog(tmp_path, properties) as found:
        with suppress(NoSuchTableError):
            found.drop_table(NAME)
        yield found
