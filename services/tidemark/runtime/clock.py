# SPDX-License-Identifier: Apache-2.0
"""The real clock behind `ports.Clock`: monotonic, and counting while the machine is suspended (rule F1)."""

from __future__ import annotations

import time

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """CLOCK_BOOTTIME if the system has it (Linux), else CLOCK_MONOTONIC."""

    def now_ms(self) -> int:
        """Milliseconds since boot, suspension included."""
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000
