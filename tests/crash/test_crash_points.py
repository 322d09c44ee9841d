# SPDX-License-Identifier: Apache-2.0
"""A sample of the crash points; `make soak` tries every one (python -m tests.crash)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.disk import Crash
from tests.crash.lives import Life
from tests.crash.points import Lived, lived, points_of, try_points
from tests.crash.recorder import Mark
from tests.unit.storage.batches import memory_directory

STEPS = 40
SAMPLE = 100


@pytest.fixture
def directory() -> Iterator[Path]:
    with memory_directory() as path:
        yield path


@pytest.mark.parametrize("seed", range(6))
def test_a_start_after_any_crash_finds_promised_records_and_no_others(directory: Path, seed: int) -> None:
    life: Lived = lived(seed, STEPS, directory)
    points = list(points_of(life, draws=1))
    chosen = sorted(random.Random(seed).sample(range(len(points)), SAMPLE))
    assert try_points(life, [points[number] for number in chosen], directory) == SAMPLE


def test_a_power_loss_in_the_reset_of_a_cleaned_log_finishes_or_undoes_it(directory: Path) -> None:
    """With half of the segments and no mark, a start would miss producer states that only snapshots have."""
    steps = [
        *[Life.append] * 10,
        Life.checkpoint,
        Life.clean,
        Life.append,
        Life.checkpoint,
        Life.clean,
        Life.checkpoint,
    ]
    life: Lived = lived(8, [*steps, Life.reset], directory)
    notes = [(number, one.note.doing) for number, one in enumerate(life.operations) if isinstance(one, Mark)]
    (began, ended) = next(
        (number, after) for (number, doing), (after, _) in itertools.pairwise(notes) if doing.startswith("resetting")
    )
    points = [
        point
        for point in points_of(life, draws=2)
        if began < point.after <= ended and point.crash is Crash.ORDERED and not point.again
    ]
    assert try_points(life, points, directory) == len(points) > 50
