# SPDX-License-Identifier: Apache-2.0
"""How often the garbage collector looks at the objects of a test process."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """What is there now, modules and test functions above all, stays until the end: no collection looks at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
