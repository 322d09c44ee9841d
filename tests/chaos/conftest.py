# SPDX-License-Identifier: Apache-2.0
"""Services start without the time that their imports take; `python -m tests.chaos` starts fresh ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.harness.warm_service import warm_services


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    with warm_services():
        yield
