# SPDX-License-Identifier: Apache-2.0
"""Objects that other tests of a worker have left behind stay out of collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    """A service that ends unfreezes all objects of the worker: each full collection would then take half a second."""
    yield
    gc.freeze()
