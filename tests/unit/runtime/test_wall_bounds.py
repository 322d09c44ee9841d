# SPDX-License-Identifier: Apache-2.0
"""A wall clock that is set counts for deletions only after it has lasted."""

from __future__ import annotations

import pytest
from tidemark.runtime.wall_bounds import LASTING_MS, WallBounds

DAY_MS = 86_400_000


class SetClock:
    """Time that passes, and a wall clock that is set."""

    passed_ms = 5_000
    set_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.passed_ms

    def wall_us(self) -> int:
        return (self.passed_ms + self.set_ms) * 1000


def bounds_ms(wall: WallBounds, clock: SetClock) -> tuple[int, int]:
    """Both bounds, as differences to the wall clock of the start."""
    start_ms = SetClock.set_ms + clock.passed_ms
    return wall.earliest_us() // 1000 - start_ms, wall.latest_us() // 1000 - start_ms


@pytest.mark.parametrize("step_ms", [1_000, 300_000, LASTING_MS, 3 * LASTING_MS])
@pytest.mark.parametrize("by_ms", [DAY_MS, -DAY_MS])
def test_a_jump_counts_after_it_has_lasted_however_often_the_clock_is_read(step_ms: int, by_ms: int) -> None:
    clock = SetClock()
    wall = WallBounds(clock)
    for _ in range(5):
        clock.passed_ms += step_ms
        assert bounds_ms(wall, clock) == (0, 0)
    clock.set_ms += by_ms
    began_ms = clock.passed_ms
    while clock.passed_ms - began_ms < LASTING_MS:
        assert bounds_ms(wall, clock) == (min(0, by_ms), max(0, by_ms))
        clock.passed_ms += step_ms
    for _ in range(2):  # the jump counts from the first read after it
        clock.passed_ms += LASTING_MS
        wall.earliest_us()
    assert bounds_ms(wall, clock) == (by_ms, by_ms)


def test_a_jump_that_is_corrected_never_counted() -> None:
    clock = SetClock()
    wall = WallBounds(clock)
    for by_ms in (DAY_MS, -DAY_MS):
        clock.set_ms += by_ms
        clock.passed_ms += LASTING_MS // 2
        assert wall.earliest_us() // 1000 == SetClock.set_ms + clock.passed_ms
    clock.passed_ms += 2 * LASTING_MS
    assert bounds_ms(wall, clock) == (0, 0)


def test_many_reads_keep_few_samples() -> None:
    clock = SetClock()
    wall = WallBounds(clock)
    for _ in range(10_000):
        clock.passed_ms += 1_000
        wall.earliest_us()
    assert len(wall._samples) <= 102
