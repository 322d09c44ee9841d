# SPDX-License-Identifier: Apache-2.0
"""What holds for every test."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Thousands of test functions and modules stay until the end: the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
