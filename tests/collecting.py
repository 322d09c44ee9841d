# SPDX-License-Identifier: Apache-2.0
"""Settings of the garbage collector in a test process."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Exempt all objects that exist now from later collections: modules and test functions stay until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
