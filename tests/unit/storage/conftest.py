# SPDX-License-Identifier: Apache-2.0
"""A directory in memory for logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.storage.batches import memory_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path
