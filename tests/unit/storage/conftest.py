# SPDX-License-Identifier: Apache-2.0
"""A directory in memory for logs, and the end of a process in the middle of its work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.storage.batches import memory_directory
from tests.unit.storage.kills import Killer


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(monkeypatch)
