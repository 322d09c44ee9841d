# SPDX-License-Identifier: Apache-2.0
"""A process that runs the worlds of a test worker a second time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.replay import OtherProcess


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.close()
